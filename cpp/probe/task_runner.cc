#include "probe/task_runner.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace rdmacoll::probe {
namespace {

constexpr Lane kLane = 0;
constexpr std::size_t kSlotAlignment = 64;
constexpr uint32_t kRoundsNoted = 1u << 20;

std::size_t slot_bytes(const Task& task) {
  return (task.bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

}  // namespace

Status PoolMemory::reach(std::size_t bytes) {
  if (bytes <= bytes_) return {};
  pool_.free(data_);
  bytes_ = 0;
  data_ = pool_.allocate(bytes);
  if (data_ == nullptr) return pool_exhausted(pool_, bytes, " to measure with");
  bytes_ = bytes;
  return {};
}

TaskRunner::TaskRunner(Transport& transport, const World& world, int peer, MemoryPool& pool,
                       const Clock& clock)
    : transport_(transport),
      world_(world),
      peer_(peer),
      pool_(pool),
      clock_(clock),
      out_(pool),
      in_(pool) {}

Piece TaskRunner::slot(const PoolMemory& memory, uint32_t number) const {
  return {memory.data() + (number % task_.window) * slot_bytes(task_), task_.bytes};
}

Status TaskRunner::begin(const Task& task, bool leads) {
  RC_ASSERT(is_done(), "one task after the other");
  // Divides instead of multiplying, since a peer's numbers could overflow.
  if (task.bytes > pool_.size() / task.window) {
    return pool_exhausted(pool_, task.bytes, " to measure with");
  }
  task_ = task;
  leads_ = leads;
  sends_ = task.sends(leads) ? task.rounds : 0;
  receives_ = task.receives(leads) ? task.rounds : 0;
  posted_sends_ = sent_ = posted_receives_ = received_ = 0;
  rounds_.clear();
  const std::size_t bytes = slot_bytes(task) * task.window;
  if (sends_ > 0) RC_RETURN_IF_ERROR(out_.reach(bytes));
  if (receives_ > 0) RC_RETURN_IF_ERROR(in_.reach(bytes));
  for (uint32_t i = 0; task.checks && i < task.window; ++i) {
    if (sends_ > 0) paint(slot(out_, i), world_.rank, i);
    if (receives_ > 0) std::memset(slot(in_, i).data, 0, task.bytes);
  }
  round_began_ = clock_.now();
  return {};
}

uint64_t TaskRunner::count_wrong_bytes() const {
  uint64_t wrong = 0;
  for (uint32_t i = 0; task_.checks && receives_ > 0 && i < std::min(task_.window, receives_);
       ++i) {
    wrong += count_wrong(slot(in_, i), peer_, i);
  }
  return wrong;
}

bool TaskRunner::turn() {
  if (!failure_.ok()) return false;
  bool moved = transport_.poll(*this);
  note_rounds();
  // Receives come before sends, since the peer's sends wait for them.
  moved |= post_messages();
  moved |= post_receives();
  moved |= post_sends();
  return moved;
}

void TaskRunner::note_rounds() {
  if (task_.pattern == Pattern::stream || rounds_.size() >= kRoundsNoted) return;
  if (std::min(sent_, received_) <= rounds_.size()) return;
  const Nanoseconds now = clock_.now();
  rounds_.push_back(now - round_began_);
  round_began_ = now;
}

// A busy transfer is offered again at the next turn.
bool TaskRunner::accepted(const Status& status) {
  if (!status.ok() && !status.is_busy() && failure_.ok()) failure_ = status;
  return status.ok();
}

bool TaskRunner::post_messages() {
  bool moved = false;
  while (!outbox_.empty() && accepted(transport_.post_control(peer_, outbox_.front()))) {
    outbox_.pop_front();
    moved = true;
  }
  return moved;
}

bool TaskRunner::post_receives() {
  bool moved = false;
  while (posted_receives_ < std::min(receives_, received_ + task_.window)) {
    const Piece piece = slot(in_, posted_receives_);
    const Transfer transfer{peer_, kLane, receive_sequence_, {&piece, 1}, posted_receives_};
    if (!accepted(transport_.post_recv(transfer))) break;
    ++receive_sequence_;
    ++posted_receives_;
    moved = true;
  }
  return moved;
}

bool TaskRunner::may_send() const {
  if (posted_sends_ >= std::min(sends_, sent_ + task_.window)) return false;
  if (task_.pattern == Pattern::stream) return true;
  const bool answers = task_.pattern == Pattern::ping_pong && !leads_;
  return received_ >= posted_sends_ + (answers ? 1 : 0);
}

bool TaskRunner::post_sends() {
  bool moved = false;
  while (may_send()) {
    const Piece piece = slot(out_, posted_sends_);
    const Transfer transfer{peer_, kLane, send_sequence_, {&piece, 1}, posted_sends_};
    if (!accepted(transport_.post_send(transfer))) break;
    ++send_sequence_;
    ++posted_sends_;
    moved = true;
  }
  return moved;
}

void TaskRunner::say(const Message& message) { outbox_.push_back(encode(message)); }

bool TaskRunner::take(Message& message) {
  if (inbox_.empty()) return false;
  message = inbox_.front();
  inbox_.pop_front();
  return true;
}

void TaskRunner::control(int, std::span<const std::byte> bytes) {
  Message message;
  if (decode(bytes, message)) {
    inbox_.push_back(message);
  } else if (failure_.ok()) {
    failure_ = {Code::failed, cat(peer_text(),
                                  " sent nonsense in a test of the path to it: the "
                                  "ranks run different builds of rdmacoll. Install "
                                  "one version everywhere.")};
  }
}

void TaskRunner::peer_failed(int peer, const std::string& cause) {
  if (failure_.ok()) failure_ = world_.failed(peer, cause);
}

}  // namespace rdmacoll::probe
