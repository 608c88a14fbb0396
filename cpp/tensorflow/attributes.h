// The attributes of an op's node, and TensorFlow's types as the engine's numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/tf_c_api.h"

namespace rdmacoll::tensorflow {

struct StatusDeleter {
  void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
};
using OwnedStatus = std::unique_ptr<TF_Status, StatusDeleter>;
struct TensorDeleter {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
};
using OwnedTensor = std::unique_ptr<TF_Tensor, TensorDeleter>;

// Returns true while no program runs yet. A kernel that communicates has no value then.
bool is_evaluated_while_optimizing(TF_OpKernelContext* context);
// Stands for the memory of an empty tensor, since engines need a pointer.
inline char empty_memory[64];

int32_t dtype_of(TF_DataType type);  // -1: the dtype cannot be communicated
std::size_t size_of_dtype(int32_t dtype);

// Once a status is not ok, attributes are returned empty, and the status is unchanged.
int64_t attribute_int(TF_OpKernelConstruction* construction, const char* name, TF_Status* status);
std::string attribute_string(TF_OpKernelConstruction* construction, const char* name,
                             TF_Status* status);
std::vector<std::string> attribute_strings(TF_OpKernelConstruction* construction, const char* name,
                                           TF_Status* status);

}  // namespace rdmacoll::tensorflow
