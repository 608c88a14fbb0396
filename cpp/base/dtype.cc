#include "base/dtype.h"

#include <array>

#include "base/status.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

enum class Kind : uint8_t { integer, float16, wide_float, moved_only };

struct DtypeRow {
  std::string_view name;
  Kind kind;
};

// By number, see Dtype. moved_only: broadcast and allgather take it, no reduction does.
constexpr std::array<DtypeRow, kDtypes> kDtypeRows = {{
    {"uint8", Kind::integer},
    {"int8", Kind::integer},
    {"int32", Kind::integer},
    {"int64", Kind::integer},
    {"float16", Kind::float16},
    {"bfloat16", Kind::float16},
    {"float32", Kind::wide_float},
    {"float64", Kind::wide_float},
    {"bool", Kind::moved_only},
    {"uint16", Kind::moved_only},
    {"uint32", Kind::moved_only},
    {"uint64", Kind::moved_only},
    {"int16", Kind::moved_only},
    {"complex64", Kind::moved_only},
    {"complex128", Kind::moved_only},
}};

constexpr std::array<std::string_view, kReduceOps> kReduceOpNames = {"sum", "average", "min", "max",
                                                                     "product"};

const DtypeRow& row(Dtype dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  RC_ASSERT(index < kDtypeRows.size(), cat("dtype ", index));
  return kDtypeRows[index];
}

}  // namespace

std::string_view name_of(Dtype dtype) { return row(dtype).name; }
bool is_reducible(Dtype dtype) { return row(dtype).kind != Kind::moved_only; }
bool is_16_bit_float(Dtype dtype) { return row(dtype).kind == Kind::float16; }

bool is_integer(Dtype dtype) {
  switch (dtype) {
    case Dtype::uint8:
    case Dtype::int8:
    case Dtype::int32:
    case Dtype::int64:
    case Dtype::uint16:
    case Dtype::uint32:
    case Dtype::uint64:
    case Dtype::int16:
      return true;
    default:
      return false;
  }
}

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

std::optional<ReduceOp> reduce_op_from(std::string_view name) {
  for (std::size_t i = 0; i < kReduceOpNames.size(); ++i) {
    if (kReduceOpNames[i] == name) return static_cast<ReduceOp>(i);
  }
  return std::nullopt;
}

}  // namespace rdmacoll
