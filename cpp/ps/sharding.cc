#include "ps/sharding.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "ps/fnv.h"

namespace rdmacoll::ps {
namespace {

uint64_t product(std::span<const int64_t> dims) {
  return std::accumulate(dims.begin(), dims.end(), uint64_t{1}, [](uint64_t all, int64_t dim) {
    return all * static_cast<uint64_t>(dim);
  });
}

// Joins adjacent shares on one server.
std::vector<Share> joined(const std::vector<Share>& cut, int servers) {
  std::vector<Share> shares;
  std::vector<uint64_t> places(static_cast<std::size_t>(servers), 0);
  for (const Share& share : cut) {
    uint64_t& place = places[static_cast<std::size_t>(share.server)];
    if (shares.empty() || shares.back().server != share.server) {
      shares.push_back({share.server, share.first, 0, place});
    }
    shares.back().elements += share.elements;
    place += share.elements;
  }
  return shares;
}

}  // namespace

uint64_t VariableSpec::elements() const { return product(dims); }

uint64_t VariableSpec::row_elements() const {
  return by_rows ? product(std::span(dims).subspan(1)) : 1;
}

Status check(const VariableSpec& spec) {
  if (spec.name.empty() || spec.name.size() > kVariableNameBytesMax) {
    return {Code::invalid, cat("a variable's name has ", spec.name.size(), " bytes: give it 1 to ",
                               kVariableNameBytesMax, ".")};
  }
  if (spec.dtype != Dtype::float32 && spec.dtype != Dtype::float64) {
    return {Code::invalid, cat("variable ", spec.name, " is of ", name_of(spec.dtype),
                               ": servers update float32 and float64. Keep it in one of these.")};
  }
  if (spec.dims.size() > kVariableDimsMax) {
    return {Code::invalid, cat("variable ", spec.name, " has ", spec.dims.size(),
                               " dimensions: at most ", kVariableDimsMax, " are stored.")};
  }
  uint64_t elements = 1;
  for (const int64_t dim : spec.dims) {
    // A dimension of 0 must not hide absurd ones, since partial products are used, too.
    const auto factor = static_cast<uint64_t>(std::max<int64_t>(dim, 1));
    if (dim < 0 || factor > kVariableElementsMax / elements) {
      return {Code::invalid, cat("variable ", spec.name, " has shape (", join(spec.dims, ", "),
                                 "): sizes from 0 on, and at most 2^44 elements are stored.")};
    }
    elements *= factor;
  }
  if (spec.by_rows && spec.dims.empty()) {
    return {Code::invalid,
            cat("variable ", spec.name, " is a scalar, which has no rows: push it as it is.")};
  }
  return {};
}

Sharding::Sharding(int servers, std::size_t share_bytes)
    : share_bytes_(share_bytes), bytes_(static_cast<std::size_t>(servers), 0) {
  RC_ASSERT(servers >= 1 && share_bytes >= sizeof(double));
}

std::vector<Share> Sharding::cut(const VariableSpec& spec) const {
  const uint64_t row = spec.row_elements();
  const uint64_t elements = spec.elements();
  if (elements == 0) return {};
  const uint64_t rows = elements / row;
  uint64_t rows_each = std::max<uint64_t>(1, share_bytes_ / (row * size_of(spec.dtype)));
  // Rows are requested one by one, so every server should have some.
  if (spec.by_rows) rows_each = std::min(rows_each, (rows + bytes_.size() - 1) / bytes_.size());
  std::vector<Share> shares;
  for (uint64_t at = 0; at < rows; at += rows_each) {
    shares.push_back({0, at * row, std::min(rows_each, rows - at) * row, 0});
  }
  return shares;
}

void Sharding::add(std::span<const VariableSpec> specs) {
  const std::size_t known = variables_.size();
  std::vector<std::vector<Share>> cuts;
  struct Item {
    Share* share;
    uint64_t bytes;
  };
  std::vector<Item> items;
  for (const VariableSpec& spec : specs) {
    variables_.push_back({spec, {}});
    cuts.push_back(cut(spec));
    for (Share& share : cuts.back()) {
      items.push_back({&share, share.elements * size_of(spec.dtype)});
    }
  }
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.bytes > b.bytes; });
  for (const Item& item : items) {
    const auto least = std::min_element(bytes_.begin(), bytes_.end());
    item.share->server = static_cast<int>(least - bytes_.begin());
    *least += item.bytes;
  }
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    variables_[known + i].shares = joined(cuts[i], servers());
  }
}

const std::vector<Share>& Sharding::shares(std::size_t variable) const {
  RC_ASSERT(variable < variables_.size(), cat("variable ", variable));
  return variables_[variable].shares;
}

uint64_t Sharding::elements_on(std::size_t variable, int server) const {
  uint64_t elements = 0;
  for (const Share& share : shares(variable)) {
    if (share.server == server) elements += share.elements;
  }
  return elements;
}

uint64_t Sharding::mark_of(std::size_t variable, int server) const {
  uint64_t mark = kFnvBasis;
  for (const Share& share : shares(variable)) {
    if (share.server != server) continue;
    for (const uint64_t word : {share.first, share.elements}) mark = fnv_with(mark, word);
  }
  return mark;
}

std::string Sharding::text() const {
  std::string lines;
  for (int server = 0; server < servers(); ++server) {
    std::vector<std::string> parts;
    for (const Variable& variable : variables_) {
      for (const Share& share : variable.shares) {
        if (share.server != server) continue;
        const bool is_whole = variable.shares.size() == 1;
        parts.push_back(is_whole ? variable.spec.name
                                 : cat(variable.spec.name, "[", share.first, ":",
                                       share.first + share.elements, "]"));
      }
    }
    lines += cat("server ", server, ": ", bytes_text(bytes_on(server)), ": ",
                 parts.empty() ? "nothing" : join(parts, ", "), "\n");
  }
  return lines;
}

}  // namespace rdmacoll::ps
