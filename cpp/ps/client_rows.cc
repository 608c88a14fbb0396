// Pushes and pulls of single rows.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/text.h"
#include "ps/client.h"

namespace rdmacoll::ps {

Status Client::check_row(const VariableSpec& spec) const {
  const uint64_t row_bytes = spec.row_elements() * size_of(spec.dtype);
  if (!spec.by_rows || spec.elements() == 0) return {};
  const std::size_t most = options_.chunk_bytes - sizeof(int64_t);
  if (row_bytes <= most) return {};
  return {Code::invalid, cat("a row of variable ", spec.name, " has ", row_bytes,
                             " bytes, and a transfer of rows at most ", most,
                             ": make its rows shorter, or its gradient dense (declared without "
                             "by_rows).")};
}

Status Client::check_rows(uint32_t variable, std::span<const int64_t> rows) const {
  const VariableSpec& spec = specs_[variable];
  if (!spec.by_rows) {
    return {Code::invalid,
            cat("variable ", spec.name,
                " was not declared as one that is pushed and pulled by rows: declare "
                "it so, or move it whole.")};
  }
  for (const int64_t row : rows) {
    if (row < 0 || row >= spec.dims[0]) {
      return {Code::invalid, cat("row ", row, " of variable ", spec.name, ": it has rows 0 to ",
                                 spec.dims[0] - 1, ".")};
    }
  }
  if (rows.size() > UINT32_MAX) {
    return {Code::invalid, cat(rows.size(), " rows at once: move fewer than 2^32.")};
  }
  return {};
}

namespace {

// The rows of one server, ascending: by their number on the server, and in the variable.
struct ServerRows {
  std::vector<int64_t> there, here;
};

std::vector<ServerRows> split(std::span<const int64_t> rows, const std::vector<Share>& shares,
                              uint64_t row_elements, std::size_t servers) {
  std::vector<int64_t> once(rows.begin(), rows.end());
  std::sort(once.begin(), once.end());
  once.erase(std::unique(once.begin(), once.end()), once.end());
  std::vector<ServerRows> split(servers);
  auto share = shares.begin();
  for (const int64_t row : once) {
    const uint64_t first = static_cast<uint64_t>(row) * row_elements;
    while (share->first + share->elements <= first) ++share;
    ServerRows& of = split[static_cast<std::size_t>(share->server)];
    of.there.push_back(static_cast<int64_t>((share->place + first - share->first) / row_elements));
    of.here.push_back(row);
  }
  return split;
}

template <typename T>
void add(std::byte* sum, const std::byte* one, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    reinterpret_cast<T*>(sum)[i] += reinterpret_cast<const T*>(one)[i];
  }
}

}  // namespace

Status Client::push_rows(uint32_t variable, std::span<const int64_t> rows,
                         const std::byte* gradients, CallRef& call, std::optional<double> rate) {
  RC_RETURN_IF_ERROR(check_rows(variable, rows));
  call = new_call();
  give_rows(variable, rows, gradients, rate, call);
  return {};
}

Status Client::pull_rows(uint32_t variable, std::span<const int64_t> rows, std::byte* values,
                         CallRef& call) {
  RC_RETURN_IF_ERROR(check_rows(variable, rows));
  call = new_call();
  take_rows(variable, rows, values, call);
  return {};
}

// Sends two requests, since a server answers a worker's requests in order.
Status Client::exchange_rows(const Tensor& tensor, std::span<const int64_t> rows, CallRef& call,
                             std::optional<double> rate) {
  RC_RETURN_IF_ERROR(push_rows(tensor.variable, rows, tensor.gradient, call, rate));
  take_rows(tensor.variable, rows, tensor.data, call);
  return {};
}

void Client::give_rows(uint32_t variable, std::span<const int64_t> rows, const std::byte* gradients,
                       std::optional<double> rate, const CallRef& call) {
  const VariableSpec& spec = specs_[variable];
  if (!failure_.ok() || spec.elements() == 0) return;
  const std::size_t row_bytes = spec.row_elements() * size_of(spec.dtype);
  // Sums gradients in the order of `rows`, so that the sums do not depend on the sharding.
  std::vector<std::size_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [rows](std::size_t a, std::size_t b) { return rows[a] < rows[b]; });
  const auto split_rows =
      split(rows, sharding_.shares(variable), spec.row_elements(), servers_.size());
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    const ServerRows& mine = split_rows[i];
    const StoredSpec there = stored(variable, static_cast<int>(i));
    if (there.elements == 0 && !options_.keeps_pace) continue;
    Pending pending = make(RequestKind::push_rows);
    pending.request.learning_rate = rate;
    pending.request.step = pushes_[variable];
    pending.request.items = {{variable, static_cast<uint32_t>(mine.there.size())}};
    append_chunks(pending.request, 0, there, pending.chunks);
    pending.staging =
        std::make_shared<std::vector<std::byte>>(mine.there.size() * (sizeof(int64_t) + row_bytes));
    std::byte* at = pending.staging->data();
    for (const Chunk& chunk : pending.chunks) {
      const std::size_t count = chunk.elements / spec.row_elements();
      pending.pieces_there.push_back({{at, chunk.bytes_there}});
      std::memcpy(at, mine.there.data() + chunk.first, count * sizeof(int64_t));
      at += count * sizeof(int64_t);
      for (std::size_t j = 0; j < count; ++j, at += row_bytes) {
        const int64_t row = mine.here[chunk.first + j];
        auto given = std::lower_bound(order.begin(), order.end(), row,
                                      [rows](std::size_t a, int64_t b) { return rows[a] < b; });
        std::memcpy(at, gradients + *given * row_bytes, row_bytes);
        for (++given; given != order.end() && rows[*given] == row; ++given) {
          const std::byte* more = gradients + *given * row_bytes;
          spec.dtype == Dtype::float32 ? add<float>(at, more, spec.row_elements())
                                       : add<double>(at, more, spec.row_elements());
        }
      }
    }
    enqueue(i, std::move(pending), call);
  }
  ++pushes_[variable];
}

void Client::take_rows(uint32_t variable, std::span<const int64_t> rows, std::byte* values,
                       const CallRef& call) {
  const VariableSpec& spec = specs_[variable];
  if (!failure_.ok() || spec.elements() == 0 || rows.empty()) return;
  const std::size_t row_bytes = spec.row_elements() * size_of(spec.dtype);
  struct Arrived {
    std::vector<int64_t> rows;
    std::shared_ptr<std::vector<std::byte>> staging;
  };
  std::vector<Arrived> arrived;
  auto split_rows = split(rows, sharding_.shares(variable), spec.row_elements(), servers_.size());
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    ServerRows& mine = split_rows[i];
    if (mine.there.empty()) continue;
    const std::size_t numbers = mine.there.size() * sizeof(int64_t);
    Pending pending = make(RequestKind::pull_rows);
    pending.request.step = pushes_[variable];
    pending.request.items = {{variable, static_cast<uint32_t>(mine.there.size())}};
    append_chunks(pending.request, 0, stored(variable, static_cast<int>(i)), pending.chunks);
    // Row numbers first, followed by the received values.
    pending.staging =
        std::make_shared<std::vector<std::byte>>(numbers + mine.there.size() * row_bytes);
    std::memcpy(pending.staging->data(), mine.there.data(), numbers);
    for (const Chunk& chunk : pending.chunks) {
      std::byte* const base = pending.staging->data();
      pending.pieces_there.push_back({{base + chunk.first * sizeof(int64_t), chunk.bytes_there}});
      pending.pieces_back.push_back({{base + numbers + chunk.first * row_bytes, chunk.bytes_back}});
    }
    arrived.push_back({std::move(mine.here), pending.staging});
    enqueue(i, std::move(pending), call);
  }
  call->at_end = [wanted = std::vector<int64_t>(rows.begin(), rows.end()), values, row_bytes,
                  arrived = std::move(arrived)] {
    for (const Arrived& part : arrived) {
      const std::byte* const from = part.staging->data() + part.rows.size() * sizeof(int64_t);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const auto at = std::lower_bound(part.rows.begin(), part.rows.end(), wanted[i]);
        if (at == part.rows.end() || *at != wanted[i]) continue;
        const auto number = static_cast<std::size_t>(at - part.rows.begin());
        std::memcpy(values + i * row_bytes, from + number * row_bytes, row_bytes);
      }
    }
  };
}

}  // namespace rdmacoll::ps
