// The receiving half of a peer: publications and data from the peer, and our posted receives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "transport/shm/outbound.h"
#include "transport/shm/record.h"
#include "transport/shm/remote_memory.h"
#include "transport/shm/slot_table.h"
#include "transport/transport.h"

namespace rdmacoll::shm {

class Inbound {
 public:
  // `eager_bytes`: limit of data that comes before its receives are posted. `consumer` reports
  // claims.
  Inbound(const RemoteMemory& remote, Outbound& outbound, RingConsumer& consumer,
          std::size_t eager_bytes, Transport::Counters& counters)
      : remote_(remote),
        outbound_(outbound),
        consumer_(consumer),
        eager_bytes_(eager_bytes),
        counters_(counters) {}
  void close();

  Status await(Lane lane, uint64_t sequence, uint64_t cookie);
  Status receive(const Transfer& transfer);
  Status release(Lane lane, uint64_t sequence);

  // Handle one record of the peer. The peer can still change the memory at `payload`.
  Status published(const RecordHeader& header, const std::byte* payload, Sink& sink);
  Status data(const RecordHeader& header, const std::byte* payload, Sink& sink);
  Status offered(const RecordHeader& header);
  Status control(const RecordHeader& header, const std::byte* payload, int peer, Sink& sink);

  // Publications that arrived before await() or receive() named them.
  bool has_work() const { return !ready_.empty(); }
  Status deliver_ready(Sink& sink);

 private:
  enum class State : uint8_t { posted, arrived, offered, ready, shown };
  struct Arrival {
    State state{};
    uint64_t cookie = 0;
    std::size_t bytes = 0;
    bool mapped = true;               // every piece is mapped
    std::vector<RemotePiece> pieces;  // in states arrived, ready, shown
    std::vector<std::byte> data;      // in states arrived, ready: a transfer in a record
    bool is_data = false;
    std::vector<Piece> into;  // memory of a receive
  };
  // Inserts the arrival of a key that no call has named yet. Returns null at the limit.
  Arrival* unclaimed(const Key& key);
  Status deliver_data(const Key& key, const Arrival& arrival, std::span<const std::byte> bytes,
                      Sink& sink);
  Status fill(Arrival& arrival, const RecordHeader& header, const std::byte* payload);
  Status deliver(const Key& key, Arrival& arrival, Sink& sink);
  Status copy(const Arrival& arrival);

  const RemoteMemory& remote_;
  Outbound& outbound_;
  RingConsumer& consumer_;
  const std::size_t eager_bytes_;
  Transport::Counters& counters_;
  SlotTable<Arrival> arrivals_;
  std::size_t unclaimed_ = 0;
  std::size_t early_cost_ = 0;  // eager cost of the data among unclaimed arrivals
  std::vector<Key> ready_;
  std::vector<PieceRecord> list_;   // scratch
  std::vector<std::byte> control_;  // the message that is being assembled
  std::size_t control_done_ = 0;
  uint64_t control_number_ = 0;
};

}  // namespace rdmacoll::shm
