// Control messages, and records that carry no data.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "transport/shm/outbound.h"

namespace rdmacoll::shm {
namespace {

// The smallest fragment of a control message, unless it is the last one.
constexpr std::size_t kControlFragmentMin = 1024;

}  // namespace

void Outbound::write_control(std::byte* place, std::span<const std::byte> bytes, uint32_t total,
                             uint64_t offset) {
  if (!bytes.empty()) std::memcpy(place, bytes.data(), bytes.size());
  RecordHeader record = header(RecordKind::control, {.sequence = control_number_}, bytes.size());
  record.count = total;
  record.extra = offset;
  commit(record);
  if (offset + bytes.size() == total) ++control_number_;
}

Status Outbound::post_control(std::span<const std::byte> message) {
  RC_ASSERT(message.size() <= kControlBytesMax, cat("a control message of ", message.size()));
  if (!control_.empty() || !notes_.empty()) return Status::busy();
  if (message.size() > kControlFragmentMax) {
    control_.assign(message.begin(), message.end());
    control_done_ = 0;
    flush_control();
  } else {
    std::byte* place = ring_.reserve(message.size());
    if (place == nullptr) return Status::busy();
    write_control(place, message, static_cast<uint32_t>(message.size()), 0);
  }
  ++counters_.control_messages;
  counters_.bytes_sent += message.size();
  return {};
}

bool Outbound::flush_control() {
  bool moved = false;
  while (!control_.empty()) {
    const std::size_t left = control_.size() - control_done_;
    const std::size_t bytes = std::min(left, ring_.room());
    const std::size_t wanted = std::max(bytes, std::min(left, kControlFragmentMin));
    std::byte* place = ring_.reserve(wanted);  // if refused, we are woken when there is room
    if (place == nullptr) break;
    if (wanted > bytes) continue;  // room has appeared meanwhile: look again
    const auto rest = std::span(control_).subspan(control_done_, bytes);
    write_control(place, rest, static_cast<uint32_t>(control_.size()), control_done_);
    control_done_ += bytes;
    if (control_done_ == control_.size()) control_.clear();
    moved = true;
  }
  return moved;
}

void Outbound::note(RecordKind kind, uint32_t count, uint64_t extra,
                    std::span<const std::byte> payload) {
  notes_.push_back({kind, count, extra, {payload.begin(), payload.end()}});
  flush_notes();
}

// Writes no note while a control message has fragments left, since they must follow one another.
bool Outbound::flush_notes() {
  std::size_t written = 0;
  for (; control_.empty() && written < notes_.size(); ++written) {
    const Note& note = notes_[written];
    std::byte* const place = ring_.reserve(note.payload.size());
    if (place == nullptr) break;
    if (!note.payload.empty()) std::memcpy(place, note.payload.data(), note.payload.size());
    RecordHeader record = header(note.kind, {}, note.payload.size());
    record.count = note.count;
    record.extra = note.extra;
    commit(record);
  }
  notes_.erase(notes_.begin(), notes_.begin() + static_cast<std::ptrdiff_t>(written));
  return written > 0;
}

void Outbound::heartbeat() {
  if (ring_.room() == 0 || ring_.reserve(0) == nullptr) return;
  commit(header(RecordKind::heartbeat, {}, 0));
}

}  // namespace rdmacoll::shm
