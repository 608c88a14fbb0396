// The request of one plain call, as the library takes it.
#pragma once

#include <cstdint>
#include <cstring>

#include "api/rdmacoll_c.h"
#include "python/array_view.h"
#include "python/python.h"

namespace rdmacoll::python {

// A request for one tensor, or for none, and the objects that it needs.
struct Request {
  rc_request request{};
  rc_tensor tensor{};
  uint64_t bytes = 0;
  Held held;

  explicit Request(int kind) {
    request.kind = kind;
    request.prescale = request.postscale = 1.0;
  }

  // `name`: None or a str. Returns false for names that need Python's checks.
  bool set_name(PyObject* name) {
    if (name == Py_None) return true;
    if (!PyUnicode_CheckExact(name)) return false;
    PyObject* bytes_of_name = held.keep(PyUnicode_AsUTF8String(name));
    if (bytes_of_name == nullptr) return false;
    request.name = PyBytes_AsString(bytes_of_name);
    return std::strlen(request.name) == static_cast<std::size_t>(PyBytes_Size(bytes_of_name));
  }

  // `itemsize`: of an element, in bytes.
  void set_tensor(const ArrayView& source, const ArrayView& target, uint64_t itemsize) {
    tensor.input = source.data();
    tensor.output = target.data();
    tensor.ndim = source.ndim();
    for (int i = 0; i < source.ndim(); ++i) tensor.dims[i] = source.dim(i);
    request.n_tensors = 1;
    request.tensors = &tensor;
    bytes = source.elements() * itemsize;
  }
};

}  // namespace rdmacoll::python
