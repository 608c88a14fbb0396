// The destructor of DLPack capsules that no consumer has taken. A consumer that refuses a capsule
// drops it with an error pending, which code in Python would lose.
#include <cstddef>
#include <cstdint>

#include "python/module.h"

namespace rdmacoll::python {
namespace {

struct Tensor {  // DLTensor
  void* data;
  int32_t device[2];
  int32_t ndim;
  uint32_t dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct Managed {  // DLManagedTensor
  Tensor tensor;
  void* context;
  void (*deleter)(void* self);
};
struct VersionedManaged {  // DLManagedTensorVersioned
  uint32_t version[2];
  void* context;
  void (*deleter)(void* self);
  uint64_t flags;
  Tensor tensor;
};
static_assert(sizeof(Tensor) == 48 && sizeof(Managed) == 64 && sizeof(VersionedManaged) == 80);

template <typename Struct>
void return_memory(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return;
  auto* managed = static_cast<Struct*>(PyCapsule_GetPointer(capsule, name));
  if (managed->deleter != nullptr) managed->deleter(managed);
}

void return_unused(PyObject* capsule) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  return_memory<Managed>(capsule, "dltensor");
  return_memory<VersionedManaged>(capsule, "dltensor_versioned");
  PyErr_Restore(type, value, trace);
}

}  // namespace

PyObject* capsule_destructor() {
  return PyLong_FromVoidPtr(reinterpret_cast<void*>(&return_unused));
}

}  // namespace rdmacoll::python
