#include "engine/cut.h"

#include <algorithm>

namespace rdmacoll {
namespace {

std::size_t count_of_own_rows(const Descriptor& descriptor, int rank, int ranks) {
  switch (descriptor.kind) {
    case Kind::allgather:
    case Kind::gather:
      return descriptor.shapes.size();
    case Kind::alltoall:
      return static_cast<std::size_t>(ranks);
    case Kind::scatter:
      return rank == descriptor.root ? static_cast<std::size_t>(ranks) : 0;
    default:
      return 0;
  }
}

std::vector<uint64_t> row_bytes_of(const Descriptor& descriptor) {
  std::vector<uint64_t> bytes;
  for (const std::vector<int64_t>& shape : descriptor.shapes) {
    bytes.push_back(size_of(descriptor.dtype));
    for (std::size_t i = 1; i < shape.size(); ++i) bytes.back() *= static_cast<uint64_t>(shape[i]);
  }
  return bytes;
}

// All that is given, by part and tensor; in an alltoall by giver, then by who gets it.
RowTable given_rows(const Descriptor& descriptor, const RowTable& said, int ranks) {
  RowTable given;
  switch (descriptor.kind) {
    case Kind::allgather:
    case Kind::gather:
      return said;
    case Kind::alltoall:
      for (const std::vector<int64_t>& splits : said) {
        for (int64_t rows : splits) given.push_back({rows});
      }
      break;
    case Kind::scatter:
      for (int64_t rows : said[descriptor.root]) given.push_back({rows});
      break;
    case Kind::reducescatter:
      given.resize(ranks);
      for (const std::vector<int64_t>& shape : descriptor.shapes) {
        const std::vector<int64_t> rows = even_rows(shape.front(), ranks);
        for (int rank = 0; rank < ranks; ++rank) given[rank].push_back(rows[rank]);
      }
      break;
    default:
      RC_ASSERT(false, name_of(descriptor.kind));
  }
  return given;
}

uint64_t bytes_of(const std::vector<int64_t>& part, const std::vector<uint64_t>& row_bytes) {
  uint64_t bytes = 0;
  for (std::size_t tensor = 0; tensor < part.size(); ++tensor) {
    bytes += static_cast<uint64_t>(part[tensor]) * row_bytes[tensor];
  }
  return bytes;
}

}  // namespace

std::vector<int64_t> even_rows(int64_t rows, int ranks) {
  std::vector<int64_t> cut(ranks, rows / ranks);
  for (int64_t rank = 0; rank < rows % ranks; ++rank) ++cut[static_cast<std::size_t>(rank)];
  return cut;
}

std::vector<int64_t> own_rows(const Request& request, int rank, int ranks) {
  std::vector<int64_t> rows;
  switch (request.kind) {
    case Kind::allgather:
    case Kind::gather:  // a scalar is one row
      for (const TensorRef& tensor : request.tensors) {
        rows.push_back(tensor.dims.empty() ? 1 : tensor.dims.front());
      }
      return rows;
    case Kind::scatter:
      if (rank != request.root) return {};
      [[fallthrough]];
    case Kind::alltoall:
      return request.splits.empty() ? even_rows(request.tensors.front().dims.front(), ranks)
                                    : request.splits;
    default:
      return {};
  }
}

int incomplete_rank(const Descriptor& descriptor, const RowTable& said, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    const std::size_t count = index < said.size() ? said[index].size() : 0;
    if (count != count_of_own_rows(descriptor, rank, ranks)) return rank;
  }
  return -1;
}

int64_t Cut::output_rows(std::size_t tensor) const {
  int64_t sum = 0;
  for (int part = output.first; part < output.last; ++part) sum += rows[part][tensor];
  return sum;
}

Cut cut_of(const Descriptor& descriptor, const RowTable& said, int rank, int ranks) {
  Cut cut;
  cut.row_bytes = row_bytes_of(descriptor);
  cut.rows = given_rows(descriptor, said, ranks);
  for (const std::vector<int64_t>& part : cut.rows) {
    cut.part_bytes_max = std::max(cut.part_bytes_max, bytes_of(part, cut.row_bytes));
  }
  const Cut::Span all{0, ranks}, mine{rank, rank + 1};
  const bool is_root = rank == descriptor.root;
  switch (descriptor.kind) {
    case Kind::allgather:
      cut.input = mine;
      cut.output = all;
      break;
    case Kind::gather:
      cut.input = mine;
      if (is_root) cut.output = all;
      break;
    case Kind::reducescatter:
      cut.input = all;
      cut.output = mine;
      break;
    case Kind::scatter:
      if (is_root) cut.input = all;
      cut.output = mine;
      break;
    default: {  // alltoall
      RowTable own;
      for (int peer = 0; peer < ranks; ++peer) own.push_back(cut.rows[rank * ranks + peer]);
      for (int peer = 0; peer < ranks; ++peer) own.push_back(cut.rows[peer * ranks + rank]);
      cut.rows = std::move(own);
      cut.input = all;
      cut.output = {ranks, 2 * ranks};
    }
  }
  return cut;
}

uint64_t bytes_moved(const Descriptor& descriptor, const RowTable& said, int ranks) {
  const std::vector<uint64_t> row_bytes = row_bytes_of(descriptor);
  uint64_t bytes = 0;
  for (const std::vector<int64_t>& part : given_rows(descriptor, said, ranks)) {
    bytes += bytes_of(part, row_bytes);
  }
  return bytes;
}

}  // namespace rdmacoll
