#include "operation/cut.h"

#include <algorithm>

namespace rdmacoll {
namespace {

std::size_t count_of_own_rows(const Descriptor& descriptor, SetRank rank, int ranks) {
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

// Absent splits mean equal parts.
bool is_all_one(const std::vector<int64_t>& splits) {
  return std::equal(splits.begin() + (splits.empty() ? 0 : 1), splits.end(), splits.begin());
}

int64_t even_share(int64_t rows, int rank, int ranks) {
  return rows / ranks + (rank < rows % ranks ? 1 : 0);
}

// Visits the rows without building a list, since plan mode compares them for every operation.
template <typename Visit>
void each_own_row(const Request& request, SetRank rank, int ranks, Visit visit) {
  const bool is_giver =
      request.kind == Kind::alltoall || (request.kind == Kind::scatter && rank == request.root);
  if (request.kind == Kind::allgather || request.kind == Kind::gather) {
    for (const TensorRef& tensor : request.tensors) {
      visit(tensor.dims.empty() ? 1 : tensor.dims.front());  // a scalar is one row
    }
  } else if (is_giver) {
    const int64_t rows = request.tensors.front().dims.front();
    if (request.kind == Kind::alltoall && is_all_one(request.splits)) return visit(rows / ranks);
    for (int64_t split : request.splits) visit(split);
    for (int part = 0; request.splits.empty() && part < ranks; ++part) {
      visit(even_share(rows, part, ranks));
    }
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

// The rows that all ranks send, by part and tensor.
RowTable given_rows(const Descriptor& descriptor, const RowTable& said, int ranks) {
  RowTable given;
  switch (descriptor.kind) {
    case Kind::allgather:
    case Kind::gather:
      return said;
    case Kind::scatter:
      for (int64_t rows : said[descriptor.root.index()]) given.push_back({rows});
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
  std::vector<int64_t> cut;
  for (int rank = 0; rank < ranks; ++rank) cut.push_back(even_share(rows, rank, ranks));
  return cut;
}

std::vector<int64_t> own_rows(const Request& request, SetRank rank, int ranks) {
  std::vector<int64_t> rows;
  each_own_row(request, rank, ranks, [&](int64_t number) { rows.push_back(number); });
  return rows;
}

bool are_own_rows(const std::vector<int64_t>& rows, const Request& request, SetRank rank,
                  int ranks) {
  std::size_t found = 0;
  bool are_equal = true;
  each_own_row(request, rank, ranks, [&](int64_t number) {
    are_equal = are_equal && found < rows.size() && rows[found] == number;
    ++found;
  });
  return are_equal && found == rows.size();
}

bool is_complete(const Descriptor& descriptor, const std::vector<int64_t>& own, SetRank rank,
                 int ranks) {
  const bool is_one_for_all = descriptor.kind == Kind::alltoall && own.size() == 1;
  return is_one_for_all || own.size() == count_of_own_rows(descriptor, rank, ranks);
}

SetRank incomplete_rank(const Descriptor& descriptor, const RowTable& said, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    const bool is_there = index < said.size();
    const RowTable::value_type own = is_there ? said[index] : RowTable::value_type();
    if (!is_complete(descriptor, own, SetRank(rank), ranks)) return SetRank(rank);
  }
  return SetRank();
}

int64_t Cut::output_rows(std::size_t tensor) const {
  int64_t sum = 0;
  for (int part = output.first; part < output.last; ++part) sum += rows[part][tensor];
  return sum;
}

Cut cut_of(const Descriptor& descriptor, const RowTable& said, SetRank rank, int ranks) {
  Cut cut;
  cut.row_bytes = row_bytes_of(descriptor);
  cut.rows = given_rows(descriptor, said, ranks);
  for (const std::vector<int64_t>& part : cut.rows) {
    cut.part_bytes_max = std::max(cut.part_bytes_max, bytes_of(part, cut.row_bytes));
  }
  const Cut::Span all{0, ranks}, mine{rank.value(), rank.value() + 1};
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
    default:
      RC_ASSERT(false, name_of(descriptor.kind));
  }
  return cut;
}

bool Exchange::is_even() const {
  const auto is_most = [this](int64_t rows) { return rows == most; };
  return std::all_of(given.begin(), given.end(), is_most) &&
         std::all_of(got.begin(), got.end(), is_most);
}

Cut exchange_cut(const Descriptor& descriptor, const Exchange& exchange) {
  Cut cut;
  cut.row_bytes = row_bytes_of(descriptor);
  for (int64_t rows : exchange.given) cut.rows.push_back({rows});
  for (int64_t rows : exchange.got) cut.rows.push_back({rows});
  cut.part_bytes_max = static_cast<uint64_t>(exchange.most) * cut.row_bytes.front();
  const auto ranks = static_cast<int>(exchange.given.size());
  cut.input = {0, ranks};
  cut.output = {ranks, 2 * ranks};
  return cut;
}

int64_t most_rows(const RowTable& said) {
  int64_t most = 0;
  for (const std::vector<int64_t>& numbers : said) {
    for (int64_t rows : numbers) most = std::max(most, rows);
  }
  return most;
}

bool columns_of(const RowTable& said, const std::vector<SetRank>& had,
                const std::vector<SetRank>& kept, RowTable& columns) {
  std::vector<std::size_t> places;
  for (SetRank rank : kept) {
    const auto found = std::lower_bound(had.begin(), had.end(), rank);
    places.push_back(static_cast<std::size_t>(found - had.begin()));
  }
  columns.clear();
  for (const std::vector<int64_t>& numbers : said) {
    std::vector<int64_t>& column = columns.emplace_back();
    if (numbers.size() == 1) {
      column = numbers;
    } else if (numbers.size() != had.size()) {
      return false;
    } else {
      for (std::size_t place : places) column.push_back(numbers[place]);
    }
  }
  return true;
}

uint64_t bytes_moved(const Descriptor& descriptor, const RowTable& said, int ranks) {
  const std::vector<uint64_t> row_bytes = row_bytes_of(descriptor);
  uint64_t bytes = 0;
  if (descriptor.kind == Kind::alltoall) {
    for (const std::vector<int64_t>& numbers : said) {
      const uint64_t each = row_bytes.front() * (numbers.size() == 1 ? ranks : 1);
      for (int64_t rows : numbers) bytes += static_cast<uint64_t>(rows) * each;
    }
    return bytes;
  }
  for (const std::vector<int64_t>& part : given_rows(descriptor, said, ranks)) {
    bytes += bytes_of(part, row_bytes);
  }
  return bytes;
}

}  // namespace rdmacoll
