#include "engine/kind.h"

#include <array>

#include "base/status.h"

namespace rdmacoll {
namespace {

// By number.
constexpr std::array kKinds{
    //      name            reduces root   differ result groups
    KindRow{"allreduce", true, false, false, false, true},
    KindRow{"broadcast", false, true, false, false, true},
    KindRow{"allgather", false, false, true, true, true},
    KindRow{"barrier", false, false, false, false, false},
    KindRow{"reducescatter", true, false, false, true, true},
    KindRow{"alltoall", false, false, true, true, false},
    KindRow{"reduce", true, true, false, false, true},
    KindRow{"gather", false, true, true, true, false},
    KindRow{"scatter", false, true, true, true, false},
};

}  // namespace

bool is_known(Kind kind) { return static_cast<std::size_t>(kind) < kKinds.size(); }

const KindRow& row_of(Kind kind) {
  RC_ASSERT(is_known(kind));
  return kKinds[static_cast<std::size_t>(kind)];
}

}  // namespace rdmacoll
