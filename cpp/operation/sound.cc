#include "operation/sound.h"

#include <algorithm>

namespace rdmacoll {
namespace {

// The product, clamped to `bytes_max` + 1.
uint64_t product(uint64_t a, uint64_t b, uint64_t bytes_max) {
  uint64_t bytes = 0;
  const bool is_more = __builtin_mul_overflow(a, b, &bytes) || bytes > bytes_max;
  return is_more ? bytes_max + 1 : bytes;
}
uint64_t sum(uint64_t a, uint64_t b, uint64_t bytes_max) { return std::min(a + b, bytes_max + 1); }

// Dimensions of 0 count as 1, so that no partial product exceeds the result.
uint64_t bytes_at_most(const std::vector<int64_t>& shape, std::size_t first, Dtype dtype,
                       uint64_t bytes_max) {
  uint64_t bytes = size_of(dtype);
  for (std::size_t i = first; i < shape.size(); ++i) {
    bytes = product(bytes, static_cast<uint64_t>(std::max<int64_t>(shape[i], 1)), bytes_max);
  }
  return bytes;
}

uint64_t row_bytes(const Descriptor& descriptor, std::size_t tensor) {
  const std::vector<int64_t>& shape = descriptor.shapes[tensor];
  uint64_t bytes = size_of(descriptor.dtype);
  for (std::size_t i = 1; i < shape.size(); ++i) bytes *= static_cast<uint64_t>(shape[i]);
  return bytes;
}

bool is_reduction_sound(const Descriptor& descriptor) {
  if (!is_reducible(descriptor.dtype, descriptor.op)) return false;
  if (descriptor.op == ReduceOp::average && is_integer(descriptor.dtype)) return false;
  const bool is_scaled = descriptor.prescale != 1.0 || descriptor.postscale != 1.0;
  return descriptor.dtype != Dtype::boolean || !is_scaled;
}

bool is_shape_sound(const Descriptor& descriptor, const std::vector<int64_t>& shape) {
  const bool is_open = row_of(descriptor.kind).first_may_differ && !shape.empty();
  if (is_open && shape.front() != -1) return false;
  return std::all_of(shape.begin() + (is_open ? 1 : 0), shape.end(),
                     [](int64_t dim) { return dim >= 0; });
}

}  // namespace

bool is_sound(const Descriptor& descriptor, int ranks, uint64_t bytes_max) {
  const KindRow& kind = row_of(descriptor.kind);
  const std::size_t tensors = descriptor.shapes.size();
  if (!descriptor.refusal.empty() || descriptor.kind == Kind::join) return false;
  if (kind.reduces && !is_reduction_sound(descriptor)) return false;
  if (descriptor.root.is_none() || descriptor.root.value() >= (kind.has_root ? ranks : 1))
    return false;
  if (descriptor.kind == Kind::barrier) return tensors == 0;
  if (tensors == 0 || (tensors > 1 && !kind.takes_groups)) return false;
  const bool is_cut = descriptor.kind == Kind::reducescatter || descriptor.kind == Kind::alltoall ||
                      descriptor.kind == Kind::scatter;
  uint64_t bytes = 0;
  for (const std::vector<int64_t>& shape : descriptor.shapes) {
    if (!is_shape_sound(descriptor, shape) || (is_cut && shape.empty())) return false;
    bytes = sum(bytes, bytes_at_most(shape, 0, descriptor.dtype, bytes_max), bytes_max);
  }
  return bytes <= bytes_max;
}

uint64_t bytes_of_own_rows(const Descriptor& descriptor, const std::vector<int64_t>& own, int ranks,
                           uint64_t bytes_max) {
  const bool is_split = descriptor.kind == Kind::alltoall || descriptor.kind == Kind::scatter;
  const bool is_one_for_all = descriptor.kind == Kind::alltoall && own.size() == 1;
  const auto times = static_cast<uint64_t>(is_one_for_all ? ranks : 1);
  uint64_t bytes = 0, all_rows = 0;  // all_rows also limits rows that have no bytes
  for (std::size_t i = 0; i < own.size(); ++i) {
    const uint64_t rows = product(static_cast<uint64_t>(own[i]), times, bytes_max);
    all_rows = sum(all_rows, rows, bytes_max);
    bytes =
        sum(bytes, product(rows, row_bytes(descriptor, is_split ? 0 : i), bytes_max), bytes_max);
  }
  if (all_rows > bytes_max) return all_rows;
  return bytes;
}

}  // namespace rdmacoll
