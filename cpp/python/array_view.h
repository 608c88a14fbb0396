// A numpy array as its `__array_struct__` describes it. The stable ABI of CPython 3.9 has no buffer
// protocol.
#pragma once

#include <cstdint>

#include "python/python.h"

namespace rdmacoll::python {

class ArrayView {
 public:
  // The interned name of the attribute.
  static PyObject* attribute;

  // Returns false, without an exception, if the array has no such attribute. The view is valid as
  // long as `held`.
  bool read(PyObject* array, Held& held);

  // Whether the engine can read it: C-contiguous, and in the machine's byte order.
  bool is_readable() const { return (its_->flags & kReadable) == kReadable; }
  bool is_writable() const { return (its_->flags & kWritable) == kWritable; }
  bool has_shape_of(const ArrayView& other) const;
  // Whether the two share memory, and begin at different addresses.
  bool overlaps(const ArrayView& other) const;

  char* data() const { return static_cast<char*>(its_->data); }
  int ndim() const { return its_->nd; }
  int64_t dim(int index) const { return its_->shape[index]; }
  uint64_t bytes() const;

 private:
  // numpy's PyArrayInterface.
  struct Interface {
    int two;
    int nd;
    char typekind;
    int itemsize;
    int flags;
    Py_ssize_t* shape;
    Py_ssize_t* strides;
    void* data;
    PyObject* descr;
  };
  // Flags of numpy: C-contiguous, not byte-swapped, writable.
  static constexpr int kReadable = 0x1 | 0x200;
  static constexpr int kWritable = kReadable | 0x400;

  const Interface* its_ = nullptr;
};

}  // namespace rdmacoll::python
