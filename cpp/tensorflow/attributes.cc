#include "tensorflow/attributes.h"

namespace rdmacoll::tensorflow {

// The graph optimizer evaluates constant nodes with step 0. Shape functions use step -1 while
// tracing. Steps of a running program are 1 and up in sessions, and large random negatives
// elsewhere.
bool is_evaluated_while_optimizing(TF_OpKernelContext* context) {
  const int64_t step = TF_StepId(context);
  return step <= 0 && step > -16;
}

int32_t dtype_of(TF_DataType type) {
  switch (type) {
    case TF_UINT8:
      return 0;
    case TF_INT8:
      return 1;
    case TF_INT32:
      return 2;
    case TF_INT64:
      return 3;
    case TF_HALF:
      return 4;
    case TF_BFLOAT16:
      return 5;
    case TF_FLOAT:
      return 6;
    case TF_DOUBLE:
      return 7;
    case TF_BOOL:
      return 8;
    case TF_UINT16:
      return 9;
    case TF_UINT32:
      return 10;
    case TF_UINT64:
      return 11;
    case TF_INT16:
      return 12;
    case TF_COMPLEX64:
      return 13;
    case TF_COMPLEX128:
      return 14;
  }
  return -1;
}

std::size_t size_of_dtype(int32_t dtype) {
  constexpr uint8_t kSizes[] = {1, 1, 4, 8, 2, 2, 4, 8, 1, 2, 4, 8, 2, 8, 16};
  return kSizes[dtype];
}

int64_t attribute_int(TF_OpKernelConstruction* construction, const char* name, TF_Status* status) {
  int64_t value = 0;
  if (TF_GetCode(status) == TF_OK) {
    TF_OpKernelConstruction_GetAttrInt64(construction, name, &value, status);
  }
  return value;
}

std::string attribute_string(TF_OpKernelConstruction* construction, const char* name,
                             TF_Status* status) {
  if (TF_GetCode(status) != TF_OK) return "";
  int32_t list_size = 0;
  int32_t total_size = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, name, &list_size, &total_size, status);
  if (TF_GetCode(status) != TF_OK || total_size <= 0) return "";
  std::string value(static_cast<std::size_t>(total_size), '\0');
  TF_OpKernelConstruction_GetAttrString(construction, name, value.data(), value.size(), status);
  return value;
}

std::vector<std::string> attribute_strings(TF_OpKernelConstruction* construction, const char* name,
                                           TF_Status* status) {
  if (TF_GetCode(status) != TF_OK) return {};
  int32_t list_size = 0;
  int32_t total_size = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, name, &list_size, &total_size, status);
  if (TF_GetCode(status) != TF_OK || list_size <= 0) return {};
  std::vector<char*> values(static_cast<std::size_t>(list_size));
  std::vector<std::size_t> lengths(values.size());
  std::vector<char> storage(static_cast<std::size_t>(total_size) + 1);
  TF_OpKernelConstruction_GetAttrStringList(construction, name, values.data(), lengths.data(),
                                            list_size, storage.data(), storage.size(), status);
  if (TF_GetCode(status) != TF_OK) return {};
  std::vector<std::string> result;
  for (std::size_t i = 0; i < values.size(); ++i) result.emplace_back(values[i], lengths[i]);
  return result;
}

}  // namespace rdmacoll::tensorflow
