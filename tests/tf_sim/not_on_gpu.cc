// Functions that kernels for GPUs never call. They have no types here, since no test calls them.
#include <cstdio>
#include <cstdlib>

#define NOT_ON_GPU(name)                                                       \
  __attribute__((visibility("default"))) void name() {                         \
    std::fprintf(stderr, "tf_sim: a kernel for a GPU has called " #name "\n"); \
    std::abort();                                                              \
  }

extern "C" {
NOT_ON_GPU(TF_AllocateOutput)
NOT_ON_GPU(TF_OpKernelConstruction_GetAttrStringList)
NOT_ON_GPU(TF_ShapeInferenceContextNumInputs)
NOT_ON_GPU(TF_NewShapeHandle)
NOT_ON_GPU(TF_DeleteShapeHandle)
NOT_ON_GPU(TF_ShapeInferenceContextGetInput)
NOT_ON_GPU(TF_ShapeInferenceContextSetOutput)
NOT_ON_GPU(TF_ShapeInferenceContextSetUnknownShape)
NOT_ON_GPU(TF_ShapeInferenceContextVectorFromSize)
NOT_ON_GPU(TF_ShapeInferenceContextRankKnown)
NOT_ON_GPU(TF_ShapeInferenceContextSubshape)
NOT_ON_GPU(TF_ShapeInferenceContextConcatenateShapes)
}
