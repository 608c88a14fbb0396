#include "transport/shm/inbound.h"

#include <cstring>

#include "base/text.h"

namespace rdmacoll::shm {
namespace {

Status nonsense(const std::string& what) { return Status(Code::failed, cat("it sent ", what)); }

std::string text(const Key& key) {
  return cat(key.traffic == Traffic::view ? "view" : "transfer", ", lane ", int{key.lane},
             ", sequence ", key.sequence);
}

Status fits(const Key& key, std::span<const Piece> into, std::size_t bytes) {
  const std::size_t wanted = total_bytes(into);
  if (bytes == wanted) return {};
  return nonsense(cat(bytes, " bytes where ", wanted, " were expected (", text(key), ")"));
}

}  // namespace

void Inbound::close() {
  arrivals_.clear();
  ready_.clear();
  unclaimed_ = early_cost_ = 0;
}

Status Inbound::await(Lane lane, uint64_t sequence, uint64_t cookie) {
  const Key key{Traffic::view, lane, sequence};
  Arrival* arrival = arrivals_.find(key);
  if (arrival == nullptr) {
    arrival = &arrivals_.insert(key);
    arrival->state = State::posted;
  } else {
    RC_ASSERT(arrival->state == State::arrived, cat("awaited twice: ", text(key)));
    arrival->state = State::ready;
    --unclaimed_;
    ready_.push_back(key);
  }
  arrival->cookie = cookie;
  return {};
}

Status Inbound::receive(const Transfer& transfer) {
  const Key key{Traffic::transfer, transfer.lane, transfer.sequence};
  Arrival* arrival = arrivals_.find(key);
  if (arrival == nullptr) {
    if (arrivals_.size() - unclaimed_ >= kTransfersMax) return Status::busy();
    // A peer that has to stage waits for the grant.
    if (!remote_.one_copy() && total_bytes(transfer.pieces) > kDataBytesMax) {
      if (Status granted = outbound_.grant(key); !granted.ok()) return granted;
    }
    arrival = &arrivals_.insert(key);
    arrival->state = State::posted;
  } else if (arrival->state == State::offered) {
    if (Status granted = outbound_.grant(key); !granted.ok()) return granted;
    arrival->state = State::posted;
    --unclaimed_;
  } else {
    RC_ASSERT(arrival->state == State::arrived, cat("received twice: ", text(key)));
    arrival->state = State::ready;
    --unclaimed_;
    ready_.push_back(key);
  }
  arrival->cookie = transfer.cookie;
  arrival->into.assign(transfer.pieces.begin(), transfer.pieces.end());
  return {};
}

Status Inbound::release(Lane lane, uint64_t sequence) {
  const Key key{Traffic::view, lane, sequence};
  const Arrival* arrival = arrivals_.find(key);
  RC_ASSERT(arrival != nullptr && arrival->state == State::shown,
            cat("released a view that was not published: ", text(key)));
  if (Status released = outbound_.release(key); !released.ok()) return released;
  arrivals_.erase(key);
  return {};
}

Status Inbound::published(const RecordHeader& header, const std::byte* payload, Sink& sink) {
  const Key key{header.traffic, header.lane, header.sequence};
  if (header.traffic != Traffic::transfer && header.traffic != Traffic::view) {
    return nonsense(cat("a publication in space ", static_cast<int>(header.traffic)));
  }
  Arrival* arrival = arrivals_.find(key);
  if (arrival == nullptr) {
    arrival = unclaimed(key);
    if (arrival == nullptr) return nonsense("more publications than anybody asks for");
    return fill(*arrival, header, payload);
  }
  if (arrival->state != State::posted) return nonsense(cat("twice: ", text(key)));
  RC_RETURN_IF_ERROR(fill(*arrival, header, payload));
  return deliver(key, *arrival, sink);
}

Inbound::Arrival* Inbound::unclaimed(const Key& key) {
  if (unclaimed_ == kUnclaimedMax) return nullptr;
  ++unclaimed_;
  Arrival& arrival = arrivals_.insert(key);
  arrival.state = State::arrived;
  return &arrival;
}

Status Inbound::data(const RecordHeader& header, const std::byte* payload, Sink& sink) {
  const Key key{Traffic::transfer, header.lane, header.sequence};
  if (header.traffic != Traffic::transfer || header.bytes > kDataBytesMax) {
    return nonsense(cat("a transfer of ", header.bytes, " bytes in a record"));
  }
  Arrival* arrival = arrivals_.find(key);
  if (arrival != nullptr) {
    if (arrival->state != State::posted) return nonsense(cat("twice: ", text(key)));
    return deliver_data(key, *arrival, {payload, header.bytes}, sink);
  }
  early_cost_ += eager_cost(header.bytes);
  arrival = early_cost_ > eager_bytes_ ? nullptr : unclaimed(key);
  if (arrival == nullptr) return nonsense("more transfers than anybody asks for");
  arrival->is_data = true;
  arrival->data.assign(payload, payload + header.bytes);
  return {};
}

Status Inbound::offered(const RecordHeader& header) {
  const Key key{Traffic::transfer, header.lane, header.sequence};
  Arrival* arrival = arrivals_.find(key);
  if (arrival != nullptr) {
    if (arrival->state != State::posted) return nonsense(cat("twice: ", text(key)));
    outbound_.grant_when_possible(key);
    return {};
  }
  arrival = unclaimed(key);
  if (arrival == nullptr) return nonsense("more offers than anybody asks for");
  arrival->state = State::offered;
  return {};
}

Status Inbound::deliver_data(const Key& key, const Arrival& arrival,
                             std::span<const std::byte> bytes, Sink& sink) {
  RC_RETURN_IF_ERROR(fits(key, arrival.into, bytes.size()));
  counters_.bytes_received += bytes.size();
  counters_.bytes_copied += bytes.size();
  scatter(bytes.data(), arrival.into);
  consumer_.claim(eager_cost(bytes.size()));
  sink.received(arrival.cookie);
  arrivals_.erase(key);
  return {};
}

Status Inbound::fill(Arrival& arrival, const RecordHeader& header, const std::byte* payload) {
  const std::size_t count = header.count;
  arrival.pieces.clear();
  arrival.is_data = false;
  arrival.bytes = 0;
  arrival.mapped = true;
  const bool listed = header.extra != 0;
  const std::size_t payload_bytes = listed ? 0 : count * sizeof(PieceRecord);
  if (header.bytes != payload_bytes || count > (listed ? kListedPiecesMax : kPiecesMax)) {
    return nonsense(cat("a publication of ", count, " pieces in ", header.bytes, " bytes"));
  }
  if (listed) {
    if (!remote_.one_copy()) return nonsense("a list of pieces that we may not read");
    list_.resize(count);
    const RemotePiece whole{nullptr, header.extra, count * sizeof(PieceRecord)};
    RC_RETURN_IF_ERROR(
        remote_.read({&whole, 1}, 0, reinterpret_cast<std::byte*>(list_.data()), whole.bytes));
  }
  for (std::size_t i = 0; i < count; ++i) {
    PieceRecord record;
    if (listed) {
      record = list_[i];
    } else {
      std::memcpy(&record, payload + i * sizeof record, sizeof record);
    }
    RemotePiece piece;
    RC_RETURN_IF_ERROR(remote_.locate(record, piece));
    if (piece.gpu != kHost && header.traffic == Traffic::transfer) {
      return nonsense("a transfer that lies on a GPU");
    }
    arrival.pieces.push_back(piece);
    arrival.bytes += piece.bytes;
    arrival.mapped = arrival.mapped && piece.mapped != nullptr;
    if (arrival.bytes > kTransferBytesMax) {
      return nonsense(cat("a publication of more than ", bytes_text(kTransferBytesMax)));
    }
  }
  return {};
}

Status Inbound::deliver(const Key& key, Arrival& arrival, Sink& sink) {
  if (arrival.is_data) {
    early_cost_ -= eager_cost(arrival.data.size());
    return deliver_data(key, arrival, arrival.data, sink);
  }
  counters_.bytes_received += arrival.bytes;
  if (key.traffic == Traffic::view) {
    arrival.state = State::shown;
    sink.viewed(arrival.cookie, {arrival.pieces, arrival.mapped ? nullptr : &remote_});
    return {};
  }
  Status copied = fits(key, arrival.into, arrival.bytes);
  if (copied.ok()) copied = copy(arrival);
  if (consumer_.has_ended()) return {};  // read too late, and the peer's end is reported soon
  RC_RETURN_IF_ERROR(copied);
  outbound_.release_when_possible(key);
  sink.received(arrival.cookie);
  arrivals_.erase(key);
  return {};
}

Status Inbound::copy(const Arrival& arrival) {
  std::span<const RemotePiece> from = arrival.pieces;
  std::size_t skip = 0;
  for (const Piece& to : arrival.into) {
    if (to.bytes == 0) continue;
    RC_RETURN_IF_ERROR(remote_.read(from, skip, to.data, to.bytes));
    skip += to.bytes;
    while (!from.empty() && skip >= from.front().bytes) {
      skip -= from.front().bytes;
      from = from.subspan(1);
    }
  }
  counters_.bytes_copied += arrival.bytes;
  return {};
}

Status Inbound::deliver_ready(Sink& sink) {
  // Delivering posts no receive, so the list does not grow meanwhile.
  for (const Key& key : ready_) RC_RETURN_IF_ERROR(deliver(key, *arrivals_.find(key), sink));
  ready_.clear();
  return {};
}

Status Inbound::control(const RecordHeader& header, const std::byte* payload, int peer,
                        Sink& sink) {
  const std::size_t total = header.count;
  if (header.sequence != control_number_ || total > kControlBytesMax ||
      header.extra != control_done_ || header.bytes > total - control_done_ ||
      (control_done_ > 0 && control_.size() != total) || (header.bytes == 0 && total > 0)) {
    return nonsense(cat("a fragment of ", header.bytes, " bytes at ", header.extra, " of ", total,
                        " of control message ", header.sequence, ", after ", control_done_,
                        " bytes of message ", control_number_));
  }
  control_.resize(total);
  if (header.bytes > 0) std::memcpy(control_.data() + control_done_, payload, header.bytes);
  control_done_ += header.bytes;
  if (control_done_ < total) return {};
  control_done_ = 0;
  ++control_number_;
  sink.control(peer, control_);
  return {};
}

}  // namespace rdmacoll::shm
