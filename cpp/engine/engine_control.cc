// What the engine says to its peers and hears from them, and what it tells a person.
#include <algorithm>

#include "base/text.h"
#include "engine/engine.h"

namespace rdmacoll {

// ---- what peers say ----

void Engine::connected(int peer) {
  planner_.connected();
  log_.debug(cat("connected to ", world_.describe(peer)));
  // It has asked for this connection, and must not take our end for the cause.
  if (!failure_.ok()) post(peer, FailureMessage{failure_.detail().rank, failure_});
}

void Engine::control(int peer, std::span<const std::byte> bytes) {
  Message message;
  if (!decode(world_.epoch, world_.size(), bytes, message)) {
    broken_protocol(peer, cat("a damaged control message of ", bytes.size(), " bytes"));
    return;
  }
  std::visit([&](auto& body) { handle(peer, body); }, message);
}

void Engine::handle(int peer, ReadyMessage& message) {
  if (message.era != plan_.era()) return;  // said before its sender knew of the plan, or of its end
  for (const ReadyRecord& record : message.records) {
    if (!readiness_.add(record, turned_at_)) {
      broken_protocol(peer, "readiness for an operation that it cannot have");
      return;
    }
  }
}

void Engine::handle(int peer, InternMessage& message) {
  if (!table_.add(message.id, message.bytes)) broken_protocol(peer, "a number out of order");
  post_down(message);
}

void Engine::handle(int peer, Decision& decision) {
  if (!pass_down(decision)) return broken_protocol(peer, "numbers of rows that are not its ranks'");
  obey(agreed_of(std::move(decision)));
}

void Engine::handle(int, VerdictMessage& message) {
  post_down(message);
  apply(message);
}

void Engine::handle(int peer, FailureMessage& message) {
  silent_.insert(peer);
  unanswered_.erase(peer);
  // Who leaves with operations in flight fails the others, and knows it: its own end goes on.
  if (leaving_ && message.rank == world_.rank) return;
  fail(message.rank, message.status);
}

void Engine::handle(int peer, LeavingMessage& message) {
  if (peer == message.rank) said_goodbye_[peer] = message;
  if (!gone_.insert(message.rank).second) return;
  post_neighbours(message, peer);
  if (message.unfinished) {
    const Member& member = world_.members[message.rank];
    fail(message.rank, rank_failed(message.rank, member.host, member.pid,
                                   cat("left while it had operations in flight",
                                       message.cause.empty() ? "" : ": ", message.cause)));
  } else {
    depart(message);
  }
}

void Engine::handle(int peer, GoodbyeMessage& message) {
  said_goodbye_[peer] = message.leaving;
  silent_.insert(peer);
  to_answer_.insert(peer);
}

void Engine::handle(int peer, FarewellMessage&) { unanswered_.erase(peer); }

void Engine::handle(int peer, FragmentMessage& message) {
  std::vector<std::byte>& all = fragments_[peer];
  if (all.size() + message.bytes.size() > kMessageBytesMax) {
    return broken_protocol(peer, "a control message without an end");
  }
  const auto bytes = std::as_bytes(std::span(message.bytes));
  all.insert(all.end(), bytes.begin(), bytes.end());
  if (!message.is_last) return;
  const std::vector<std::byte> whole = std::exchange(all, {});
  Message body;
  if (!decode(world_.epoch, world_.size(), whole, body) ||
      std::holds_alternative<FragmentMessage>(body)) {
    return broken_protocol(peer, cat("a damaged control message of ", whole.size(), " bytes"));
  }
  std::visit([&](auto& inner) { handle(peer, inner); }, body);
}

void Engine::apply(const VerdictMessage& verdict) {
  const UnitKey key{verdict.name, verdict.iteration};
  if (catch_up_.names(key)) {
    const bool is_started = judge_started(key, verdict.status);
    if (is_started && is_root()) log_.error(verdict.status.message());
    unit_joined(key);
    if (is_started) return;
  }
  if (std::find(verdict.ranks.begin(), verdict.ranks.end(), world_.rank) == verdict.ranks.end()) {
    return;  // not submitted here (yet): then the answer comes for it
  }
  const auto found = undecided_.find(key);
  if (found == undecided_.end()) return;
  const OperationRef operation = std::move(found->second);
  undecided_.erase(found);
  if (is_root()) log_.error(verdict.status.message());  // the others raise it; once is enough here
  complete(operation, verdict.status);
}

void Engine::broken_protocol(int peer, const std::string& what) {
  const Member& member = world_.members[peer];
  fail(peer, rank_failed(peer, member.host, member.pid, cat("it sent ", what)));
}

// ---- control messages ----

void Engine::post(int peer, const Message& message) {
  if (ended_ || lost_.contains(peer)) return;
  for (std::vector<std::byte>& bytes : encode_in_parts(world_.epoch, message)) {
    ++control_messages_;
    // Inside poll() the transport must not be called: what is said there leaves right after it.
    if (!polling_ && !outbox_.contains(peer) && transport_.is_connected(peer) &&
        transport_.post_control(peer, bytes).ok()) {
      continue;
    }
    outbox_[peer].push_back(std::move(bytes));
  }
}

void Engine::post_down(const Message& message) {
  for (int peer : neighbours_) {
    if (is_root() || peer != neighbours_.front()) post(peer, message);
  }
}

// Each child is told of an alltoall what the ranks of its subtree need. False: it says something
// else of them.
bool Engine::pass_down(const Decision& decision) {
  if (decision.most_rows == 0) {
    post_down(decision);
    return true;
  }
  const std::vector<int> mine = tree_subtree(world_.rank, world_.size());
  Decision narrowed = decision;
  for (int child : tree_children(world_.rank, world_.size())) {
    const std::vector<int> below = tree_subtree(child, world_.size());
    if (!columns_of(decision.rows, mine, below, narrowed.rows)) return false;
    post(child, narrowed);
  }
  return true;
}

void Engine::post_neighbours(const Message& message, int except) {
  for (int peer : neighbours_) {
    if (peer != except) post(peer, message);
  }
}

bool Engine::poll_transport() {
  polling_ = true;
  const bool moved = transport_.poll(*this);
  polling_ = false;
  return flush_outbox() || moved;
}

bool Engine::flush_outbox() {
  bool moved = false;
  for (auto entry = outbox_.begin(); entry != outbox_.end();) {
    auto& [peer, waiting] = *entry;
    while (!waiting.empty() && transport_.is_connected(peer) &&
           transport_.post_control(peer, waiting.front()).ok()) {
      waiting.pop_front();
      moved = true;
    }
    entry = waiting.empty() ? outbox_.erase(entry) : std::next(entry);
  }
  return moved;
}

// ---- telling ----

std::string Engine::metrics_json(uint64_t wakeups) const {
  const Transport::Counters wire = transport_.counters();
  Nanoseconds busy = busy_;
  if (in_flight_ > 0) busy += clock_.now() - busy_since_;
  const auto field = [](std::string_view name, auto value) {
    return cat("\"", name, "\": ", value);
  };
  return cat(
      "{",
      join(
          std::vector<std::string>{
              field("control_messages", control_messages_), field("handshakes", wire.handshakes),
              field("registrations", wire.registrations),
              field("engine_allocations", executor_.allocations() + planner_.programs()),
              field("bytes_copied", wire.bytes_copied + compute_.bytes_copied()),
              field("bytes_sent", wire.bytes_sent), field("bytes_received", wire.bytes_received),
              field("batches", executor_.batches()), field("plans", plans()),
              field("plans_left", plans_left()), field("wakeups", wakeups),
              field("connections", wire.connections), field("doorbells", wire.doorbells),
              field("operations", operations_), field("tensors", tensors_),
              field("payload_bytes", payload_bytes_),
              field("communication_s", static_cast<double>(busy) / kSecond)},
          ", "),
      "}");
}

std::string Engine::state() const {
  std::string text = cat("rdmacoll ", world_.describe(world_.rank), " of ", world_.size(), ": ",
                         in_flight_, " operations in flight, ", decided_.size(),
                         " decided and not started, ", decision_log_.accepted(), " decisions\n");
  for (const auto& [key, operation] : undecided_) {
    text += cat("  ", operation->label(), " waits for its decision\n");
  }
  constexpr std::string_view kPhases[] = {"by the log", "by a plan", "leaving a plan"};
  text += cat("  era ", plan_.era(), ", ", kPhases[static_cast<int>(plan_.phase())], ": ",
              agreed_.size(), " decisions wait for operations, ", held_.size(),
              " operations for other ranks\n");
  text += readiness_.state() + executor_.state();
  if (!failure_.ok()) text += cat("  failed: ", failure_.message(), "\n");
  return text;
}

}  // namespace rdmacoll
