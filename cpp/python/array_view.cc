#include "python/array_view.h"

namespace rdmacoll::python {

PyObject* ArrayView::attribute = nullptr;

bool ArrayView::read(PyObject* array, Held& held) {
  PyObject* capsule = held.keep(PyObject_GetAttr(array, attribute));
  if (capsule != nullptr) {
    its_ = static_cast<const Interface*>(PyCapsule_GetPointer(capsule, nullptr));
  }
  if (its_ != nullptr && its_->two == 2) return true;
  PyErr_Clear();
  return false;
}

bool ArrayView::has_shape_of(const ArrayView& other) const {
  if (ndim() != other.ndim()) return false;
  for (int i = 0; i < ndim(); ++i) {
    if (dim(i) != other.dim(i)) return false;
  }
  return true;
}

bool ArrayView::overlaps(const ArrayView& other) const {
  const char *mine = data(), *its = other.data();
  return mine != its && mine < its + other.bytes() && its < mine + bytes();
}

uint64_t ArrayView::bytes() const {
  auto bytes = static_cast<uint64_t>(its_->itemsize);
  for (int i = 0; i < ndim(); ++i) bytes *= static_cast<uint64_t>(dim(i));
  return bytes;
}

}  // namespace rdmacoll::python
