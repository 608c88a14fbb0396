#include "python/array_view.h"

namespace rdmacoll::python {

bool ArrayView::fits(PyObject* array, PyObject* dtype, const void* address) {
  const ArrayView view(array);
  const Fields& its = *view.its_;
  return its.data == address && its.nd == 2 && its.descr == dtype && view.is_writable() &&
         its.dimensions[0] == 2 && its.dimensions[1] == 3 && its.strides[0] == 12 &&
         its.strides[1] == 4;
}

bool ArrayView::has_shape_of(const ArrayView& other) const {
  if (ndim() != other.ndim()) return false;
  for (int i = 0; i < ndim(); ++i) {
    if (dim(i) != other.dim(i)) return false;
  }
  return true;
}

uint64_t ArrayView::elements() const {
  uint64_t elements = 1;
  for (int i = 0; i < ndim(); ++i) elements *= static_cast<uint64_t>(dim(i));
  return elements;
}

}  // namespace rdmacoll::python
