// The algorithms by name, for tests. Each number is the one on the wire, and does not change.
#pragma once

#include "collectives/algorithms.h"

namespace rdmacoll::named {

inline constexpr Algorithm ring{1}, direct{2}, recursive_doubling{3}, binomial_broadcast{4},
    ring_allgather{5}, halving_doubling{6}, two_level{7}, pipelined_tree{8}, doubling_allgather{9},
    ring_reduce_scatter{10}, direct_reduce_scatter{11}, pairwise_alltoall{12}, binomial_reduce{13},
    direct_reduce{14}, direct_gather{15}, direct_scatter{16}, bruck_alltoall{17},
    parameter_server{18}, one_shot{19}, flat_broadcast{20}, flat_reduce{21}, direct_allgather{22},
    leaders{23}, write_back{24};

}  // namespace rdmacoll::named
