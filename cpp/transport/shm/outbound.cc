#include "transport/shm/outbound.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/text.h"

namespace rdmacoll::shm {
namespace {

// Sends up to this size are staged at once, without a grant, within the limit below.
constexpr std::size_t kEagerBytes = 64 * 1024;
constexpr std::size_t kEagerBytesMax = 1024 * 1024;
static_assert(kEagerBytes <= kStagedBytesMax);

}  // namespace

Status Outbound::open(RingProducer ring, Bell bell, bool one_copy) {
  ring_ = ring;
  bell_ = std::move(bell);
  one_copy_ = one_copy;
  wire_.reserve(kPiecesMax);
  if (one_copy_) return {};
  reserve_ = pool_.allocate(kStagedBytesMax);
  if (reserve_ != nullptr) return {};
  return Status(Code::failed, cat("no ", bytes_text(kStagedBytesMax),
                                  " are left in the memory pool for staging: raise "
                                  "TF_RDMA_BUF_SIZE"));
}

void Outbound::close() {
  ring_.end();
  sends_.for_each([this](const Key&, Send& send) { unstage(send); });
  sends_.clear();
  if (reserve_ != nullptr) pool_.free(reserve_);
  reserve_ = nullptr;
  staged_.clear();
  granted_.clear();
  releases_.clear();
  grants_.clear();
  notes_.clear();
  control_.clear();
  outstanding_ = 0;
  waiting_ = 0;
}

RecordHeader Outbound::header(RecordKind kind, const Key& key, std::size_t bytes) const {
  RecordHeader header;
  header.bytes = static_cast<uint32_t>(bytes);
  header.kind = kind;
  header.traffic = key.traffic;
  header.lane = key.lane;
  header.epoch = epoch_;
  header.sequence = key.sequence;
  return header;
}

void Outbound::ring_bell() { counters_.doorbells += bell_.ring() ? 1 : 0; }

void Outbound::commit(const RecordHeader& header, bool past_cache) {
  ring_.commit(header, past_cache);
  must_recheck_sleep_ = true;
  counters_.doorbells += bell_.ring_if_asleep() ? 1 : 0;
}

void Outbound::ring_behind_fence() {
  must_recheck_sleep_ = false;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ring_bell();
}

// ---- publications and sends -------------------------------------------------------------------

Outbound::Encoded Outbound::encode(std::span<const Piece> pieces) {
  Encoded encoded;
  wire_.clear();
  const std::byte* end = nullptr;
  for (const Piece& piece : pieces) {
    if (piece.bytes == 0) continue;
    encoded.bytes += piece.bytes;
    const bool on_gpu = piece.gpu != kHost;
    const bool in_pool = !on_gpu && pool_.contains(piece.data, piece.bytes);
    encoded.in_pool = encoded.in_pool && (in_pool || on_gpu);
    const uint64_t flag = in_pool ? kInPool : on_gpu ? kOnGpu : 0;
    if (piece.data == end && (wire_.back().bytes & (kInPool | kOnGpu)) == flag) {
      wire_.back().bytes += piece.bytes;
    } else {
      const uint64_t address = in_pool ? static_cast<uint64_t>(piece.data - pool_.base())
                                       : reinterpret_cast<uint64_t>(piece.data);
      wire_.push_back({address, piece.bytes | flag});
    }
    end = piece.data + piece.bytes;
  }
  return encoded;
}

// Call encode() first: the pieces are in wire_.
Status Outbound::write_publication(const Key& key, const Transfer& transfer, std::size_t bytes) {
  const bool listed = wire_.size() > kPiecesMax;
  const std::size_t payload = listed ? 0 : wire_.size() * sizeof(PieceRecord);
  std::byte* place = ring_.reserve(payload);
  if (place == nullptr) return Status::busy();

  Send* send = sends_.find(key);
  if (send != nullptr) --grants_early_;
  if (send == nullptr) send = &sends_.insert(key);
  send->stage = Stage::published;
  send->reported = false;
  send->eager = false;
  send->cookie = transfer.cookie;
  send->staging = nullptr;
  ++outstanding_;

  RecordHeader record = header(RecordKind::publish, key, payload);
  record.count = static_cast<uint32_t>(wire_.size());
  if (listed) {
    send->list.assign(wire_.begin(), wire_.end());
    record.extra = reinterpret_cast<uint64_t>(send->list.data());
  } else if (payload > 0) {
    std::memcpy(place, wire_.data(), payload);
  }
  commit(record);
  counters_.bytes_sent += bytes;
  return {};
}

Status Outbound::publish(const Transfer& transfer) {
  const Key key{Traffic::view, transfer.lane, transfer.sequence};
  RC_ASSERT(sends_.find(key) == nullptr, cat("published twice: sequence ", key.sequence));
  RC_ASSERT(transfer.pieces.size() <= kPiecesMax, cat(transfer.pieces.size(), " pieces"));
  const Encoded encoded = encode(transfer.pieces);
  RC_ASSERT(encoded.bytes <= kTransferBytesMax, cat(encoded.bytes, " bytes"));
  RC_ASSERT(encoded.in_pool || one_copy_, "published memory that the peer may not read");
  return write_publication(key, transfer, encoded.bytes);
}

Status Outbound::send_data(const Key& key, const Transfer& transfer, std::size_t bytes) {
  std::byte* place = ring_.reserve(bytes);
  if (place == nullptr) return Status::busy();
  const bool past_cache = store_policy_.gather(transfer.pieces, bytes, place);
  commit(header(RecordKind::data, key, bytes), past_cache);
  counters_.bytes_sent += bytes;
  counters_.bytes_copied += bytes;
  ahead_.spend(bytes);
  if (transfer.is_done != nullptr) {
    *transfer.is_done = true;
  } else {
    staged_.push_back(transfer.cookie);
  }
  return {};
}

Status Outbound::send(const Transfer& transfer) {
  const Key key{Traffic::transfer, transfer.lane, transfer.sequence};
  const std::size_t bytes = total_bytes(transfer.pieces);
  const bool is_small = bytes <= kDataBytesMax;
  if (is_small && may_send_early(bytes)) return send_data(key, transfer, bytes);
  // A small send without budget also goes on here. It waits at the sender for its receive.
  Send* known = sends_.find(key);
  if (known == nullptr && sends_.size() >= kTransfersMax) return Status::busy();
  const bool granted = known != nullptr && known->stage == Stage::granted_early;
  RC_ASSERT(known == nullptr || granted, cat("sent twice: sequence ", key.sequence));

  const Encoded encoded = encode(transfer.pieces);
  RC_ASSERT(wire_.size() <= kListedPiecesMax, cat(wire_.size(), " pieces"));
  if (one_copy_ || (encoded.in_pool && wire_.size() <= kPiecesMax)) {
    RC_ASSERT(encoded.bytes <= kTransferBytesMax, cat(encoded.bytes, " bytes"));
    return write_publication(key, transfer, encoded.bytes);
  }

  RC_ASSERT(encoded.bytes <= kStagedBytesMax, cat(encoded.bytes, " bytes"));
  Send& send = known != nullptr ? *known : sends_.insert(key);
  send.staging = nullptr;
  send.reported = false;
  send.cookie = transfer.cookie;
  send.bytes = encoded.bytes;
  send.eager =
      !granted && encoded.bytes <= kEagerBytes && eager_bytes_ + encoded.bytes <= kEagerBytesMax;
  if (granted || send.eager) {
    const Staged staged = stage(key, send, transfer.pieces, granted);
    if (staged == Staged::ring_full) {
      if (!granted) sends_.erase(key);
      return Status::busy();
    }
    if (staged == Staged::done) {
      if (granted) --grants_early_;
      return {};
    }
  }
  if (granted) {
    --grants_early_;
    granted_.push_back(key);
  } else if (is_small && !write_answer(RecordKind::offer, key)) {
    sends_.erase(key);
    return Status::busy();
  }
  send.stage = granted ? Stage::granted : Stage::waiting;
  waiting_ += granted ? 0 : 1;
  send.eager = false;
  send.pieces.assign(transfer.pieces.begin(), transfer.pieces.end());
  ++outstanding_;
  return {};
}

Outbound::Staged Outbound::stage(const Key& key, Send& send, std::span<const Piece> pieces,
                                 bool may_use_reserve) {
  std::byte* place = ring_.reserve(sizeof(PieceRecord));
  if (place == nullptr) return Staged::ring_full;
  std::byte* memory = pool_.allocate(send.bytes);
  if (memory == nullptr && may_use_reserve && !reserve_in_use_) {
    memory = reserve_;
    reserve_in_use_ = true;
  }
  if (memory == nullptr) return Staged::no_memory;

  store_policy_.gather(pieces, send.bytes, memory);
  const PieceRecord whole{static_cast<uint64_t>(memory - pool_.base()), send.bytes | kInPool};
  std::memcpy(place, &whole, sizeof whole);
  send.stage = Stage::published;
  send.reported = true;
  send.staging = memory;
  if (send.eager) eager_bytes_ += send.bytes;
  staged_.push_back(send.cookie);
  counters_.bytes_sent += send.bytes;
  counters_.bytes_copied += send.bytes;
  RecordHeader record = header(RecordKind::publish, key, sizeof whole);
  record.count = 1;
  commit(record);
  return Staged::done;
}

void Outbound::unstage(Send& send) {
  if (send.stage != Stage::published || send.staging == nullptr) return;
  if (send.staging == reserve_) {
    reserve_in_use_ = false;
  } else {
    pool_.free(send.staging);
  }
  if (send.eager) eager_bytes_ -= send.bytes;
  send.staging = nullptr;
}

Status Outbound::released(const Key& key, Sink& sink) {
  Send* send = sends_.find(key);
  if (send == nullptr || send->stage != Stage::published) {
    return Status(Code::failed, cat("it released a view that was not published: lane ",
                                    int{key.lane}, ", sequence ", key.sequence));
  }
  unstage(*send);
  if (!send->reported) {
    --outstanding_;
    sink.sent(send->cookie);
  }
  sends_.erase(key);
  return {};
}

Status Outbound::granted(const Key& key) {
  Send* send = sends_.find(key);
  if (send == nullptr && !one_copy_ && grants_early_ < kUnclaimedMax) {
    sends_.insert(key).stage = Stage::granted_early;
    ++grants_early_;
    return {};
  }
  if (send != nullptr && send->stage == Stage::published) return {};  // both records crossed
  if (send == nullptr || send->stage != Stage::waiting) {
    return Status(Code::failed,
                  cat("an unexpected grant: lane ", int{key.lane}, ", sequence ", key.sequence));
  }
  send->stage = Stage::granted;
  --waiting_;
  granted_.push_back(key);
  return {};
}

// ---- answers ----------------------------------------------------------------------------------

bool Outbound::write_answer(RecordKind kind, const Key& key) {
  if (ring_.reserve(0) == nullptr) return false;
  commit(header(kind, key, 0));
  return true;
}

Status Outbound::release(const Key& key) {
  return write_answer(RecordKind::release, key) ? Status() : Status::busy();
}

Status Outbound::grant(const Key& key) {
  return write_answer(RecordKind::grant, key) ? Status() : Status::busy();
}

void Outbound::grant_when_possible(const Key& key) {
  if (!grants_.empty() || !write_answer(RecordKind::grant, key)) grants_.push_back(key);
}

void Outbound::release_when_possible(const Key& key) {
  if (!releases_.empty() || !write_answer(RecordKind::release, key)) releases_.push_back(key);
}

// ---- progress ---------------------------------------------------------------------------------

bool Outbound::flush(Sink& sink) {
  bool moved = ring_.accepts_again();
  moved |= flush_control();
  moved |= flush_notes();

  bool written = write_answers(RecordKind::release, releases_);
  written |= write_answers(RecordKind::grant, grants_);

  std::size_t staged = 0;
  for (; staged < granted_.size(); ++staged) {
    Send& send = *sends_.find(granted_[staged]);
    if (stage(granted_[staged], send, send.pieces, true) != Staged::done) break;
    --outstanding_;
  }
  granted_.erase(granted_.begin(), granted_.begin() + static_cast<std::ptrdiff_t>(staged));

  moved |= !staged_.empty() || written;
  for (const uint64_t cookie : staged_) sink.sent(cookie);
  staged_.clear();
  return moved;
}

// Writes as many answers as fit. Returns true if it wrote any.
bool Outbound::write_answers(RecordKind kind, std::vector<Key>& keys) {
  std::size_t written = 0;
  while (written < keys.size() && write_answer(kind, keys[written])) ++written;
  keys.erase(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(written));
  return written > 0;
}

bool Outbound::arm() {
  if (must_recheck_sleep_) return false;
  // A send that waits for staging memory needs no wake-up of its own. The reserve is in use then,
  // and a release gives it back.
  if (!staged_.empty()) return false;
  return !ring_.refused() || ring_.ask_for_space();
}

bool Outbound::finished() const {
  return !must_recheck_sleep_ && outstanding_ == 0 && staged_.empty() && releases_.empty() &&
         grants_.empty() && control_.empty() && notes_.empty();
}

}  // namespace rdmacoll::shm
