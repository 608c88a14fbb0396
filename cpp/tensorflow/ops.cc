// The ops as TensorFlow sees them. They are registered while the library is loaded.
//
// Data ops are *not* stateful, since TensorFlow would chain all stateful ops of a function. Two
// collectives whose order differs between ranks would then wait for each other for ever. Their
// tensor_name distinguishes two of them.
//
// The ops of asynchronous parameter servers wait for no other rank, and are stateful: they run in
// program order.
#include <initializer_list>
#include <string>

#include "tensorflow/applied.h"
#include "tensorflow/attachment.h"
#include "tensorflow/done.h"
#include "tensorflow/kernel.h"
#include "tensorflow/ps_kernel.h"
#include "tensorflow/shapes.h"
#include "tensorflow/tf_c_api.h"

namespace rdmacoll::tensorflow {
namespace {

constexpr char kReducible[] =
    "T: {uint8, int8, int32, int64, half, bfloat16, float, double, bool, uint16, uint32, uint64, "
    "int16, complex64, complex128}";
constexpr char kMovable[] =
    "T: {uint8, int8, int32, int64, half, bfloat16, float, double, bool, uint16, uint32, uint64, "
    "int16, complex64, complex128}";
constexpr char kUpdatable[] = "T: {float, double}";
constexpr char kVariables[] = "variables: list(string)";
constexpr char kRate[] = "learning_rate: double";  // a scalar, or empty if the rule has the rate
constexpr char kName[] = "tensor_name: string = ''";
constexpr char kLabels[] = "labels: list(string) = []";
constexpr char kGroup[] = "group: string = ''";  // for the first op of a group of several dtypes
constexpr char kSet[] = "process_set: int = 0";
// Only gradient functions read it. They are written in Python (rdmacoll/ops).
constexpr char kGradient[] = "horovod_gradient: bool = false";

struct OpDefinition {
  const char* name;
  std::initializer_list<const char*> inputs;
  std::initializer_list<const char*> outputs;
  bool is_stateful;
  void (*shapes)(TF_ShapeInferenceContext*, TF_Status*);
  void* (*create)(TF_OpKernelConstruction*);
  std::initializer_list<const char*> attributes;
  void (*compute)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*) = &Kernel::compute;
  void (*destroy)(void*) = &Kernel::destroy;
};

constexpr OpDefinition kOps[] = {
    {"RdmacollAllreduce",
     {"tensors: N * T"},
     {"reduced: N * T"},
     false,
     &same_shapes,
     &Kernel::create<RC_ALLREDUCE>,
     {"N: int >= 1", kReducible, "op: int", "prescale_bits: int", "postscale_bits: int",
      "manifest: string = ''", kGroup, kName, kLabels, kSet, kGradient}},
    {"RdmacollReducescatter",
     {"tensors: N * T"},
     {"scattered: N * T"},
     false,
     &other_rows,
     &Kernel::create<RC_REDUCESCATTER>,
     {"N: int >= 1", kReducible, "op: int", "prescale_bits: int", "postscale_bits: int", kGroup,
      kName, kLabels, kSet, kGradient}},
    {"RdmacollReduce",
     {"tensors: N * T"},
     {"reduced: N * T"},
     false,
     &same_shapes,
     &Kernel::create<RC_REDUCE>,
     {"N: int >= 1", kReducible, "op: int", "root_rank: int", "prescale_bits: int",
      "postscale_bits: int", kName, kLabels, kSet}},
    {"RdmacollBroadcast",
     {"tensors: N * T"},
     {"copies: N * T"},
     false,
     &same_shapes,
     &Kernel::create<RC_BROADCAST>,
     {"N: int >= 1", kMovable, "root_rank: int", "manifest: string = ''", kGroup, kName, kLabels,
      kSet, kGradient}},
    {"RdmacollAllgather",
     {"tensors: N * T"},
     {"gathered: N * T"},
     false,
     &other_rows,
     &Kernel::create<RC_ALLGATHER>,
     {"N: int >= 1", kMovable, kGroup, kName, kLabels, kSet, kGradient}},
    {"RdmacollGather",
     {"tensor: T"},
     {"gathered: T"},
     false,
     &other_rows,
     &Kernel::create<RC_GATHER>,
     {kMovable, "root_rank: int", kName, kLabels, kSet}},
    {"RdmacollScatter",
     {"tensor: T", "splits: int64"},
     {"scattered: T"},
     false,
     &split_rows,
     &Kernel::create<RC_SCATTER>,
     {kMovable, "root_rank: int", kName, kLabels, kSet}},
    {"RdmacollAlltoall",
     {"tensor: T", "splits: int64"},
     {"exchanged: T", "received_splits: int64"},
     false,
     &exchanged_rows,
     &Kernel::create<RC_ALLTOALL>,
     {kMovable, kName, kLabels, kSet}},
    {"RdmacollBarrier", {}, {}, true, &no_shapes, &Kernel::create<RC_BARRIER>, {kName, kSet}},
    {"RdmacollApplied",
     {},
     {},
     true,
     &no_shapes,
     &AppliedKernel::create,
     {"optimizer: string"},
     &AppliedKernel::compute,
     &AppliedKernel::destroy},
    {"RdmacollPsPush",
     {"gradients: N * T", kRate},
     {},
     true,
     &no_shapes,
     &PsKernel::create<RC_PS_PUSH, false>,
     {"N: int >= 1", kUpdatable, kVariables},
     &PsKernel::compute,
     &PsKernel::destroy},
    {"RdmacollPsExchange",
     {"gradients: N * T", kRate},
     {"values: N * T"},
     true,
     &gradient_shapes,
     &PsKernel::create<RC_PS_PUSH_PULL, false>,
     {"N: int >= 1", kUpdatable, kVariables},
     &PsKernel::compute,
     &PsKernel::destroy},
    {"RdmacollPsPull",
     {"dims: int64"},
     {"value: T"},
     true,
     &no_shapes,
     &PsKernel::create<RC_PS_PULL, false>,
     {kUpdatable, kVariables},
     &PsKernel::compute,
     &PsKernel::destroy},
    {"RdmacollPsPushRows",
     {"gradients: T", "rows: int64", kRate},
     {},
     true,
     &no_shapes,
     &PsKernel::create<RC_PS_PUSH, true>,
     {kUpdatable, kVariables},
     &PsKernel::compute,
     &PsKernel::destroy},
    {"RdmacollPsExchangeRows",
     {"gradients: T", "rows: int64", kRate},
     {"values: T"},
     true,
     &first_shape,
     &PsKernel::create<RC_PS_PUSH_PULL, true>,
     {kUpdatable, kVariables},
     &PsKernel::compute,
     &PsKernel::destroy},
    {"RdmacollPsPullRows",
     {"rows: int64", "dims: int64"},
     {"values: T"},
     true,
     &no_shapes,
     &PsKernel::create<RC_PS_PULL, true>,
     {kUpdatable, kVariables},
     &PsKernel::compute,
     &PsKernel::destroy},
};

// Returns "" or the error.
std::string register_op(const OpDefinition& op) {
  TF_OpDefinitionBuilder* const definition = TF_NewOpDefinitionBuilder(op.name);
  for (const char* attribute : op.attributes) TF_OpDefinitionBuilderAddAttr(definition, attribute);
  for (const char* input : op.inputs) TF_OpDefinitionBuilderAddInput(definition, input);
  for (const char* output : op.outputs) TF_OpDefinitionBuilderAddOutput(definition, output);
  if (op.is_stateful) TF_OpDefinitionBuilderSetIsStateful(definition, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, op.shapes);
  TF_Status* const status = TF_NewStatus();
  TF_RegisterOpDefinition(definition, status);
  if (TF_GetCode(status) == TF_OK) {
    TF_KernelBuilder* const kernel =
        TF_NewAsyncKernelBuilder(op.name, "CPU", op.create, op.compute, op.destroy);
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
