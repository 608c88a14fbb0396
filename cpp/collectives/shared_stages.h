// Stages that several algorithms share: ring_sums.cc, ring_copies.cc, direct_sums.cc.
#pragma once

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/traffic.h"

namespace rdmacoll {

// Reduce-scatter around the ring: p-1 rounds, after which the output has the whole sum of this
// rank's part. `partial` is the place for partial sums of other parts: the output, or scratch if
// the rank has no output for them.
void ring_sums(Builder& program, const Shape& shape, Space partial);
void ring_sums(Traffic& traffic, Space partial);

// Allgather around the ring. Every part begins in the output of its own rank.
void ring_copies(Builder& program, const Shape& shape);
// `are_sums`: the parts are sums that ring_sums() has made in the output.
void ring_copies(Traffic& traffic, bool are_sums);

// This rank collects a part from all ranks and reduces once, in canonical order, into `sum`.
void collected_sum(Builder& program, const Shape& shape, int part, const Slice& sum);

// Direct reduce-scatter: rank k collects part k from all ranks and reduces once, in canonical
// order, into `sum`.
void direct_sums(Builder& program, const Shape& shape, const Slice& sum);
void direct_sums(Traffic& traffic);

// Direct allgather: each rank sends its part of the output to all ranks.
void direct_copies(Builder& program, const Shape& shape);
void direct_copies(Traffic& traffic);

}  // namespace rdmacoll
