#include "tensorflow/shapes.h"

#include <cstdint>

namespace rdmacoll::tensorflow {
namespace {

constexpr auto kUnknownDimension = static_cast<std::size_t>(-1);

void set_other_rows(TF_ShapeInferenceContext* context, int index, TF_Status* status) {
  constexpr int64_t kToTheEnd = INT64_MAX;
  TF_ShapeHandle* const shape = TF_NewShapeHandle();
  TF_ShapeInferenceContextGetInput(context, index, shape, status);
  if (TF_GetCode(status) == TF_OK && TF_ShapeInferenceContextRankKnown(context, shape) != 0) {
    TF_ShapeHandle* const first =
        TF_ShapeInferenceContextVectorFromSize(context, kUnknownDimension);
    TF_ShapeHandle* const others = TF_NewShapeHandle();
    TF_ShapeInferenceContextSubshape(context, shape, 1, kToTheEnd, others, status);
    if (TF_GetCode(status) == TF_OK) {
      TF_ShapeInferenceContextConcatenateShapes(context, first, others, shape, status);
    }
    if (TF_GetCode(status) == TF_OK) {
      TF_ShapeInferenceContextSetOutput(context, index, shape, status);
    }
    TF_DeleteShapeHandle(first);
    TF_DeleteShapeHandle(others);
  }
  TF_DeleteShapeHandle(shape);
}

// Gives outputs the shapes of the first inputs.
void set_same_shapes(TF_ShapeInferenceContext* context, int64_t inputs, TF_Status* status) {
  TF_ShapeHandle* const shape = TF_NewShapeHandle();
  for (int i = 0; i < inputs && TF_GetCode(status) == TF_OK; ++i) {
    TF_ShapeInferenceContextGetInput(context, i, shape, status);
    if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, i, shape, status);
  }
  TF_DeleteShapeHandle(shape);
}

}  // namespace

void no_shapes(TF_ShapeInferenceContext*, TF_Status*) {}

void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  set_same_shapes(context, TF_ShapeInferenceContextNumInputs(context), status);
}

void gradient_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  set_same_shapes(context, TF_ShapeInferenceContextNumInputs(context) - 1, status);
}

void first_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* const shape = TF_NewShapeHandle();
  TF_ShapeInferenceContextGetInput(context, 0, shape, status);
  if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
  TF_DeleteShapeHandle(shape);
}

// Outputs begin as unknown, since an input of unknown rank determines nothing.
void other_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int64_t inputs = TF_ShapeInferenceContextNumInputs(context);
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  for (int i = 0; i < inputs && TF_GetCode(status) == TF_OK; ++i) {
    set_other_rows(context, i, status);
  }
}

void split_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  if (TF_GetCode(status) == TF_OK) set_other_rows(context, 0, status);
}

void exchanged_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  split_rows(context, status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeHandle* const counts = TF_ShapeInferenceContextVectorFromSize(context, kUnknownDimension);
  TF_ShapeInferenceContextSetOutput(context, 1, counts, status);
  TF_DeleteShapeHandle(counts);
}

}  // namespace rdmacoll::tensorflow
