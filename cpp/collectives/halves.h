// Halves: what several algorithms are made of.
#pragma once

#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace rdmacoll {

// Reduce-scatter around the ring: p-1 rounds, and this rank has the whole sum of its own part in
// the output. `partial` is where the sums of other parts are made on their way: in the output, or
// in scratch where a rank has none for them.
void ring_sums(Builder& program, const Shape& shape, Space partial);

// Allgather around the ring: every part begins in the output of its own rank.
void ring_copies(Builder& program, const Shape& shape);

// Direct reduce-scatter: rank k collects part k from everybody and reduces once, in canonical
// order, into `sum`.
void direct_sums(Builder& program, const Shape& shape, const Slice& sum);

}  // namespace rdmacoll
