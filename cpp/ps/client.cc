#include "ps/client.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/text.h"

namespace rdmacoll::ps {
namespace {

// The requests in flight to one server, enough to hide the round trip.
constexpr std::size_t kUnderWay = 8;
// This size stays in the caches of both ends until it is used again.
constexpr std::size_t kPackedBytesMost = std::size_t{256} << 10;

}  // namespace

Client::Client(Transport& transport, const World& world, MemoryPool& pool, ClientOptions options)
    : transport_(transport),
      world_(world),
      pool_(pool),
      options_(std::move(options)),
      packed_bytes_(std::min(options_.chunk_bytes, kPackedBytesMost)),
      sharding_(static_cast<int>(options_.servers.size()), options_.chunk_bytes),
      servers_(options_.servers.size()) {
  for (std::size_t i = 0; i < servers_.size(); ++i) servers_[i].rank = options_.servers[i];
}

Client::~Client() {
  for (Server& server : servers_) {
    for (Packed& packed : server.packed) pool_.free(packed.data);
  }
}

StoredSpec Client::stored(uint32_t variable, int server) const {
  const VariableSpec& spec = specs_[variable];
  return {spec.name,
          spec.dtype,
          decays_[variable],
          sharding_.elements_on(variable, server),
          spec.by_rows && spec.elements() > 0 ? spec.row_elements() : 0,
          spec.dims};
}

CallRef Client::new_call() const {
  auto call = std::make_shared<Call>();
  call->status = failure_;
  return call;
}

Client::Pending Client::make(RequestKind kind) const {
  Pending pending;
  pending.request.kind = kind;
  pending.request.chunk_bytes = static_cast<uint32_t>(options_.chunk_bytes);
  return pending;
}

void Client::enqueue(std::size_t server, Pending pending, const CallRef& call) {
  Server& to = servers_[server];
  pending.call = call;
  pending.request.id = to.ids++;
  if (!pending.chunks.empty()) {
    pending.there = pending.chunks[0].bytes_there > 0 ? pending.chunks.size() : 0;
    pending.back = pending.chunks[0].bytes_back > 0 ? pending.chunks.size() : 0;
  }
  to.pending.push_back(std::move(pending));
  ++call->open;
}

CallRef Client::request_all(RequestKind kind, const std::string& text, uint64_t step) {
  CallRef call = new_call();
  if (!failure_.ok()) return call;
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    Pending pending = make(kind);
    pending.request.text = text;
    pending.request.step = step;
    enqueue(i, std::move(pending), call);
  }
  return call;
}

CallRef Client::save(const std::string& path) {
  std::random_device random;
  return request_all(RequestKind::save, path, uint64_t{random()} << 32 | random());
}

CallRef Client::stats() { return request_all(RequestKind::stats); }
CallRef Client::leave() { return request_all(RequestKind::leave); }

Status Client::declare(std::span<const VariableSpec> specs, std::span<const bool> decays,
                       const std::string& rule, CallRef& call) {
  UpdateRule read;
  RC_RETURN_IF_ERROR(rule_from(rule, read));
  for (const VariableSpec& spec : specs) {
    RC_RETURN_IF_ERROR(check(spec));
    RC_RETURN_IF_ERROR(check_row(spec));
  }
  const auto known = static_cast<uint32_t>(specs_.size());
  call = new_call();
  call->at_refusal = [this, known, before = sharding_]() mutable {
    forget(known, std::move(before));
  };
  for (std::size_t i = 0; i < specs.size(); ++i) {
    numbers_.emplace(specs[i].name, known + static_cast<uint32_t>(i));
  }
  specs_.insert(specs_.end(), specs.begin(), specs.end());
  decays_.insert(decays_.end(), decays.begin(), decays.end());
  pushes_.resize(specs_.size(), 0);
  sharding_.add(specs);
  for (std::size_t i = 0; failure_.ok() && i < servers_.size(); ++i) {
    for (auto at = known; at < specs_.size(); at += kSpecsMax) {
      Pending pending = make(RequestKind::declare);
      pending.request.text = rule;
      pending.request.first_spec = at;
      for (auto j = at; j < std::min<std::size_t>(specs_.size(), at + kSpecsMax); ++j) {
        pending.request.specs.push_back(stored(j, static_cast<int>(i)));
        pending.request.specs.back().shares = sharding_.mark_of(j, static_cast<int>(i));
      }
      enqueue(i, std::move(pending), call);
    }
  }
  return {};
}

void Client::forget(std::size_t known, Sharding before) {
  std::erase_if(numbers_, [known](const auto& entry) { return entry.second >= known; });
  specs_.resize(known);
  decays_.resize(known);
  pushes_.resize(known);
  sharding_ = std::move(before);
}

CallRef Client::init(std::span<const Tensor> values, uint32_t slot, uint64_t updates) {
  return move({.kind = RequestKind::init, .step = updates, .slot = slot}, values);
}
CallRef Client::push(std::span<const Tensor> gradients, std::optional<double> rate) {
  return move({.kind = RequestKind::push, .learning_rate = rate}, gradients);
}
CallRef Client::pull(std::span<const Tensor> values, uint32_t slot) {
  return move({.kind = RequestKind::pull, .slot = slot}, values);
}
CallRef Client::updates(std::span<const Tensor> of) {
  return move({.kind = RequestKind::updates}, of);
}
CallRef Client::push_pull(std::span<const Tensor> tensors, std::optional<double> rate) {
  return move({.kind = RequestKind::push_pull, .learning_rate = rate}, tensors);
}

uint64_t Client::steps_of(std::span<const Tensor> tensors) const {
  uint64_t steps = 0;
  for (const Tensor& tensor : tensors) steps = std::max(steps, pushes_[tensor.variable]);
  return steps;
}

Status Client::find(std::string_view name, uint32_t& variable) const {
  const auto found = numbers_.find(name);
  if (found == numbers_.end()) {
    return {Code::invalid, cat("variable ", name, " has not been declared: declare it first.")};
  }
  variable = found->second;
  return {};
}

// The largest chunk of a request for whole variables. A server updates one chunk while the next one
// is on its way, so chunks that need no grants may be small.
std::size_t Client::chunk_bytes(const Server& server) const {
  const Reach reach = transport_.reach(server.rank);
  if (reach.views) return packed_bytes_;
  return reach.announced_bytes > 0 ? std::min(options_.chunk_bytes, reach.announced_bytes)
                                   : options_.chunk_bytes;
}

// Sends a request for whole variables to each server that has a share of them.
CallRef Client::move(const Request& like, std::span<const Tensor> tensors) {
  CallRef call = new_call();
  if (!failure_.ok()) return call;
  if (tensors.size() > kItemsMax) {
    call->status = {Code::invalid, cat(tensors.size(), " variables at once: move at most ",
                                       kItemsMax, " with one call.")};
    return call;
  }
  const bool updates = makes_update(like.kind);
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    Pending pending{.request = like};
    pending.request.chunk_bytes = static_cast<uint32_t>(chunk_bytes(servers_[i]));
    if (like.kind != RequestKind::init) pending.request.step = steps_of(tensors);
    for (const Tensor& tensor : tensors) {
      const StoredSpec spec = stored(tensor.variable, static_cast<int>(i));
      if (spec.elements == 0) continue;
      const std::size_t item = pending.request.items.size();
      pending.request.items.push_back({tensor.variable, 0});
      const std::size_t begun = pending.chunks.size();
      append_chunks(pending.request, item, spec, pending.chunks);
      cut(tensor, static_cast<int>(i), begun, pending);
    }
    if (pending.request.items.empty() && !(updates && options_.keeps_pace)) continue;
    enqueue(i, std::move(pending), call);
  }
  for (const Tensor& tensor : tensors) pushes_[tensor.variable] += updates ? 1 : 0;
  return call;
}

bool Client::turn() {
  if (!failure_.ok() && !is_sending_reason_) return end_all();
  // poll() may set it; the caller of turn() may know a better reason, and stop it
  const bool knew = is_sending_reason_;
  bool moved = transport_.poll(*this);
  if (!failure_.ok()) {
    if (knew) send_reason();
    return true;
  }
  // Each worker begins with another server, so that they do not all use the same one.
  const auto begin = static_cast<std::size_t>(world_.rank);
  for (std::size_t nth = 0; nth < servers_.size(); ++nth) {
    Server& server = servers_[(begin + nth) % servers_.size()];
    for (std::size_t i = 0; i < std::min(kUnderWay, server.pending.size()); ++i) {
      const Pending& pending = server.pending[i];
      moved |= post(server, server.pending[i]);
      // Chunks of the next request must wait. They would use the packing memory of this request,
      // and the server reads them later.
      if (!pending.is_sent || pending.posted_there < pending.there) break;
    }
    end_requests(server);
  }
  return moved;
}

// Busy transfers are offered again in the next turn.
bool Client::accepted(const Status& status) {
  if (!status.ok() && !status.is_busy()) fail(status);
  return status.ok();
}

bool Client::post(Server& server, Pending& pending) {
  bool moved = false;
  if (!pending.is_sent) {
    if (!accepted(transport_.post_control(server.rank, encode(pending.request)))) return false;
    pending.is_sent = moved = true;
    pending.sequence_there = server.sequence_there;
    server.sequence_there += pending.there;
  }
  while (pending.posted_there < pending.there && accepted(give(server, pending))) {
    ++pending.posted_there;
    moved = true;
  }
  while (pending.is_accepted && pending.posted_back < pending.back) {
    const std::size_t number = pending.posted_back;
    bool is_done = false;
    if (!accepted(transport_.post_recv({server.rank, kLaneBack, pending.sequence_back + number,
                                        pending.pieces_back[number],
                                        cookie(server, pending, kPacked), &is_done}))) {
      break;
    }
    ++pending.posted_back;
    if (is_done) ++pending.ended_back;
    moved = true;
  }
  return moved;
}

Client::Pending* Client::find_pending(uint64_t cookie) {
  cookie /= kPacked + 1;
  Server& server = servers_[cookie % servers_.size()];
  if (server.pending.empty()) return nullptr;
  const uint64_t place = cookie / servers_.size() - server.pending.front().request.id;
  return place < server.pending.size() ? &server.pending[place] : nullptr;
}

void Client::sent(uint64_t cookie) {
  const std::size_t packed = cookie % (kPacked + 1);
  if (packed < kPacked) {
    servers_[cookie / (kPacked + 1) % servers_.size()].packed[packed].is_shown = false;
  }
  if (Pending* pending = find_pending(cookie)) ++pending->ended_there;
}

void Client::received(uint64_t cookie) {
  if (Pending* pending = find_pending(cookie)) ++pending->ended_back;
}

void Client::control(int peer, std::span<const std::byte> message) {
  const auto server = std::find_if(servers_.begin(), servers_.end(),
                                   [peer](const Server& one) { return one.rank == peer; });
  if (server == servers_.end()) return;
  Answer answer;
  const bool is_one = decode(message, answer);
  if (is_one && answer.kind == Answer::Kind::leaving) {
    server->is_lost = true;
    return lose(departure(peer, answer.text));
  }
  if (!failure_.ok()) return;  // no call is open any more
  const auto place = server->pending.empty() ? 0 : answer.id - server->pending.front().request.id;
  if (!is_one || place >= server->pending.size() || !server->pending[place].is_sent) {
    return fail(
        {Code::failed, cat(world_.describe(peer),
                           " sent no valid answer of a parameter server: the ranks run "
                           "different builds of rdmacoll. Install one version everywhere.")});
  }
  Pending& pending = server->pending[place];
  Call& call = *pending.call;
  switch (answer.kind) {
    case Answer::Kind::accepted:
      pending.is_accepted = true;
      pending.sequence_back = server->sequence_back;
      server->sequence_back += pending.back;
      if (!answer.text.empty()) {
        keep_text(call, static_cast<std::size_t>(server - servers_.begin()),
                  std::move(answer.text));
      }
      break;
    case Answer::Kind::refused:
      pending.back = 0;
      if (call.status.ok()) call.status = refusal(answer);
      [[fallthrough]];
    case Answer::Kind::done:
      pending.is_answered = true;
      server->has_left = pending.request.kind == RequestKind::leave;
      break;
    case Answer::Kind::leaving:
      break;  // answers no request
  }
}

// Servers answer in any order.
void Client::keep_text(Call& call, std::size_t server, std::string text) {
  auto& from = call.text_servers;
  const auto place = std::upper_bound(from.begin(), from.end(), server) - from.begin();
  from.insert(from.begin() + place, server);
  call.texts.insert(call.texts.begin() + place, std::move(text));
}

// A refusal can only concern the first worker.
Status Client::refusal(Answer& answer) const {
  if (answer.code != Code::rank_failed) return {answer.code, std::move(answer.text)};
  return world_.blaming(0, std::move(answer.text), "left the job");
}

void Client::end_requests(Server& server) {
  while (!server.pending.empty()) {
    Pending& first = server.pending.front();
    if (!first.is_answered || first.ended_there < first.there || first.ended_back < first.back) {
      return;
    }
    const CallRef call = first.call;
    server.pending.pop_front();
    end_one(call);
  }
}

void Client::end_one(const CallRef& call) {
  if (--call->open > 0) return;
  const auto& last = call->status.ok() ? call->at_end : call->at_refusal;
  if (last) last();
  if (call->done) ended_.push_back(call);
}

}  // namespace rdmacoll::ps
