#include "operation/kind.h"

#include <array>

#include "base/status.h"

namespace rdmacoll {
namespace {

using Result = AlgorithmRow::Result;

// Indexed by Kind.
constexpr std::array kKinds{
    //      name            reduces root   differ makes  groups
    KindRow{"allreduce", true, false, false, false, true, Result::sum},
    KindRow{"broadcast", false, true, false, false, true, Result::root_value},
    KindRow{"allgather", false, false, true, true, true, Result::concatenation},
    KindRow{"barrier", false, false, false, false, false, Result::sum},
    KindRow{"reducescatter", true, false, false, true, true, Result::own_sum},
    KindRow{"alltoall", false, false, true, true, false, Result::exchange},
    KindRow{"reduce", true, true, false, false, true, Result::root_sum},
    KindRow{"gather", false, true, true, true, false, Result::root_concatenation},
    KindRow{"scatter", false, true, true, true, false, Result::own_value},
    KindRow{"join", false, false, false, false, false, Result::sum},
};

}  // namespace

bool is_known(Kind kind) { return static_cast<std::size_t>(kind) < kKinds.size(); }

const KindRow& row_of(Kind kind) {
  RC_ASSERT(is_known(kind));
  return kKinds[static_cast<std::size_t>(kind)];
}

}  // namespace rdmacoll
