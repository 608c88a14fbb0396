// Shape functions: what TensorFlow knows of an op's outputs before it runs.
#pragma once

#include "tensorflow/tf_c_api.h"

namespace rdmacoll::tensorflow {

void no_shapes(TF_ShapeInferenceContext* context, TF_Status* status);
// Every output has the shape of its input.
void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status);
// The same, where one more input has no output.
void gradient_shapes(TF_ShapeInferenceContext* context, TF_Status* status);
// The one output has that of the first input.
void first_shape(TF_ShapeInferenceContext* context, TF_Status* status);
// As same_shapes, but for the first dimension, which is unknown; a scalar becomes a vector.
void other_rows(TF_ShapeInferenceContext* context, TF_Status* status);
// The same of one tensor, whose splits are the second input.
void split_rows(TF_ShapeInferenceContext* context, TF_Status* status);
// And the second output has a number for each rank.
void exchanged_rows(TF_ShapeInferenceContext* context, TF_Status* status);

}  // namespace rdmacoll::tensorflow
