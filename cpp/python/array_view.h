// A numpy array, read without a call of Python. The stable ABI of CPython 3.9 has no buffer
// protocol.
#pragma once

#include <cstdint>

#include "python/python.h"

namespace rdmacoll::python {

class ArrayView {
 public:
  // `array`: an object of numpy.ndarray itself. The view is valid as long as `array` is.
  explicit ArrayView(PyObject* array) : its_(reinterpret_cast<const Fields*>(array)) {}

  // Whether the fields of this numpy lie where a view expects them. `array`: of float32 and of
  // shape (2, 3), C-contiguous. `dtype` and `address`: its own, as numpy gives them.
  static bool fits(PyObject* array, PyObject* dtype, const void* address);

  // Whether the engine can read it. A dtype with its number has the machine's byte order.
  bool is_readable() const { return (its_->flags & kReadable) == kReadable; }
  bool is_writable() const { return (its_->flags & kWritable) == kWritable; }
  bool has_shape_of(const ArrayView& other) const;

  PyObject* dtype() const { return its_->descr; }  // borrowed
  char* data() const { return its_->data; }
  int ndim() const { return its_->nd; }
  int64_t dim(int index) const { return its_->dimensions[index]; }
  uint64_t elements() const;

 private:
  // The beginning of numpy's PyArrayObject_fields. It is part of numpy's ABI, and the same in
  // numpy 1 and 2.
  struct Fields {
    PyObject_HEAD char* data;
    int nd;
    Py_ssize_t* dimensions;
    Py_ssize_t* strides;
    PyObject* base;
    PyObject* descr;
    int flags;
  };
  // Flags of numpy: C-contiguous, writable.
  static constexpr int kReadable = 0x1;
  static constexpr int kWritable = kReadable | 0x400;

  const Fields* its_;
};

}  // namespace rdmacoll::python
