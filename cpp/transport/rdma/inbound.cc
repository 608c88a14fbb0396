#include "transport/rdma/inbound.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"

namespace rdmacoll::rdma {
namespace {

static_assert(kTargetsMax <= UINT16_MAX, "the number of a target is half of an immediate");
// A transfer with this many unwritten targets in staging buffers lets other transfers have a turn.
constexpr std::size_t kStagesOfOne = 2;
// The largest buffer of an early transfer that is kept for reuse.
constexpr std::size_t kEarlyBytesKept = 8 << 10;

}  // namespace

// ---- control ----

bool Inbound::control(int peer, const RecordHeader& header, std::span<const std::byte> payload,
                      Sink& sink) {
  const uint64_t length = header.sequence;
  if (length > kControlBytesMax || header.position != control_.size() ||
      header.position + payload.size() > length || (payload.empty() && length > 0)) {
    return false;
  }
  if (payload.size() == length) {
    sink.control(peer, payload);
    return true;
  }
  control_.insert(control_.end(), payload.begin(), payload.end());
  if (control_.size() == length) {
    sink.control(peer, control_);
    control_.clear();
  }
  return true;
}

// ---- transfers in messages ----

Status Inbound::post_recv(const Transfer& transfer) {
  const std::size_t bytes = total_bytes(transfer.pieces);
  if (bytes <= link_.cuts.eager_bytes) {
    check_eager(transfer.pieces);
    return expect_eager(transfer, static_cast<uint32_t>(bytes));
  }
  if (by_key_.size() >= kTransfersMax) return Status::busy();
  const uint32_t index = receivings_.take();
  const bool is_new = by_key_.insert(transfer.lane, transfer.sequence, index);
  RC_ASSERT(is_new, cat("sequence ", transfer.sequence, " of lane ", int{transfer.lane},
                        " is posted twice"));
  Receiving& receiving = receivings_[index];
  receiving.progress.begin(transfer);
  receiving.written = receiving.granted = 0;
  receiving.targets = 0;
  receiving.is_ready = false;
  receiving.flushes = 0;
  receiving.landed.clear();
  const uint64_t of_gpus = hold_gpu_memory(rank_state_, transfer.pieces);
  receiving.has_gpu = of_gpus > 0;
  rank_state_.counters.gpu_bytes_received += of_gpus;
  receiving.is_staged =
      !std::all_of(transfer.pieces.begin(), transfer.pieces.end(),
                   [&](const Piece& piece) { return rank_state_.slabs.contains(piece); });
  RC_ASSERT(!receiving.has_gpu || !receiving.is_staged,
            "memory of a GPU is received beside memory that no NIC knows");
  (receiving.is_staged ? asking_ : granting_).push(index);
  pump();
  return {};
}

Status Inbound::expect_eager(const Transfer& transfer, uint32_t bytes) {
  const uint32_t* early = early_.get(transfer.lane, transfer.sequence);
  if (early == nullptr) {
    if (expected_.size() >= kTransfersMax) return Status::busy();
    claim_offer(transfer, bytes);
    const uint32_t index = eager_.take(transfer);
    const bool is_new = expected_.insert(transfer.lane, transfer.sequence, index);
    RC_ASSERT(is_new, cat("sequence ", transfer.sequence, " is posted twice"));
    return {};
  }
  const uint32_t at = *early;
  early_.erase(transfer.lane, transfer.sequence);
  early_bytes_.give_back(at);
  early_cost_ -= eager_cost(early_bytes_[at].size());
  link_.outbox.claim(eager_cost(early_bytes_[at].size()));
  if (early_bytes_[at].size() != bytes) {
    link_.fault = cat("it sent ", early_bytes_[at].size(), " bytes for a transfer of ", bytes);
    return {};
  }
  scatter(early_bytes_[at].data(), transfer.pieces);
  // Large buffers are released, since they would pile up among the small ones.
  if (early_bytes_[at].capacity() > kEarlyBytesKept) early_bytes_[at] = {};
  rank_state_.counters.bytes_copied += bytes;
  received_.push_back(transfer.cookie);
  return {};
}

bool Inbound::data(const RecordHeader& header, std::span<const std::byte> payload) {
  if (payload.size() > link_.cuts.eager_bytes) return false;
  rank_state_.counters.bytes_received += payload.size();
  rank_state_.counters.bytes_copied += payload.size();
  if (const uint32_t* expected = expected_.get(header.lane, header.sequence)) {
    const uint32_t index = *expected;
    Progress& progress = eager_[index];
    if (progress.bytes != payload.size()) return false;
    scatter(payload.data(), progress.pieces);
    received_.push_back(progress.cookie);
    expected_.erase(header.lane, header.sequence);
    eager_.give_back(index);
    link_.outbox.claim(eager_cost(payload.size()));
    return true;
  }
  early_cost_ += eager_cost(payload.size());
  if (early_cost_ > link_.eager_bytes) return false;
  const uint32_t at = early_bytes_.take();
  if (!early_.insert(header.lane, header.sequence, at)) {
    early_bytes_.give_back(at);
    return false;
  }
  early_bytes_[at].assign(payload.begin(), payload.end());
  return true;
}

// Call when the receive of an offered transfer is posted.
void Inbound::claim_offer(const Transfer& transfer, uint32_t bytes) {
  const uint32_t* offer = offers_.get(transfer.lane, transfer.sequence);
  if (offer == nullptr) return;
  if (*offer != bytes) {
    link_.fault = cat("it offered ", *offer, " bytes for a transfer of ", bytes);
    return;
  }
  offers_.erase(transfer.lane, transfer.sequence);
  taking_.push({transfer.lane, transfer.sequence});
}

bool Inbound::offered(const RecordHeader& header) {
  if (header.bytes > 0 || header.position > link_.cuts.eager_bytes) return false;
  const auto bytes = static_cast<uint32_t>(header.position);
  if (const uint32_t* expected = expected_.get(header.lane, header.sequence)) {
    if (eager_[*expected].bytes != bytes) return false;
    taking_.push({header.lane, header.sequence});
    return true;
  }
  return offers_.size() < kTransfersMax && !early_.contains(header.lane, header.sequence) &&
         offers_.insert(header.lane, header.sequence, bytes);
}

// ---- transfers by grant ----

void Inbound::pump() {
  for (; !taking_.empty() && take_offer(taking_.front()); taking_.pop()) {
  }
  for (; !asking_.empty() && ask(asking_.front()); asking_.pop()) {
  }
  for (; !granting_.empty() && grant(granting_.front()); granting_.pop()) {
  }
  for (; !staged_.empty() && grant_staged(staged_.front()); staged_.pop()) {
  }
}

bool Inbound::take_offer(const Key& key) {
  if (link_.outbox.room() < 0) return false;
  link_.outbox.append({.kind = RecordKind::grant, .lane = key.lane, .sequence = key.sequence});
  return true;
}

bool Inbound::ask(uint32_t index) {
  if (link_.outbox.room() < 0) return false;
  const Progress& progress = receivings_[index].progress;
  link_.outbox.append(
      {.kind = RecordKind::grant, .lane = progress.lane, .sequence = progress.sequence});
  return true;
}

bool Inbound::ready(const RecordHeader& header) {
  const uint32_t* found = by_key_.get(header.lane, header.sequence);
  if (found == nullptr) return false;
  Receiving& receiving = receivings_[*found];
  if (!receiving.is_staged || std::exchange(receiving.is_ready, true)) return false;
  staged_.push(*found);
  return true;
}

std::size_t Inbound::targets_that_fit() const {
  const int64_t room = link_.outbox.room();
  return room <= 0 ? 0 : static_cast<std::size_t>(room) / kWriteTargetBytes;
}

// Grants as much as fits. Returns true when nothing is left to grant.
bool Inbound::grant(uint32_t index) {
  Progress& progress = receivings_[index].progress;
  while (progress.done < progress.bytes) {
    const std::size_t fit = targets_that_fit();
    const uint64_t position = progress.done;
    targets_.clear();
    while (progress.done < progress.bytes && targets_.size() < fit && has_slot()) {
      const Piece& piece = progress.pieces[progress.piece];
      const std::byte* address = piece.data + progress.within;
      const std::size_t left = piece.bytes - progress.within;
      if (left == 0) {
        progress.advance(0);
        continue;
      }
      Status status;
      const RailKeys* keys = rank_state_.slabs.keys(address, status);
      if (keys == nullptr) {
        link_.fault = status.message();
        return false;
      }
      const std::size_t bytes =
          std::min({left, rank_state_.slabs.reach(address), std::size_t{link_.cuts.chunk_bytes}});
      add_target(index, {piece.data + progress.within, bytes, piece.gpu}, *keys, 0);
      progress.advance(bytes);
    }
    if (targets_.empty()) return false;
    send_grant(progress, position);
  }
  return true;
}

// Grants through staging buffers. The sender has confirmed that it is ready, so a buffer is held
// only for its write.
bool Inbound::grant_staged(uint32_t index) {
  Receiving& receiving = receivings_[index];
  Progress& progress = receiving.progress;
  // `progress` counts copied bytes. Granted bytes beyond it lie in targets that are not written
  // yet.
  uint64_t granted = receiving.granted;
  const uint64_t position = granted;
  targets_.clear();
  while (granted < progress.bytes && targets_.size() < targets_that_fit() &&
         receiving.targets + targets_.size() < kStagesOfOne && has_slot()) {
    uint16_t stage = 0;
    Status status;
    Stages& stages = rank_state_.receive_stages;
    if (!stages.take(stage, status)) {
      if (!status.ok()) link_.fault = status.message();
      break;
    }
    const auto bytes = static_cast<uint32_t>(
        std::min<uint64_t>({progress.bytes - granted, stages.bytes(), link_.cuts.chunk_bytes}));
    add_target(index, {stages.at(stage), bytes}, stages.keys(), static_cast<uint16_t>(stage + 1));
    granted += bytes;
  }
  receiving.granted = granted;
  receiving.targets += static_cast<uint32_t>(targets_.size());
  if (!targets_.empty()) send_grant(progress, position);
  return granted == progress.bytes;
}

bool Inbound::has_slot() const { return slots_.used() < kTargetsMax; }

void Inbound::add_target(uint32_t index, const Piece& memory, const RailKeys& keys,
                         uint16_t stage) {
  const uint32_t number = slots_.take();
  Slot& slot = slots_[number];
  ++slot.use;
  slot.is_granted = true;
  slot.stage = stage;
  slot.receiving = index;
  slot.bytes = static_cast<uint32_t>(memory.bytes);
  // Staged data must be written in order, and one queue keeps the order.
  const uint32_t rail = stage != 0 ? 0 : next_rail_++ % static_cast<uint32_t>(link_.pairs.size());
  slot.landed = {rail, memory.gpu, memory.data + memory.bytes - 1};
  targets_.push_back({.address = reinterpret_cast<uint64_t>(memory.data),
                      .key = keys[rail].remote,
                      .bytes = slot.bytes,
                      .immediate = number << 16 | slot.use,
                      .rail = rail});
}

void Inbound::send_grant(const Progress& progress, uint64_t position) {
  std::byte* payload =
      link_.outbox.append({.kind = RecordKind::grant,
                           .lane = progress.lane,
                           .bytes = static_cast<uint32_t>(targets_.size() * kWriteTargetBytes),
                           .sequence = progress.sequence,
                           .position = position});
  for (const WriteTarget& target : targets_) {
    encode(target, payload);
    payload += kWriteTargetBytes;
  }
}

bool Inbound::written(uint32_t immediate) {
  const uint32_t number = immediate >> 16;
  if (number >= slots_.size()) return false;
  Slot& slot = slots_[number];
  if (!slot.is_granted || slot.use != (immediate & 0xffff)) return false;
  slot.is_granted = false;
  slots_.give_back(number);
  Receiving& receiving = receivings_[slot.receiving];
  rank_state_.counters.bytes_received += slot.bytes;
  if (slot.stage != 0) {
    const auto stage = static_cast<uint16_t>(slot.stage - 1);
    receiving.progress.copy_in(std::span(rank_state_.receive_stages.at(stage), slot.bytes));
    rank_state_.receive_stages.free(stage);
    rank_state_.counters.bytes_copied += slot.bytes;
    --receiving.targets;
  }
  if (slot.landed.gpu != kHost) note_landed(receiving, slot.landed);
  receiving.written += slot.bytes;
  if (receiving.written == receiving.progress.bytes) flush(slot.receiving);
  return true;
}

// ---- memory of GPUs ----

void Inbound::note_landed(Receiving& receiving, const Landed& landed) {
  for (Landed& known : receiving.landed) {
    if (known.rail == landed.rail && known.gpu == landed.gpu) {
      known.byte = landed.byte;
      return;
    }
  }
  receiving.landed.push_back(landed);
}

// Reports the transfer once kernels see all of it. Each NIC that wrote has to flush its writes.
void Inbound::flush(uint32_t index) {
  Receiving& receiving = receivings_[index];
  for (const Landed& landed : receiving.landed) {
    GpuMemoryFacts& facts = rank_state_.gpus->registrations.facts();
    const WriteFlush way = facts.write_flush(landed.gpu);
    if (way == WriteFlush::read) {
      rank_state_.gpus->flushes.ask(landed.rail, landed.byte, *this, index);
      ++receiving.flushes;
      ++flushes_;
    } else if (way == WriteFlush::call) {
      if (Status done = facts.flush(landed.gpu); !done.ok()) return flush_failed(done.message());
    }
  }
  if (receiving.flushes == 0) finish(index);
}

void Inbound::flushed(uint32_t number) {
  --flushes_;
  if (--receivings_[number].flushes == 0) finish(number);
}

void Inbound::flush_failed(const std::string& cause) {
  if (link_.fault.empty()) link_.fault = cause;
}

void Inbound::finish(uint32_t index) {
  Receiving& receiving = receivings_[index];
  const Progress& progress = receiving.progress;
  if (std::exchange(receiving.has_gpu, false)) release_gpu_memory(rank_state_, progress.pieces);
  received_.push_back(progress.cookie);
  by_key_.erase(progress.lane, progress.sequence);
  receivings_.give_back(index);
}

bool Inbound::report(Sink& sink) {
  if (received_.empty()) return false;
  for (const uint64_t cookie : received_) sink.received(cookie);
  received_.clear();
  return true;
}

void Inbound::clear() {
  for (uint32_t number = 0; number < slots_.size(); ++number) {
    const Slot& slot = slots_[number];
    if (slot.is_granted && slot.stage != 0) {
      rank_state_.receive_stages.free(static_cast<uint16_t>(slot.stage - 1));
    }
  }
  for (uint32_t index = 0; index < receivings_.size(); ++index) {
    Receiving& receiving = receivings_[index];
    if (receiving.has_gpu) release_gpu_memory(rank_state_, receiving.progress.pieces);
  }
  if (rank_state_.gpus != nullptr) rank_state_.gpus->flushes.forget(*this);
  flushes_ = 0;
  control_.clear();
  eager_.clear();
  expected_.clear();
  early_.clear();
  early_bytes_.clear();
  early_cost_ = 0;
  offers_.clear();
  taking_.clear();
  receivings_.clear();
  by_key_.clear();
  granting_.clear();
  asking_.clear();
  staged_.clear();
  slots_.clear();
  received_.clear();
}

}  // namespace rdmacoll::rdma
