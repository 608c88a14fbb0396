// The engine's control messages, metrics and state.
#include <algorithm>
#include <utility>

#include "base/text.h"
#include "engine/engine.h"
#include "engine/process_set.h"

namespace rdmacoll {

// ---- messages of peers ----

void Engine::connected(int peer) {  // a rank of the job, as for all callbacks of the transport
  for (const auto& set : sets_) set->connected();
  log_.debug(cat("connected to ", world_.describe(peer)));
  // The peer has requested this connection. It must learn why this rank ends, and not blame it.
  if (!now_.goes_on()) {
    post(JobRank(peer), 0, FailureMessage{now_.failure.detail().rank, now_.failure});
  } else if (now_.leaving) {
    post(JobRank(peer), 0, goodbye_);
  }
}

void Engine::answered(int peer, const std::string& refusal) {
  for (const auto& set : sets_) set->connected();
  if (refusal.empty() || std::exchange(has_warned_of_gpus_, true)) return;
  log_.warning(cat("Arrays on GPUs go through host memory between this rank and ",
                   world_.describe(peer), ", which does not reach this rank's GPU: ", refusal));
}

void Engine::control(int peer, std::span<const std::byte> bytes) {
  hear(JobRank(peer), bytes, false);
}

// `is_whole`: assembled from fragments.
void Engine::hear(JobRank peer, std::span<const std::byte> bytes, bool is_whole) {
  const uint32_t number = addressed_set(bytes);
  ProcessSet* const set = find_set(number);
  // Ignore the last messages for a set that was removed here.
  if (set == nullptr && table_.was_added(number) && table_.find(number) == nullptr) return;
  Message message;
  if (set == nullptr ||
      !decode(world_.epoch, set->world().size(), bytes, message, world_.servers) ||
      (is_whole && std::holds_alternative<FragmentMessage>(message))) {
    const uint32_t epoch = epoch_of(bytes);
    broken_protocol(peer, epoch == world_.epoch
                              ? cat("a damaged control message of ", bytes.size(), " bytes")
                              : cat("a control message of epoch ", epoch, ", not ", world_.epoch));
    return;
  }
  std::visit(
      [&](auto& body) {
        if constexpr (requires { set->hear(peer, body); }) {
          using Body = std::remove_reference_t<decltype(body)>;
          const bool is_from_anybody = std::is_same_v<Body, ResultAddressMessage>;
          if (!is_from_anybody && !set->is_neighbour(peer)) {
            broken_protocol(peer, cat("a message to process set ", number, " out of place"));
          } else if (const std::string what = set->hear(peer, body); !what.empty()) {
            broken_protocol(peer, what);
          }
        } else {
          handle(peer, body);
        }
      },
      message);
}

void Engine::handle(JobRank peer, FailureMessage& message) {
  silent_.insert(peer);
  goodbyes_unanswered_.erase(peer);
  // A rank that leaves may fail the others, and its own end continues.
  if (now_.leaving && message.rank == me()) {
    ended_by_leaving_.emplace(peer, std::move(message.status));
    return;
  }
  // The peers of a suspended rank know only that it was silent. This rank knows the reason.
  if (message.rank == me() && fail_if_suspended()) return;
  fail(message.rank, std::move(message.status));
}

void Engine::handle(JobRank peer, LeavingMessage& message) {
  if (peer == message.rank) said_goodbye_[peer] = message;
  if (!departed_.try_emplace(message.rank, message.cause).second) return;
  if (!world_.is_server(world_.rank)) post_neighbours(message, peer);
  if (message.unfinished) {
    fail(message.rank, world_.failed(message.rank.value(),
                                     cat("left while it had operations in flight",
                                         message.cause.empty() ? "" : ": ", message.cause)));
  } else {
    depart(message);
  }
}

void Engine::handle(JobRank peer, GoodbyeMessage& message) {
  said_goodbye_[peer] = message.leaving;
  silent_.insert(peer);
  goodbyes_to_answer_.insert(peer);
}

void Engine::handle(JobRank peer, FarewellMessage&) { goodbyes_unanswered_.erase(peer); }

void Engine::handle(JobRank peer, FragmentMessage& message) {
  std::vector<std::byte>& all = fragments_[peer];
  if (all.size() + message.bytes.size() > kMessageBytesMax) {
    return broken_protocol(peer, "a control message without an end");
  }
  const auto bytes = std::as_bytes(std::span(message.bytes));
  all.insert(all.end(), bytes.begin(), bytes.end());
  if (message.is_last) hear(peer, std::exchange(all, {}), true);
}

// ---- control messages ----

void Engine::post(JobRank to, uint32_t set, const Message& message) {
  if (ended_ || now_.lost.contains(to)) return;
  for (std::vector<std::byte>& bytes : encode_in_parts(world_.epoch, message, set)) {
    ++control_messages_;
    // The transport must not be called inside poll(). Such messages leave right afterwards.
    if (!polling_ && !outbox_.contains(to) && transport_.is_connected(to.value()) &&
        transport_.post_control(to.value(), bytes).ok()) {
      continue;
    }
    outbox_[to].push_back(std::move(bytes));
  }
}

void Engine::post_neighbours(const Message& message, JobRank except) {
  for (JobRank peer : world_set().neighbours()) {
    // A leaving rank informs the servers itself. Other ranks pass the message along the tree only.
    if (peer != except && (except.is_none() || !world_.is_server(peer.value())))
      post(peer, 0, message);
  }
}

bool Engine::poll_transport() {
  polling_ = true;
  const bool moved = transport_.poll(*this);
  polling_ = false;
  return flush_outbox() || moved;
}

bool Engine::retry_outbox() {
  bool moved = false;
  for (auto entry = outbox_.begin(); entry != outbox_.end();) {
    auto& [peer, waiting] = *entry;
    while (!waiting.empty() && transport_.is_connected(peer.value()) &&
           transport_.post_control(peer.value(), waiting.front()).ok()) {
      waiting.pop_front();
      moved = true;
    }
    entry = waiting.empty() ? outbox_.erase(entry) : std::next(entry);
  }
  return moved;
}

// ---- metrics and state ----

std::string Engine::metrics_json(const WaitCounters& waits) const {
  const SetTotals sums = totals();
  const Transport::Counters wire = transport_.counters();
  const GpuCounters gpus = executor_.compute().gpu_counters();
  Nanoseconds busy = busy_;
  Nanoseconds late = waited_;
  if (in_flight_ > 0) {
    const Nanoseconds now = clock_.now();
    busy += now - busy_since_;
    if (now - moved_at_ >= kWaitingMin) late += now - moved_at_;
  }
  const auto seconds = [](Nanoseconds time) { return static_cast<double>(time) / kSecond; };
  const auto field = [](std::string_view name, auto value) {
    return cat("\"", name, "\": ", value);
  };
  return cat("{",
             join(
                 std::vector<std::string>{
                     field("control_messages", control_messages_),
                     field("handshakes", wire.handshakes),
                     field("registrations", wire.registrations),
                     field("engine_allocations", executor_.allocations() + sums.programs),
                     field("bytes_copied", wire.bytes_copied + executor_.compute().bytes_copied()),
                     field("bytes_staged", gpus.bytes_staged),
                     field("bytes_written_to_gpus", gpus.bytes_written),
                     field("bytes_between_gpus", gpus.bytes_between_gpus),
                     field("bytes_direct_sent", wire.gpu_bytes_sent),
                     field("bytes_direct_received", wire.gpu_bytes_received),
                     field("kernel_launches", gpus.kernel_launches),
                     field("gpus_preparing", gpus.preparing),
                     field("bytes_reduced", executor_.reduced().bytes),
                     field("bytes_reduced_beside_sends", executor_.reduced().beside_sends),
                     field("bytes_sent", wire.bytes_sent),
                     field("bytes_striped", wire.bytes_striped),
                     field("bytes_received", wire.bytes_received),
                     field("batches", executor_.batches()),
                     field("plans", sums.plans),
                     field("plans_left", sums.plans_left),
                     field("results_shared", sums.shared),
                     field("batches_in_place", sums.in_place),
                     field("process_sets", sets_.size()),
                     field("wakeups", waits.wakeups),
                     field("core_moves", waits.core_moves),
                     field("connections", wire.connections),
                     field("doorbells", wire.doorbells),
                     field("operations", operations_),
                     field("peers_waiting", executor_.peers_waiting()),
                     field("tensors", tensors_),
                     field("payload_bytes", payload_bytes_),
                     field("communication_s", seconds(busy)),
                     field("communication_waiting_s", seconds(std::min(late, busy))),
                     field("communication_moving_s", seconds(busy - std::min(late, busy)))},
                 ", "),
             "}");
}

std::string Engine::state() const {
  std::string text = cat("rdmacoll ", world_.describe(world_.rank), " of ", world_.size(), ": ",
                         in_flight_, " operations in flight\n");
  if (!held_.empty()) text += cat("  waits for callers' streams: ", held_.titles(), "\n");
  for (const auto& set : sets_) text += set->state();
  text += executor_.state();
  if (!now_.goes_on()) text += cat("  failed: ", now_.failure.message(), "\n");
  return text;
}

}  // namespace rdmacoll
