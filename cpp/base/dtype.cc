#include "base/dtype.h"

#include <array>

#include "base/status.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

constexpr std::array<std::string_view, kReduceOps> kReduceOpNames = {"sum", "average", "min", "max",
                                                                     "product"};

}  // namespace

std::string_view name_of(ReduceOp op) {
  const auto index = static_cast<std::size_t>(op);
  RC_ASSERT(index < kReduceOpNames.size(), cat("reduction operator ", index));
  return kReduceOpNames[index];
}

std::optional<Dtype> dtype_from(std::string_view name) {
  for (std::size_t i = 0; i < kDtypeRows.size(); ++i) {
    if (kDtypeRows[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

}  // namespace rdmacoll
