#include "transport/rdma/rdma_peer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/text.h"

namespace rdmacoll::rdma {
namespace {

constexpr uint32_t kReceives = 64;  // per queue pair, if messages are small
constexpr uint32_t kReceivesMin = 8;
constexpr uint32_t kMessageSlots = 17;  // for outgoing messages; one only returns credits
constexpr uint32_t kRecordBytesMin = 1024;
// The messages of one peer take at most the pool divided by this.
constexpr std::size_t kPoolShare = 16;

// Checks for the cause of a consequence, over some milliseconds. A failed peer shows no cause here.
constexpr int kLooksForACause = 16;

constexpr int kTimedRequests = 16;
constexpr uint32_t kPathImmediate = UINT32_MAX;  // no slot has this number

uint64_t slot_bytes(uint64_t accumulation_bytes) {
  const uint64_t bytes = std::max<uint64_t>(accumulation_bytes, kRecordBytesMin) +
                         kMessageHeaderBytes + kRecordHeaderBytes;
  return (bytes + 63) / 64 * 64;
}

uint32_t receives_of(const PeerOptions& options, std::size_t pool_bytes) {
  const std::size_t fit = pool_bytes / kPoolShare / slot_bytes(options.accumulation_bytes);
  return static_cast<uint32_t>(
      std::clamp<std::size_t>(fit, kReceivesMin + kMessageSlots, kReceives + kMessageSlots) -
      kMessageSlots);
}

}  // namespace

uint64_t message_bytes_min(uint64_t accumulation_bytes) {
  return (kReceivesMin + kMessageSlots) * slot_bytes(accumulation_bytes);
}

uint32_t accumulation_that_fits(std::size_t pool_bytes, int ranks) {
  const auto peers = static_cast<std::size_t>(std::max(ranks - 1, 1));
  uint32_t bytes = kEagerBytesMax;
  while (bytes > kEagerBytesMin &&
         (kReceives + kMessageSlots) * slot_bytes(bytes) * peers > pool_bytes / kPoolShare) {
    bytes /= 2;
  }
  return bytes;
}

uint32_t completions_of_a_pair(const PeerOptions& options, std::size_t pool_bytes) {
  return options.queue_depth + receives_of(options, pool_bytes);
}

RdmaPeer::RdmaPeer(const World& world, int rank, const Ports& ports, const PeerOptions& options,
                   MemoryPool& pool, RankState rank_state)
    : world_(world),
      rank_(rank),
      ports_(ports),
      options_(options),
      pool_(pool),
      rank_state_(rank_state),
      link_{.outbox = Outbox(world.epoch, eager_bytes_of_peer(world.size())),
            .ahead = EagerBudget(eager_bytes_of_peer(world.size())),
            .eager_bytes = eager_bytes_of_peer(world.size())},
      outbound_(rank_state, link_),
      inbound_(rank_state, link_) {}

RdmaPeer::~RdmaPeer() { close(); }

// ---- handshake ----

Status RdmaPeer::open(Fd socket, Nanoseconds now) {
  socket_.open(std::move(socket));
  liveness_.emplace(options_.peer_timeout, now);
  RC_RETURN_IF_ERROR(make_pairs());
  Greeting greeting{.epoch = world_.epoch,
                    .rank = world_.rank,
                    .eager_bytes = options_.accumulation_bytes,
                    .chunk_bytes = options_.chunk_bytes,
                    .receives = receives_of(options_, pool_.size())};
  for (std::size_t rail = 0; rail < pairs_.size(); ++rail) {
    greeting.rails.push_back({ports_.rails[rail].link, pairs_[rail].local()});
  }
  socket_.say(encode(greeting));
  return {};
}

Status RdmaPeer::make_pairs() {
  const auto bytes = static_cast<uint32_t>(slot_bytes(options_.accumulation_bytes));
  const uint32_t receives = receives_of(options_, pool_.size());
  const std::size_t all = std::size_t{receives + kMessageSlots} * bytes;
  memory_ = pool_.allocate(all);
  if (memory_ == nullptr) {
    return pool_exhausted(pool_, all, " for its messages",
                          "Raise TF_RDMA_BUF_SIZE, or lower TF_RDMA_ACC_SIZE.");
  }
  RC_RETURN_IF_ERROR(
      registered_.open(std::span(ports_.devices).first(1), memory_, all, rank_state_.counters));
  const uint32_t key = registered_.keys().front().local;
  pairs_.resize(ports_.rails.size());
  for (std::size_t rail = 0; rail < pairs_.size(); ++rail) {
    const Pair::Sizes sizes{.sends = options_.queue_depth,
                            .receives = receives,
                            .receive_bytes = rail == 0 ? bytes : 0};
    RC_RETURN_IF_ERROR(pairs_[rail].open(*ports_.devices[rail], ports_.rails[rail], sizes,
                                         rail == 0 ? memory_ : nullptr, key));
  }
  link_.outbox.open(memory_ + std::size_t{receives} * bytes, kMessageSlots, bytes, key);
  return {};
}

std::vector<uint32_t> RdmaPeer::queue_pairs() const {
  std::vector<uint32_t> numbers;
  for (const Pair& pair : pairs_) numbers.push_back(pair.local().queue_pair);
  return numbers;
}

void RdmaPeer::meet(Sink& sink) {
  std::vector<std::byte> bytes;
  if (state_ == State::greeting && socket_.take(greeting_bytes(), bytes)) {
    if (Status accepted = accept_greeting(bytes); !accepted.ok()) {
      return fail(sink, accepted.message());
    }
    state_ = State::joining;
    socket_.say(GreetingSocket::Word::ready);
  }
  if (state_ == State::greeting) return;
  for (GreetingSocket::Word word{}; socket_.take_word(word);) {
    if (word == GreetingSocket::Word::ready && state_ == State::joining) {
      state_ = State::testing;
      test_path();
      open_path_if_tested(sink);
    } else if (word != GreetingSocket::Word::alive) {
      return fail(sink, "sent nonsense on its socket");
    }
  }
}

Status RdmaPeer::accept_greeting(std::span<const std::byte> bytes) {
  Greeting greeting;
  if (std::string wrong = decode(bytes, greeting); !wrong.empty()) return {Code::failed, wrong};
  if (greeting.rank != rank_ || greeting.epoch != world_.epoch) {
    return {Code::failed, cat("says that it is rank ", greeting.rank, " of epoch ", greeting.epoch,
                              ", not rank ", rank_, " of epoch ", world_.epoch)};
  }
  link_.cuts = {std::min(greeting.eager_bytes, options_.accumulation_bytes),
                std::min(greeting.chunk_bytes, options_.chunk_bytes)};
  link_.outbox.limit(static_cast<uint32_t>(slot_bytes(link_.cuts.eager_bytes)));
  remote_ = greeting.rails;
  const std::size_t rails = std::min(remote_.size(), pairs_.size());
  link_.pairs = std::span(pairs_).first(rails);
  for (std::size_t i = 0; i < rails; ++i) {
    const Rail& rail = ports_.rails[i];
    if (remote_[i].link != rail.link) {
      return {Code::failed, cat("its port ", i, " is of another link layer than ", rail.text(),
                                ". Choose ports of one fabric with TF_RDMA_DEV_NAME.")};
    }
    RC_RETURN_IF_ERROR(
        pairs_[i].connect(remote_[i].end, path_to(rail, remote_[i]), greeting.receives));
  }
  return {};
}

PathSettings RdmaPeer::path_to(const Rail& rail, const GreetingEnd& remote) const {
  PathSettings path = options_.path;
  path.gid_index = rail.gid_index;
  path.pkey_index = rail.pkey_index;
  if (rail.is_software && path.retries == kRetriesForEver) --path.retries;
  path.needs_grh = rail.link == LinkLayer::ethernet || !rail.gid.is_of_subnet(remote.end.gid);
  const uint32_t mtu = std::min(rail.mtu, remote.end.mtu);
  path.mtu = path.mtu == 0 ? mtu : std::min(path.mtu, mtu);
  return path;
}

// Tests other rails first. The first rail's record reports that all are open, and the eager cut.
void RdmaPeer::test_path() {
  for (std::size_t rail = 1; rail < link_.pairs.size(); ++rail) {
    link_.pairs[rail].add({.kind = SendKind::write_with_immediate, .immediate = kPathImmediate}, {},
                          {.kind = Sent::Kind::path_test});
    ++path_tests_;
  }
  if (options_.finds_cut) latency_timer_.start(kTimedRequests);
  push();
}

void RdmaPeer::time_request() {
  link_.pairs.front().add({.kind = SendKind::write}, {}, {.kind = Sent::Kind::timed});
  latency_timer_.begin(rank_state_.clock.now());
}

void RdmaPeer::open_path_if_tested(Sink& sink) {
  if (path_tests_ > 0 || !latency_timer_.is_done()) return;
  uint32_t& cut = link_.cuts.eager_bytes;
  if (options_.finds_cut) cut = eager_cut(latency_timer_.best(), rank_state_.copy_speed, cut);
  std::memcpy(link_.outbox.append({.kind = RecordKind::path, .bytes = sizeof cut}), &cut,
              sizeof cut);
  is_tried_ = true;
  begin_if_ready(sink);
}

// The peer accepts nothing before our record of the path, so nothing may be sent earlier.
void RdmaPeer::begin_if_ready(Sink& sink) {
  if (state_ != State::testing || !is_tried_ || !is_open_) return;
  link_.outbox.limit(static_cast<uint32_t>(slot_bytes(link_.cuts.eager_bytes)));
  state_ = State::connected;
  ++rank_state_.counters.handshakes;
  ++rank_state_.counters.connections;
  sink.connected(rank_);
}

// ---- from the device ----

void RdmaPeer::handle(std::size_t rail, const Completion& completion, Sink& sink) {
  if (has_failed()) return;
  if (completion.status != 0) {
    if (!has_ended()) handle_failure(rail, completion, sink);
    return;
  }
  if (completion.kind == CompletionKind::sent) {
    return pairs_[rail].retire(completion.id, [&](const Sent& sent) { handle_sent(sent, sink); });
  }
  heard_ = true;
  if (completion.kind == CompletionKind::received) {
    if (!handle_message(rail, completion, sink)) return;
  } else if (completion.immediate != kPathImmediate && !inbound_.written(completion.immediate)) {
    return fail(sink, cat("wrote to a place that was not granted (", completion.immediate, ")"));
  }
  pairs_[rail].consume(completion.id);
}

void RdmaPeer::handle_sent(const Sent& sent, Sink& sink) {
  switch (sent.kind) {
    case Sent::Kind::message:
      return link_.outbox.free(sent.index);
    case Sent::Kind::write:
      return outbound_.written(sent);
    case Sent::Kind::path_test:
      --path_tests_;
      return open_path_if_tested(sink);
    case Sent::Kind::timed:
      latency_timer_.end(rank_state_.clock.now());
      return open_path_if_tested(sink);
    case Sent::Kind::tail:
      return;
  }
}

void RdmaPeer::handle_failure(std::size_t rail, const Completion& completion, Sink& sink) {
  const std::string path =
      cat(ports_.rails[rail].text(), " to ",
          rail < remote_.size() ? remote_[rail].text() : "a peer that has not greeted");
  const std::string vendor =
      completion.vendor_error == 0 ? "" : cat(", vendor error ", completion.vendor_error);
  const char* cure = is_connected() ? ""
                                    : ". No path between the two: check the network, or choose "
                                      "another device with TF_RDMA_DEV_NAME";
  const std::string cause =
      cat("queue pair ", completion.queue_pair, " failed: ", completion_text(completion.status),
          vendor, ", on ", path, cure);
  // Consequences of a failure, or of a lost device, may be seen before the failure itself.
  const bool may_follow = completion.status == kFlushed || completion.status == kNotCarriedOut;
  if (!may_follow) return give_up(sink, cause);
  if (echo_.empty()) {
    echo_ = cause;
    checks_left_ = kLooksForACause;
  }
}

// Returns false if the peer has failed, since it breaks the protocol.
bool RdmaPeer::handle_message(std::size_t rail, const Completion& completion, Sink& sink) {
  std::span<const std::byte> bytes = pairs_[rail].received(completion.id, completion.bytes);
  MessageHeader message;
  const auto wrong = [&](const std::string& cause) { return fail(sink, cause), false; };
  if (!decode(bytes, world_.epoch, message) || message.number != messages_) {
    return wrong(cat("sent a message that is not the next one of epoch ", world_.epoch, " (number ",
                     message.number, " for ", messages_, ", epoch ", message.epoch, ")"));
  }
  ++messages_;
  for (std::size_t i = 0; i < link_.pairs.size(); ++i) {
    link_.pairs[i].add_credits(message.credits[i]);
    if (!link_.pairs[i].credits_are_sound()) return wrong("returned more credits than it had");
  }
  if (!link_.ahead.hear(message.claimed)) return wrong("claimed transfers that were never sent");
  bytes = bytes.subspan(kMessageHeaderBytes);
  while (!bytes.empty() && !has_failed()) {
    RecordHeader header;
    if (!decode(bytes, header)) {
      return wrong(cat("sent a damaged record (", bytes.size(), " bytes left)"));
    }
    const auto payload = bytes.subspan(kRecordHeaderBytes, header.bytes);
    if (!handle_record(header, payload, sink)) {
      return wrong(cat("sent a record of kind ", static_cast<int>(header.kind), " with ",
                       header.bytes, " bytes that makes no sense (lane ",
                       static_cast<int>(header.lane), ", sequence ", header.sequence, ", position ",
                       header.position, ")"));
    }
    bytes = bytes.subspan(kRecordHeaderBytes + header.bytes);
  }
  return true;
}

bool RdmaPeer::handle_record(const RecordHeader& header, std::span<const std::byte> payload,
                             Sink& sink) {
  if (header.kind == RecordKind::path) {
    // This record may arrive before the word `ready`, which takes the socket.
    if (is_open_ || (state_ != State::joining && state_ != State::testing)) return false;
    Reader reader(payload);
    const auto their_cut = reader.get<uint32_t>();
    if (!reader.done()) return false;
    link_.cuts.eager_bytes = std::min(link_.cuts.eager_bytes, their_cut);
    is_open_ = true;
    begin_if_ready(sink);
    return true;
  }
  if (!is_connected()) return false;
  switch (header.kind) {
    case RecordKind::control:
      return inbound_.control(rank_, header, payload, sink);
    case RecordKind::data:
      return inbound_.data(header, payload);
    case RecordKind::grant:
      return outbound_.granted(header, payload);
    case RecordKind::ready:
      return inbound_.ready(header);
    case RecordKind::offer:
      return inbound_.offered(header);
    case RecordKind::path:
      break;
  }
  return false;
}

// ---- to the device ----

bool RdmaPeer::report(Sink& sink) {
  if (!is_connected()) return false;
  const bool moved = outbound_.report(sink);
  return inbound_.report(sink) || moved;
}

bool RdmaPeer::end_if_at_fault(Sink& sink) {
  if (link_.fault.empty() || has_ended()) return false;
  // An earlier failure has caused this fault, too. keep_alive() ends the peer with that failure.
  if (!echo_.empty()) return false;
  give_up(sink, link_.fault);
  return true;
}

void RdmaPeer::push() {
  if (has_failed() || has_ended() || link_.pairs.empty() || !echo_.empty()) return;
  outbound_.pump_messages();
  inbound_.pump();
  if (latency_timer_.wants_request()) time_request();
  // Messages go first: a peer needs its grants while the bytes of many writes are on the wire.
  link_.outbox.flush(link_.pairs);
  link_.outbox.return_credits(link_.pairs);
  outbound_.pump_writes();
  for (Pair& pair : link_.pairs) {
    if (pair.is_flushed()) continue;
    if (Status flushed = pair.flush(); !flushed.ok()) link_.fault = flushed.message();
  }
}

// ---- the socket ----

void RdmaPeer::check_socket(Nanoseconds now, Sink& sink) {
  if (has_failed() || has_ended()) return;
  bool heard = false;
  const Status turned = socket_.turn(heard);
  if (heard) liveness_->received(now);
  meet(sink);
  if (has_failed()) return;
  if (turned.ok()) return;
  const std::string said = socket_.last_message();
  end_ = said.empty() ? turned.message() : cat("gave up and said: ", said);
  ended_at_ = now;
  socket_.close();
}

void RdmaPeer::keep_alive(Nanoseconds now, Sink& sink) {
  if (has_failed() || has_ended()) return;
  if (!echo_.empty() && --checks_left_ == 0) return give_up(sink, cause_of_echo());
  liveness_->polled(now);
  if (std::exchange(heard_, false)) liveness_->received(now);
  if (liveness_->is_silent(now)) return fail(sink, liveness_->cause());
  if (liveness_->is_heartbeat_due(now)) {
    socket_.say(GreetingSocket::Word::alive);
    liveness_->sent(now);
  }
  if (!socket_.is_flushed()) check_socket(now, sink);
  if (is_connected() && echo_.empty()) link_.pairs.front().request_tail_completion();
}

}  // namespace rdmacoll::rdma
