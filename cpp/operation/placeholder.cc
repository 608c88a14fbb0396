#include "operation/placeholder.h"

#include <numeric>

namespace rdmacoll {

Request request_like(const Descriptor& descriptor, const std::vector<int64_t>& own_rows,
                     SetRank rank, int ranks) {
  Request request;
  static_cast<Terms&>(request) = descriptor;
  for (const std::vector<int64_t>& shape : descriptor.shapes) {
    request.tensors.push_back({nullptr, nullptr, shape, ""});
  }
  const bool is_split = descriptor.kind == Kind::alltoall || descriptor.kind == Kind::scatter;
  if (is_split && (descriptor.kind == Kind::alltoall || rank == descriptor.root)) {
    request.splits = own_rows;
    if (own_rows.size() == 1) request.splits.resize(static_cast<std::size_t>(ranks), own_rows[0]);
  }
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    std::vector<int64_t>& dims = request.tensors[i].dims;
    if (!row_of(descriptor.kind).first_may_differ || dims.empty()) continue;
    dims.front() = is_split
                       ? std::accumulate(request.splits.begin(), request.splits.end(), int64_t{0})
                       : own_rows[i];
  }
  return request;
}

void lay_in(Request& request, std::byte* memory) {
  for (TensorRef& tensor : request.tensors) {
    tensor.input = tensor.output = memory;
    memory += tensor.bytes(request.dtype);
  }
}

}  // namespace rdmacoll
