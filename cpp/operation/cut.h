// How the rows (the first dimension) of an operation are cut if ranks send or receive different
// numbers of rows. Pure: computed from the descriptor, which is equal on all ranks, and the row
// counts of each rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "operation/operation.h"

namespace rdmacoll {

// Row counts. Either by rank, as own_rows() returns them, or by part and tensor.
using RowTable = std::vector<std::vector<int64_t>>;
// Shared by a plan, the batches that it starts, and their recipes. Equal pointers mean equal rows.
using RowsRef = std::shared_ptr<const RowTable>;

// Cuts `rows` into one part for each rank. The first parts have one more row if the cut is uneven.
std::vector<int64_t> even_rows(int64_t rows, int ranks);

// The row counts that only this rank knows and all ranks need.
//
// Allgather and gather: the rows of each tensor that this rank sends. Alltoall: the rows that it
// sends to each rank, or one number if all are equal. Scatter: the root's rows for each rank. Other
// ranks of a scatter, and other kinds, have none.
std::vector<int64_t> own_rows(const Request& request, SetRank rank, int ranks);
// Whether `rows` equals own_rows() of this request.
bool are_own_rows(const std::vector<int64_t>& rows, const Request& request, SetRank rank,
                  int ranks);
// Whether `own` has as many row counts as this rank must send.
bool is_complete(const Descriptor& descriptor, const std::vector<int64_t>& own, SetRank rank,
                 int ranks);
// The first rank whose row counts are incomplete, or none.
SetRank incomplete_rank(const Descriptor& descriptor, const RowTable& said, int ranks);

// The parts, numbered as algorithms name them: by rank, from 0 to p-1. In an alltoall the parts
// that this rank sends come first, then the parts that it receives.
struct Cut {
  struct Span {  // parts [first, last)
    int first = 0;
    int last = 0;
  };
  RowTable rows;                    // by part and tensor
  std::vector<uint64_t> row_bytes;  // by tensor
  Span input, output;               // the parts of each input and output tensor, in order
  uint64_t part_bytes_max = 0;      // the maximum over all ranks, so that all cut equal segments

  int64_t output_rows(std::size_t tensor) const;
};
Cut cut_of(const Descriptor& descriptor, const RowTable& said, SetRank rank, int ranks);

// The row counts of an alltoall for one rank. `given`: the rows that it sends to each rank. `got`:
// the rows that it receives from each rank. `most`: the maximum over all pairs of ranks.
struct Exchange {
  std::vector<int64_t> given, got;
  int64_t most = 0;

  bool is_even() const;  // all pairs of ranks exchange the same number of rows
};
Cut exchange_cut(const Descriptor& descriptor, const Exchange& exchange);
int64_t most_rows(const RowTable& said);
// Selects the row counts of the receivers `kept` from a table of the receivers `had`. Both lists
// ascend. Returns false if a row of the table does not fit `had`.
bool columns_of(const RowTable& said, const std::vector<SetRank>& had,
                const std::vector<SetRank>& kept, RowTable& columns);

// The bytes that all ranks send together. The choice of an algorithm depends on it.
uint64_t bytes_moved(const Descriptor& descriptor, const RowTable& said, int ranks);

}  // namespace rdmacoll
