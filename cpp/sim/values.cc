#include "sim/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/text.h"
#include "operation/cut.h"
#include "sim/elements.h"

namespace rdmacoll {
namespace {

int64_t product(const std::vector<int64_t>& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

// The value of element `i` of a rank's input. Values are integers, and small enough that all
// results are exact in their dtype, for up to 20 ranks. bfloat16 is exact up to 256.
int given(const SimOperation& operation, int rank, int64_t i) {
  const auto number =
      static_cast<int>((i * 7 + rank * 13 + static_cast<int64_t>(operation.shapes.size())) % 31);
  // No factor is 1, so a rank that is missing or counted twice changes the product.
  if (operation.op == ReduceOp::product) {
    if ((rank + i) % 4 != 0) return -1;
    return number % 2 == 0 ? 3 : -3;
  }
  switch (operation.dtype) {
    case Dtype::boolean:
      return number % 2;
    case Dtype::uint8:
    case Dtype::uint16:
      return number / 5;
    case Dtype::int8:
    case Dtype::bfloat16:
      return number / 5 - 3;
    default:
      return number - 9;
  }
}

double reduced(const SimOperation& operation, int ranks, int64_t i) {
  double sum = 0, multiplied = 1, least = 1e9, most = -1e9;
  for (int rank = 0; rank < ranks; ++rank) {
    if (!operation.is_given_by(rank, ranks)) continue;
    const double value = given(operation, rank, i) * operation.prescale;
    sum += value;
    multiplied *= value;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  switch (operation.op) {
    case ReduceOp::min:
      return least;
    case ReduceOp::max:
      return most;
    case ReduceOp::average:
      return sum / ranks;
    case ReduceOp::product:
      return multiplied;
    default:
      return sum;
  }
}

// Appends rows [first, first + count) of the input of `rank`.
void append_given(const SimOperation& operation, int rank, int64_t first, int64_t count,
                  int64_t row, std::vector<double>& values) {
  for (int64_t i = first * row; i < (first + count) * row; ++i) {
    values.push_back(given(operation, rank, i));
  }
}

// The number of rows in the parts before part `rank`.
int64_t rows_before(const std::vector<int64_t>& rows, int rank) {
  return std::accumulate(rows.begin(), rows.begin() + rank, int64_t{0});
}

std::vector<int64_t> dims_of(const SimOperation& operation, int rank, std::size_t tensor) {
  std::vector<int64_t> dims = operation.shapes[tensor];
  if (!row_of(operation.kind).first_may_differ) return dims;
  const std::vector<int64_t>& rows = operation.rows[rank];
  const bool is_split = operation.kind == Kind::alltoall || operation.kind == Kind::scatter;
  const int64_t first =
      is_split ? std::accumulate(rows.begin(), rows.end(), int64_t{0}) : rows[tensor];
  dims.insert(dims.begin(), first);
  return dims;
}

// The expected result of `rank` for `tensor`. Empty if the result is not checked.
std::vector<double> expected(const SimOperation& operation, int ranks, int rank,
                             std::size_t tensor) {
  const std::vector<int64_t>& shape = operation.shapes[tensor];
  const int64_t row = product(shape);  // elements of one row if the first dimension may differ
  const bool is_root = rank == operation.root;
  std::vector<double> values;
  switch (operation.kind) {
    case Kind::reduce:
      if (!is_root) break;
      [[fallthrough]];
    case Kind::allreduce:
      for (int64_t i = 0; i < row; ++i) values.push_back(reduced(operation, ranks, i));
      break;
    case Kind::broadcast:
      append_given(operation, operation.root, 0, 1, row, values);
      break;
    case Kind::gather:
      if (!is_root) break;
      [[fallthrough]];
    case Kind::allgather:
      for (int r = 0; r < ranks; ++r) {
        append_given(operation, r, 0, operation.rows[r][tensor], row, values);
      }
      break;
    case Kind::reducescatter: {
      const std::vector<int64_t> cut = even_rows(shape.front(), ranks);
      const int64_t elements = shape.front() == 0 ? 0 : row / shape.front();
      const int64_t first = rows_before(cut, rank) * elements;
      for (int64_t i = first; i < first + cut[rank] * elements; ++i) {
        values.push_back(reduced(operation, ranks, i));
      }
      break;
    }
    case Kind::scatter: {
      const std::vector<int64_t>& splits = operation.rows[operation.root];
      append_given(operation, operation.root, rows_before(splits, rank), splits[rank], row, values);
      break;
    }
    case Kind::alltoall:
      for (int r = 0; r < ranks; ++r) {
        const std::vector<int64_t>& splits = operation.rows[r];
        append_given(operation, r, rows_before(splits, rank), splits[rank], row, values);
      }
      break;
    case Kind::barrier:
    case Kind::join:
      break;
  }
  return values;
}

}  // namespace

Request sim_request(const SimOperation& operation, int rank, bool in_place, SimMemory& memory) {
  Request request;
  request.set = static_cast<uint32_t>(operation.set);
  request.kind = operation.kind;
  request.dtype = operation.dtype;
  request.op = operation.op;
  request.root = SetRank(operation.root);
  request.name = operation.name;
  request.prescale = operation.prescale;
  for (std::size_t t = 0; t < operation.shapes.size(); ++t, in_place = !in_place) {
    TensorRef tensor{nullptr, nullptr, dims_of(operation, rank, t), ""};
    const auto bytes = static_cast<std::size_t>(tensor.elements()) * size_of(operation.dtype);
    std::vector<std::byte>& input = memory.inputs.emplace_back(bytes);
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      set_element(operation.dtype, input.data() + i * size_of(operation.dtype),
                  given(operation, rank, i));
    }
    const bool has_output = !in_place && !row_of(operation.kind).makes_result;
    std::vector<std::byte>& output = memory.outputs.emplace_back(has_output ? bytes : 0);
    tensor.input = input.data();
    tensor.output = has_output ? output.data() : input.data();
    request.tensors.push_back(tensor);
  }
  if (operation.kind == Kind::alltoall || operation.kind == Kind::scatter) {
    request.splits = operation.rows[rank];
  }
  return request;
}

std::string sim_error(const SimOperation& operation, int ranks, int rank, const Operation& ended,
                      const SimGpus* gpus) {
  for (std::size_t t = 0; t < operation.shapes.size(); ++t) {
    const std::vector<double> wanted = expected(operation, ranks, rank, t);
    const std::byte* got = ended.request.tensors[t].output;
    if (row_of(operation.kind).makes_result) {
      const Operation::Result& result = ended.results[t];
      got = result.memory.get();
      if (result.bytes != wanted.size() * size_of(operation.dtype)) {
        return cat(result.bytes, " bytes for ", wanted.size(), " elements");
      }
    }
    const Gpu gpu = ended.request.tensors[t].gpu;
    if (gpu != kHost && !wanted.empty()) {
      got = gpus->bytes_of(gpu, got, wanted.size() * size_of(operation.dtype));
    }
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double is = element(operation.dtype, got + i * size_of(operation.dtype));
      const double should = as_stored(operation.dtype, wanted[i]);
      if (std::abs(is - should) > 1e-5 * std::max(1.0, std::abs(should))) {
        return cat(name_of(operation.kind), " tensor ", t, " element ", i, ": ", is, " instead of ",
                   should);
      }
    }
  }
  if (operation.kind != Kind::alltoall) return "";
  for (int giver = 0; giver < ranks; ++giver) {
    int64_t received = 0;
    std::memcpy(&received, ended.results[1].memory.get() + giver * sizeof received,
                sizeof received);
    if (received != operation.rows[giver][rank]) {
      return cat("alltoall says ", received, " rows from rank ", giver);
    }
  }
  return "";
}

}  // namespace rdmacoll
