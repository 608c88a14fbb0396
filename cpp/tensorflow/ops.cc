// The ops, as TensorFlow sees them. Data ops are *not* stateful: TensorFlow would chain all
// stateful ops of a function, and two collectives whose order differs between ranks would wait for
// each other for ever. What keeps two of them apart is tensor_name. Called while the library is
// loaded.
#include <initializer_list>
#include <string>

#include "tensorflow/attachment.h"
#include "tensorflow/done.h"
#include "tensorflow/kernel.h"
#include "tensorflow/tf_c_api.h"

namespace rdmacoll::tensorflow {
namespace {

constexpr char kReducible[] = "T: {uint8, int8, int32, int64, half, bfloat16, float, double}";
constexpr char kMovable[] =
    "T: {uint8, int8, int32, int64, half, bfloat16, float, double, bool, uint16, uint32, uint64, "
    "int16, complex64, complex128}";

void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int64_t inputs = TF_ShapeInferenceContextNumInputs(context);
  TF_ShapeHandle* const shape = TF_NewShapeHandle();
  for (int i = 0; i < inputs && TF_GetCode(status) == TF_OK; ++i) {
    TF_ShapeInferenceContextGetInput(context, i, shape, status);
    if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, i, shape, status);
  }
  TF_DeleteShapeHandle(shape);
}

// An unknown first dimension, then the input's others; a scalar becomes a vector.
void gathered_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  constexpr auto kUnknownDimension = static_cast<std::size_t>(-1);
  constexpr int64_t kToTheEnd = INT64_MAX;
  TF_ShapeHandle* const shape = TF_NewShapeHandle();
  TF_ShapeInferenceContextGetInput(context, 0, shape, status);
  if (TF_GetCode(status) == TF_OK && TF_ShapeInferenceContextRankKnown(context, shape) == 0) {
    TF_ShapeInferenceContextSetUnknownShape(context, status);
  } else if (TF_GetCode(status) == TF_OK) {
    TF_ShapeHandle* const first =
        TF_ShapeInferenceContextVectorFromSize(context, kUnknownDimension);
    TF_ShapeHandle* const others = TF_NewShapeHandle();
    TF_ShapeInferenceContextSubshape(context, shape, 1, kToTheEnd, others, status);
    if (TF_GetCode(status) == TF_OK) {
      TF_ShapeInferenceContextConcatenateShapes(context, first, others, shape, status);
    }
    if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
    TF_DeleteShapeHandle(first);
    TF_DeleteShapeHandle(others);
  }
  TF_DeleteShapeHandle(shape);
}

void no_shapes(TF_ShapeInferenceContext*, TF_Status*) {}

struct OpDefinition {
  const char* name;
  const char* input;  // null: the op has neither input nor output
  const char* output;
  bool is_stateful;
  void (*shapes)(TF_ShapeInferenceContext*, TF_Status*);
  void* (*create)(TF_OpKernelConstruction*);
  std::initializer_list<const char*> attributes;
};

constexpr OpDefinition kOps[] = {
    {"RdmacollAllreduce",
     "tensors: N * T",
     "reduced: N * T",
     false,
     &same_shapes,
     &Kernel::create<RC_ALLREDUCE>,
     {"N: int >= 1", kReducible, "op: int", "prescale_bits: int", "postscale_bits: int",
      "manifest: string = ''", "tensor_name: string = ''", "labels: list(string) = []"}},
    {"RdmacollBroadcast",
     "tensors: N * T",
     "copies: N * T",
     false,
     &same_shapes,
     &Kernel::create<RC_BROADCAST>,
     {"N: int >= 1", kMovable, "root_rank: int", "tensor_name: string = ''",
      "labels: list(string) = []"}},
    {"RdmacollAllgather",
     "tensor: T",
     "gathered: T",
     false,
     &gathered_shape,
     &Kernel::create<RC_ALLGATHER>,
     {kMovable, "tensor_name: string = ''", "labels: list(string) = []"}},
    {"RdmacollBarrier",
     nullptr,
     nullptr,
     true,
     &no_shapes,
     &Kernel::create<RC_BARRIER>,
     {"tensor_name: string = ''"}},
};

// Returns "" or what went wrong.
std::string register_op(const OpDefinition& op) {
  TF_OpDefinitionBuilder* const definition = TF_NewOpDefinitionBuilder(op.name);
  for (const char* attribute : op.attributes) TF_OpDefinitionBuilderAddAttr(definition, attribute);
  if (op.input != nullptr) {
    TF_OpDefinitionBuilderAddInput(definition, op.input);
    TF_OpDefinitionBuilderAddOutput(definition, op.output);
  }
  if (op.is_stateful) TF_OpDefinitionBuilderSetIsStateful(definition, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, op.shapes);
  TF_Status* const status = TF_NewStatus();
  TF_RegisterOpDefinition(definition, status);
  if (TF_GetCode(status) == TF_OK) {
    TF_KernelBuilder* const kernel =
        TF_NewAsyncKernelBuilder(op.name, "CPU", op.create, &Kernel::compute, &Kernel::destroy);
    TF_RegisterKernelBuilder(op.name, kernel, status);
  }
  std::string problem;
  if (TF_GetCode(status) != TF_OK) {
    problem = std::string("TensorFlow refused the op ") + op.name + ": " + TF_Message(status);
  }
  TF_DeleteStatus(status);
  return problem;
}

std::string register_ops() {
  if (!done_callback_is_as_expected()) {
    return "this TensorFlow ends asynchronous kernels in another way than the versions that "
           "rdmacoll knows (2.15 to 2.21); use one of those, or a newer rdmacoll";
  }
  for (const OpDefinition& op : kOps) {
    if (std::string problem = register_op(op); !problem.empty()) return problem;
  }
  return "";
}

// TensorFlow collects the ops that are registered while it loads a library.
const std::string& registration_problem() {
  static const std::string* const problem = new std::string(register_ops());
  return *problem;
}
[[maybe_unused]] const bool kRegisteredAtLoad = registration_problem().empty();

}  // namespace
}  // namespace rdmacoll::tensorflow

const char* rc_tf_problem(void) {
  const std::string& problem = rdmacoll::tensorflow::registration_problem();
  return problem.empty() ? nullptr : problem.c_str();
}
