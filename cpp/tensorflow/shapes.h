// Shape functions: they infer an op's output shapes before it runs.
#pragma once

#include "tensorflow/tf_c_api.h"

namespace rdmacoll::tensorflow {

void no_shapes(TF_ShapeInferenceContext* context, TF_Status* status);
// Every output has the shape of its input.
void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status);
// Like same_shapes, but one more input has no output.
void gradient_shapes(TF_ShapeInferenceContext* context, TF_Status* status);
// The only output has the shape of the first input.
void first_shape(TF_ShapeInferenceContext* context, TF_Status* status);
// Like same_shapes, but the first dimension is unknown. A scalar becomes a vector.
void other_rows(TF_ShapeInferenceContext* context, TF_Status* status);
// Like other_rows, for one tensor, whose splits are the second input.
void split_rows(TF_ShapeInferenceContext* context, TF_Status* status);
// Like split_rows, and the second output has a number for each rank.
void exchanged_rows(TF_ShapeInferenceContext* context, TF_Status* status);

}  // namespace rdmacoll::tensorflow
