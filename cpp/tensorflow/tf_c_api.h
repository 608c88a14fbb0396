// The part of TensorFlow's C API that this library uses. It is declared here, so the build needs no
// TensorFlow. Every function has an entry in framework_stub.cc. All supported TensorFlow versions
// must have these functions. A function without an entry does not link.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct TF_Status;
struct TF_Tensor;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;
struct TF_OpDefinitionBuilder;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;

// Numbers of TensorFlow's DataType message, fixed since 1.0.
enum TF_DataType : int {
  TF_FLOAT = 1,
  TF_DOUBLE = 2,
  TF_INT32 = 3,
  TF_UINT8 = 4,
  TF_INT16 = 5,
  TF_INT8 = 6,
  TF_COMPLEX64 = 8,
  TF_INT64 = 9,
  TF_BOOL = 10,
  TF_BFLOAT16 = 14,
  TF_UINT16 = 17,
  TF_COMPLEX128 = 18,
  TF_HALF = 19,
  TF_UINT32 = 22,
  TF_UINT64 = 23,
};

// The numbers of grpc's status codes.
enum TF_Code : int {
  TF_OK = 0,
  TF_UNKNOWN = 2,
  TF_INVALID_ARGUMENT = 3,
  TF_DEADLINE_EXCEEDED = 4,
  TF_FAILED_PRECONDITION = 9,
  TF_UNIMPLEMENTED = 12,
  TF_INTERNAL = 13,
};

// Not zero-terminated.
struct TF_StringView {
  const char* data;
  size_t len;
};

TF_Status* TF_NewStatus(void);
void TF_DeleteStatus(TF_Status*);
void TF_SetStatus(TF_Status*, TF_Code, const char* message);
TF_Code TF_GetCode(const TF_Status*);
const char* TF_Message(const TF_Status*);

// `deallocator` is called when the last tensor over `data` is deleted, on any thread.
TF_Tensor* TF_NewTensor(TF_DataType, const int64_t* dims, int ndim, void* data, size_t bytes,
                        void (*deallocator)(void* data, size_t bytes, void* argument),
                        void* deallocator_argument);
void TF_DeleteTensor(TF_Tensor*);
int TF_NumDims(const TF_Tensor*);
int64_t TF_Dim(const TF_Tensor*, int index);
size_t TF_TensorByteSize(const TF_Tensor*);
void* TF_TensorData(const TF_Tensor*);

TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* name);
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder*, TF_Status*);  // frees the builder
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder*, const char* spec);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder*, const char* spec);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder*, const char* spec);
// Sets the op stateful, even with false: never call it with false.
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder*, bool);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder*,
                                                     void (*)(TF_ShapeInferenceContext*,
                                                              TF_Status*));

int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext*);
TF_ShapeHandle* TF_NewShapeHandle(void);
void TF_DeleteShapeHandle(TF_ShapeHandle*);
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*);
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*);
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext*, TF_Status*);
TF_ShapeHandle* TF_ShapeInferenceContextVectorFromSize(TF_ShapeInferenceContext*, size_t);
int TF_ShapeInferenceContextRankKnown(TF_ShapeInferenceContext*, TF_ShapeHandle*);
void TF_ShapeInferenceContextSubshape(TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t start,
                                      int64_t end, TF_ShapeHandle* result, TF_Status*);
void TF_ShapeInferenceContextConcatenateShapes(TF_ShapeInferenceContext*, TF_ShapeHandle* first,
                                               TF_ShapeHandle* second, TF_ShapeHandle* result,
                                               TF_Status*);

TF_KernelBuilder* TF_NewAsyncKernelBuilder(const char* op, const char* device,
                                           void* (*create)(TF_OpKernelConstruction*),
                                           void (*compute)(void*, TF_OpKernelContext*,
                                                           TF_AsyncOpKernelDoneCallback*),
                                           void (*destroy)(void*));
void TF_KernelBuilder_TypeConstraint(TF_KernelBuilder*, const char* attribute, TF_DataType,
                                     TF_Status*);
// The argument lies in host memory, also on a GPU.
void TF_KernelBuilder_HostMemory(TF_KernelBuilder*, const char* argument);
void TF_RegisterKernelBuilder(const char* name, TF_KernelBuilder*, TF_Status*);
void TF_RunAsyncOpKernelDoneCallback(TF_AsyncOpKernelDoneCallback*);

void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction*, TF_Status*);
TF_StringView TF_OpKernelConstruction_GetName(TF_OpKernelConstruction*);
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction*, const char* name,
                                         int32_t* list_size, int32_t* total_size, TF_Status*);
void TF_OpKernelConstruction_GetAttrType(TF_OpKernelConstruction*, const char* name, TF_DataType*,
                                         TF_Status*);
void TF_OpKernelConstruction_GetAttrInt64(TF_OpKernelConstruction*, const char* name, int64_t*,
                                          TF_Status*);
void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction*, const char* name, char*,
                                           size_t max_length, TF_Status*);
void TF_OpKernelConstruction_GetAttrStringList(TF_OpKernelConstruction*, const char* name,
                                               char** values, size_t* lengths, int max_values,
                                               void* storage, size_t storage_size, TF_Status*);

int TF_NumInputs(TF_OpKernelContext*);
void TF_GetInput(TF_OpKernelContext*, int, TF_Tensor**, TF_Status*);
TF_Tensor* TF_AllocateOutput(TF_OpKernelContext*, int index, TF_DataType, const int64_t* dims,
                             int ndim, size_t bytes, TF_Status*);
typedef struct TF_AllocatorAttributes {
  size_t struct_size;  // up to the end of on_host
  unsigned char on_host;
} TF_AllocatorAttributes;
TF_Tensor* TF_AllocateTemp(TF_OpKernelContext*, TF_DataType, const int64_t* dims, int ndim,
                           TF_AllocatorAttributes*, TF_Status*);
void TF_SetOutput(TF_OpKernelContext*, int index, const TF_Tensor*, TF_Status*);
TF_Tensor* TF_ForwardInputOrAllocateOutput(TF_OpKernelContext*, const int* candidates,
                                           int n_candidates, int index, const int64_t* dims,
                                           int ndim, int* forwarded_input, TF_Status*);
void TF_OpKernelContext_Failure(TF_OpKernelContext*, TF_Status*);
int64_t TF_StepId(TF_OpKernelContext*);
uint64_t TF_GetFrameId(TF_OpKernelContext*);
int64_t TF_GetIterId(TF_OpKernelContext*);

}  // extern "C"
