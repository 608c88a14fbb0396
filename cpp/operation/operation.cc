#include "operation/operation.h"

#include <algorithm>

#include "base/futex.h"
#include "base/text.h"
#include "base/wire.h"
#include "operation/cut.h"
#include "operation/listing.h"

namespace rdmacoll {
namespace {

constexpr std::size_t kDimensionsMax = 8;
constexpr std::size_t kTensorsMax = 1u << 20;
// A descriptor shares one control message with other content.
constexpr std::size_t kDescriptorBytesMax = 512 << 10;
// Row counts may take several messages, but the root holds all of them.
constexpr std::size_t kTableBytesMax = 32 << 20;

std::string shape_text(const std::vector<int64_t>& dims) {
  return cat("(", join(dims, ", "), dims.size() == 1 ? ",)" : ")");
}

// Cuts the text at the beginning of a UTF-8 character.
std::string_view shortened(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  while (bytes_max > 0 && (static_cast<uint8_t>(text[bytes_max]) & 0xc0) == 0x80) --bytes_max;
  return text.substr(0, bytes_max);
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// For kinds that reduce.
Status check_reduction(const Request& request) {
  const bool is_boolean = request.dtype == Dtype::boolean;
  if (!is_reducible(request.dtype, request.op)) {
    const std::string_view cure = is_boolean
                                      ? "use op=Max for 'any', op=Min for 'all', or cast to int32."
                                      : "cast it to int32 or float32 first.";
    return {Code::invalid, cat(name_of(request.kind), " cannot reduce ", name_of(request.dtype),
                               " by ", name_of(request.op), ": ", cure)};
  }
  if (request.op == ReduceOp::average && is_integer(request.dtype)) {
    return {Code::invalid, cat("Average of ", name_of(request.dtype),
                               " is not exact; use op=Sum and divide, or cast to float32.")};
  }
  if (is_boolean && (request.prescale != 1.0 || request.postscale != 1.0)) {
    return {Code::invalid, "bool has nothing to scale: leave the factors 1."};
  }
  return {};
}

Status check_tensor(const Request& request, const TensorRef& tensor, SetRank rank) {
  if (tensor.dims.size() > kDimensionsMax) {
    return {Code::invalid, cat("tensor '", tensor.label, "' has ", tensor.dims.size(),
                               " dimensions; at most 8 are supported: reshape it.")};
  }
  for (int64_t dim : tensor.dims) {
    if (dim < 0) {
      return {Code::invalid,
              cat("tensor '", tensor.label, "' has the negative dimension ", dim, ".")};
    }
  }
  const bool is_only_roots = request.kind == Kind::broadcast || request.kind == Kind::scatter;
  if (tensor.elements() > 0 && tensor.input == nullptr &&
      (!is_only_roots || (request.kind == Kind::scatter && request.root == rank))) {
    return {Code::invalid, cat("tensor '", tensor.label, "' has no input memory.")};
  }
  const bool is_cut = request.kind == Kind::reducescatter || request.kind == Kind::alltoall ||
                      request.kind == Kind::scatter;
  if (is_cut && tensor.dims.empty()) {
    return {Code::invalid, cat(name_of(request.kind),
                               " cuts tensors along the first dimension, and a scalar has none: "
                               "reshape it to (1,).")};
  }
  return {};
}

// For an alltoall, and for the root of a scatter. The tensor has a first dimension.
Status check_splits(const Request& request, int ranks) {
  const std::vector<int64_t>& splits = request.splits;
  const int64_t rows = request.tensors.front().dims.front();
  if (splits.empty()) {
    if (request.kind == Kind::scatter || rows % ranks == 0) return {};
    return {Code::invalid, cat("alltoall cannot cut ", rows, " rows in ", ranks,
                               " equal parts: say by splits how many rows each rank gets.")};
  }
  if (splits.size() != static_cast<std::size_t>(ranks)) {
    return {Code::invalid,
            cat("splits has ", splits.size(), " numbers, but there are ", ranks, " ranks.")};
  }
  if (*std::min_element(splits.begin(), splits.end()) < 0) {
    return {Code::invalid, cat("splits (", join(splits, ", "), ") has a negative number of rows.")};
  }
  constexpr uint64_t kMost = uint64_t{1} << 63;  // larger sums are clamped to it
  uint64_t sum = 0;
  for (int64_t split : splits) sum = std::min(sum + static_cast<uint64_t>(split), kMost);
  if (sum != static_cast<uint64_t>(rows)) {
    return {Code::invalid, cat("splits (", join(splits, ", "), ") are ", sum,
                               " rows together, but the tensor has ", rows, ".")};
  }
  return {};
}

// Limits the size of the messages: the descriptor, and the row counts of all ranks.
Status check_told(const Request& request, SetRank rank, int ranks) {
  std::size_t shapes = request.name.size();
  for (const TensorRef& tensor : request.tensors) {
    shapes += 1 + sizeof(int64_t) * tensor.dims.size();
  }
  if (shapes > kDescriptorBytesMax) {
    return {Code::invalid,
            cat("a group of ", request.tensors.size(), " tensors has shapes of ",
                bytes_text(shapes), " together; at most ", bytes_text(kDescriptorBytesMax),
                " are supported. Split it into several groups.")};
  }
  const std::size_t rows = own_rows(request, rank, ranks).size();
  const std::size_t givers = request.kind == Kind::scatter ? 1 : static_cast<std::size_t>(ranks);
  const std::size_t table = rows * givers * sizeof(int64_t);
  if (table > kTableBytesMax) {
    return {Code::invalid,
            cat(name_of(request.kind), " of ", request.tensors.size(), " tensors among ", ranks,
                " ranks has ", rows, " numbers of rows for each, ", bytes_text(table),
                " together; at most ", bytes_text(kTableBytesMax),
                " are supported. Take fewer tensors at once, or fewer ranks.")};
  }
  return {};
}

}  // namespace

int64_t TensorRef::elements() const {
  int64_t count = 1;
  for (int64_t dim : dims) count *= dim;
  return count;
}

uint64_t Request::bytes() const {
  uint64_t elements = 0;
  for (const TensorRef& tensor : tensors) elements += static_cast<uint64_t>(tensor.elements());
  return elements * size_of(dtype);
}

std::vector<uint64_t> Request::result_bytes() const {
  std::vector<uint64_t> bytes;
  bytes.reserve(tensors.size());
  for (const TensorRef& tensor : tensors) bytes.push_back(tensor.bytes(dtype));
  return bytes;
}

std::string Request::labels() const {
  constexpr std::size_t kShown = 2;
  constexpr std::size_t kBytesMax = 120;
  std::vector<std::string_view> shown;
  std::size_t labelled = 0;
  for (const TensorRef& tensor : tensors) {
    if (tensor.label.empty() || tensor.label == name) continue;
    ++labelled;
    if (shown.size() < kShown) shown.push_back(shortened(tensor.label, kBytesMax));
  }
  if (labelled == 0) return {};
  const std::string more = labelled > kShown ? cat(" and ", labelled - kShown, " more") : "";
  return join(shown, ", ") + more;
}

Status check(const Request& request, SetRank rank, int ranks) {
  if (!is_known(request.kind)) return {Code::invalid, "unknown kind of collective."};
  if (static_cast<int>(request.dtype) >= kDtypes || static_cast<int>(request.op) >= kReduceOps) {
    return {Code::invalid, "unknown dtype or reduction operator."};
  }
  if (request.name.size() > kNameBytesMax) {
    return {Code::invalid, cat("a tensor's name has ", request.name.size(), " bytes; at most ",
                               kNameBytesMax, " are supported.")};
  }
  if (request.group.size() > kNameBytesMax) {
    return {Code::invalid, cat("the dtypes of a group have ", request.group.size(),
                               " bytes; at most ", kNameBytesMax, " are supported.")};
  }
  if (request.manifest.size() > kNameBytesMax) {
    return {Code::invalid, cat("a manifest has ", request.manifest.size(), " bytes; at most ",
                               kNameBytesMax, " are supported.")};
  }
  if (request.listing.size() > kListingBytesMax) {
    return {Code::invalid, cat("a list of names has ", request.listing.size(), " bytes; at most ",
                               kListingBytesMax, " are supported.")};
  }
  const KindRow& kind = row_of(request.kind);
  if (kind.reduces) RC_RETURN_IF_ERROR(check_reduction(request));
  if (kind.has_root && (request.root.is_none() || request.root.value() >= ranks)) {
    return {Code::invalid,
            cat("root_rank ", request.root, " is not a rank of 0 to ", ranks - 1, ".")};
  }
  if (request.kind == Kind::barrier || request.kind == Kind::join) return {};
  if (request.tensors.empty()) {
    return {Code::invalid, cat(kind.name, " needs at least one tensor.")};
  }
  if (!kind.takes_groups && request.tensors.size() != 1) {
    return {Code::invalid, cat(kind.name, " takes one tensor.")};
  }
  for (const TensorRef& tensor : request.tensors) {
    RC_RETURN_IF_ERROR(check_tensor(request, tensor, rank));
  }
  if (request.kind == Kind::alltoall || (request.kind == Kind::scatter && request.root == rank)) {
    RC_RETURN_IF_ERROR(check_splits(request, ranks));
  }
  return check_told(request, rank, ranks);
}

Operation::Operation(Request given)
    : request(std::move(given)), descriptor(encode_descriptor(request)) {}

void Operation::complete(Status status) {
  RC_ASSERT(!done(), label());
  status_ = std::move(status);
  // An operation with a callback has no waiter. The callback may release the last reference to this
  // operation, so a copy runs.
  const auto callback = request.done;
  if (callback) callback(status_);
  done_.store(kDone, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) > 0) futex_wake_all(done_);
}

void Operation::wait(uint32_t ticket, Nanoseconds timeout) {
  if (ticket == kDone) return;
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  if (done_.load(std::memory_order_seq_cst) == ticket) futex_wait(done_, ticket, timeout);
  waiters_.fetch_sub(1, std::memory_order_seq_cst);
}

void Operation::nudge() {
  uint32_t now = done_.load();
  while (now != kDone && !done_.compare_exchange_weak(now, now + 2)) {
  }
  if (now != kDone) futex_wake_all(done_);
}

void Operation::rearm() {
  status_ = {};
  state.has_ended = false;
  gpu_end.reset();
  done_.store(0, std::memory_order_release);
}

std::string Operation::label() const {
  std::string labels = request.labels();
  if (!labels.empty()) labels = cat(" (", labels, ")");
  if (!request.name.empty()) return cat(name_of(request.kind), " '", request.name, "'", labels);
  return cat("unnamed ", name_of(request.kind), " (number ", request.iteration, ")", labels);
}

std::string encode_descriptor(const Request& request) {
  Writer writer;
  // check() refuses unknown kinds. Until then they encode as a kind without properties.
  const KindRow kind = is_known(request.kind) ? row_of(request.kind) : KindRow{};
  writer.put(request.kind).put(request.dtype);
  writer.put(kind.reduces ? request.op : ReduceOp::sum);
  writer.put(static_cast<int32_t>(kind.has_root ? request.root.value() : 0));
  writer.put(kind.reduces ? request.prescale : 1.0);
  writer.put(kind.reduces ? request.postscale : 1.0);
  writer.put_text(request.name);
  writer.put(static_cast<uint32_t>(request.tensors.size()));
  for (const TensorRef& tensor : request.tensors) {
    std::vector<int64_t> dims = tensor.dims;
    if (kind.first_may_differ && !dims.empty()) dims.front() = -1;
    writer.put(static_cast<uint8_t>(dims.size()));
    for (int64_t dim : dims) writer.put(dim);
  }
  writer.put_text(request.manifest);
  writer.put_text(request.group);
  writer.put(request.shares_results);
  writer.put_text(shortened(request.refusal, kNameBytesMax));
  writer.put(!request.refusal.empty());
  const auto bytes = writer.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool decode_descriptor(std::string_view bytes, Descriptor& descriptor) {
  Reader reader(as_bytes(bytes));
  descriptor.kind = reader.get<Kind>();
  descriptor.dtype = reader.get<Dtype>();
  descriptor.op = reader.get<ReduceOp>();
  descriptor.root = SetRank(reader.get<int32_t>());
  descriptor.prescale = reader.get<double>();
  descriptor.postscale = reader.get<double>();
  descriptor.name = reader.get_text(kNameBytesMax);
  const auto count = reader.get<uint32_t>();
  if (count > kTensorsMax || count > reader.left()) return false;
  descriptor.shapes.assign(count, {});
  for (auto& shape : descriptor.shapes) {
    const auto dims = reader.get<uint8_t>();
    if (dims > kDimensionsMax) return false;
    for (int i = 0; i < dims; ++i) shape.push_back(reader.get<int64_t>());
  }
  descriptor.manifest = reader.get_text(kNameBytesMax);
  descriptor.group = reader.get_text(kNameBytesMax);
  descriptor.shares_results = reader.get<uint8_t>() != 0;
  descriptor.refusal = reader.get_text(kNameBytesMax);
  if ((reader.get<uint8_t>() != 0) == descriptor.refusal.empty()) return false;
  return reader.done() && is_known(descriptor.kind) &&
         static_cast<int>(descriptor.dtype) < kDtypes &&
         static_cast<int>(descriptor.op) < kReduceOps;
}

bool is_refusal(std::string_view descriptor) {
  return !descriptor.empty() && descriptor.back() != 0;
}

uint64_t Descriptor::bytes() const {
  uint64_t elements = 0;
  for (const auto& shape : shapes) {
    uint64_t count = 1;
    for (int64_t dim : shape) count *= static_cast<uint64_t>(std::max<int64_t>(dim, 0));
    elements += count;
  }
  return elements * size_of(dtype);
}

std::string_view descriptor_name(std::string_view descriptor) {
  // Before the name: kind, dtype, op, root, two scales, and the length of the name.
  constexpr std::size_t kOffset = 3 + 4 + 16;
  if (descriptor.size() < kOffset + 4) return {};
  uint32_t bytes = 0;
  std::copy_n(descriptor.data() + kOffset, 4, reinterpret_cast<char*>(&bytes));
  return descriptor.substr(kOffset + 4, bytes);
}

namespace {

// ", average, prescale 0.5": the parameters of the operation, without its tensors.
std::string describe_treatment(const Descriptor& d) {
  std::string text;
  if (row_of(d.kind).reduces) text += cat(", ", name_of(d.op));
  if (row_of(d.kind).has_root) text += cat(", root ", d.root);
  if (d.prescale != 1.0) text += cat(", prescale ", d.prescale);
  if (d.postscale != 1.0) text += cat(", postscale ", d.postscale);
  if (d.shares_results) text += ", results shared in host memory (a TensorFlow operation)";
  if (!d.group.empty()) text += cat(", the first of a group of ", d.group);
  return text;
}

}  // namespace

std::string describe_manifest(std::string_view bytes) {
  Descriptor d;
  if (!decode_descriptor(bytes, d) || d.manifest.empty()) return "";
  return cat(d.manifest, describe_treatment(d));
}

std::string describe_refusal(std::string_view bytes) {
  Descriptor d;
  if (!decode_descriptor(bytes, d)) return "refused an operation";
  std::string_view reason = d.refusal;
  if (reason.ends_with('.')) reason.remove_suffix(1);
  return cat("refused its ", name_of(d.kind), ": ", reason);
}

std::string describe_descriptor(std::string_view bytes, const std::vector<ShownTensor>& shown) {
  Descriptor d;
  if (!decode_descriptor(bytes, d)) return "unreadable";
  if (!d.refusal.empty()) return cat(name_of(d.kind), ", refused: ", d.refusal);
  if (d.kind == Kind::barrier || d.kind == Kind::join) return std::string(name_of(d.kind));
  constexpr std::size_t kShapesShown = 4;
  std::vector<std::string> shapes;
  for (std::size_t i = 0; i < std::min(d.shapes.size(), kShapesShown); ++i) {
    shapes.push_back(shape_text(d.shapes[i]));
  }
  if (d.shapes.size() > kShapesShown) shapes.push_back(cat(d.shapes.size(), " tensors"));
  std::string behind;
  for (const ShownTensor& one : shown) {
    if (one.position < kShapesShown || one.position >= d.shapes.size()) continue;
    behind += cat(behind.empty() ? ", of which " : ", ", "number ", one.position + 1,
                  one.name.empty() ? "" : cat(" (", one.name, ")"), " is ",
                  shape_text(d.shapes[one.position]));
  }
  return cat(name_of(d.kind), " of ", name_of(d.dtype), " ", join(shapes, " "), behind,
             describe_treatment(d));
}

std::size_t tensors_of(std::string_view bytes) {
  Descriptor d;
  return decode_descriptor(bytes, d) ? d.shapes.size() : 0;
}

std::optional<std::size_t> first_difference(std::string_view bytes, std::string_view other) {
  Descriptor a, b;
  if (!decode_descriptor(bytes, a) || !decode_descriptor(other, b)) return {};
  const std::size_t both = std::min(a.shapes.size(), b.shapes.size());
  for (std::size_t i = 0; i < both; ++i) {
    if (a.shapes[i] != b.shapes[i]) return i;
  }
  if (a.shapes.size() != b.shapes.size()) return both;
  return {};
}

}  // namespace rdmacoll
