// How the rows of an operation (along the first dimension) are cut, where ranks give or get
// different numbers of them. Pure: from the descriptor, which is the same everywhere, and what each
// rank said.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "operation/operation.h"

namespace rdmacoll {

// Numbers of rows: by rank, what each has said of them (own_rows); or by part and tensor.
using RowTable = std::vector<std::vector<int64_t>>;
// Shared by a plan, the batches that it starts and their recipes, which are told by it whether they
// are of the same rows.
using RowsRef = std::shared_ptr<const RowTable>;

// So many for each rank; the first ones have one more.
std::vector<int64_t> even_rows(int64_t rows, int ranks);

// What this rank alone knows and others have to: how many rows of each tensor it gives (allgather,
// gather), or how many to each rank (alltoall, where all get as many one number; scatter at the
// root). The others say nothing.
std::vector<int64_t> own_rows(const Request& request, int rank, int ranks);
// Whether these are they.
bool are_own_rows(const std::vector<int64_t>& rows, const Request& request, int rank, int ranks);
// Whether these are as many numbers as this rank should say.
bool is_complete(const Descriptor& descriptor, const std::vector<int64_t>& own, int rank,
                 int ranks);
// The first rank that has not said so many, or -1.
int incomplete_rank(const Descriptor& descriptor, const RowTable& said, int ranks);

// Parts as the algorithms name them: those of rank 0 to p-1; in an alltoall first those that this
// rank gives, then those that it gets.
struct Cut {
  struct Span {  // parts [first, last)
    int first = 0;
    int last = 0;
  };
  RowTable rows;                    // by part and tensor
  std::vector<uint64_t> row_bytes;  // by tensor
  Span input, output;               // what each tensor of the caller is made of, part after part
  uint64_t part_bytes_max = 0;      // of any rank: all cut their segments alike

  int64_t output_rows(std::size_t tensor) const;
};
Cut cut_of(const Descriptor& descriptor, const RowTable& said, int rank, int ranks);

// An alltoall has as many numbers as pairs of ranks, and each rank needs those of its own: what it
// gives to each, what it gets from each, and the most that anybody gives to anybody.
struct Exchange {
  std::vector<int64_t> given, got;
  int64_t most = 0;

  bool is_even() const;  // all give all as much
};
Cut exchange_cut(const Descriptor& descriptor, const Exchange& exchange);
int64_t most_rows(const RowTable& said);
// By giver, the numbers for the ranks `kept` out of those for `had`; both ascend. False: they are
// not numbers for `had`.
bool columns_of(const RowTable& said, const std::vector<int>& had, const std::vector<int>& kept,
                RowTable& columns);

// Of all that is given: what a choice of algorithms goes by.
uint64_t bytes_moved(const Descriptor& descriptor, const RowTable& said, int ranks);

}  // namespace rdmacoll
