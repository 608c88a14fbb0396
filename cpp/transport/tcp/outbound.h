// The sending half of a peer: the frames that wait for the socket, and their order. Further streams
// take stripes of waiting transfers.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "transport/queues.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/stripe.h"

namespace rdmacoll::tcp {

class Outbound {
 public:
  Outbound(uint32_t epoch, std::size_t chunk_bytes, std::size_t eager_bytes_max,
           Transport::Counters& counters)
      : epoch_(epoch),
        chunk_bytes_(chunk_bytes),
        eager_bytes_max_(eager_bytes_max),
        counters_(counters) {}

  // From now on further streams take stripes of `stripe_bytes`.
  void share(uint64_t stripe_bytes);

  Status post_control(std::span<const std::byte> message);
  Status post_send(const Transfer& transfer);
  // `came_first`: the data has come before. Then the grant may wait for other output.
  void grant(Lane lane, uint64_t sequence, uint64_t bytes, bool came_first);
  void heartbeat();

  // Handles a grant of the peer. Returns "" or the error.
  std::string granted(Lane lane, uint64_t sequence, uint64_t bytes);

  bool has_output() const { return !urgent_.empty() || !ready_.empty(); }
  bool awaits_grants() const { return !waiting_.empty(); }
  // The error of a grant that came before its send and does not fit it, or "". post_send finds the
  // error and cannot return it.
  const std::string& fault() const { return fault_; }

  enum class Result : uint8_t { idle, moved, blocked, broken };
  // Writes as much as the socket takes, up to the share of one poll. broken: errno names the cause.
  Result write(int socket, Sink& sink);

  // Call for a further stream: has_stripe() finds a transfer to cut, and take_stripe() cuts it.
  bool has_stripe() const;
  bool take_stripe(Header& header, Progress& part, uint32_t& slot);
  // Call when all bytes of a stripe have been written.
  void stripe_sent(uint32_t slot, uint64_t bytes, Sink& sink);

  void clear();

 private:
  // A data frame in the plan of one system call, or one that is partly written.
  struct Frame {
    HeaderBytes header;
    std::size_t header_left = 0;
    std::size_t payload_left = 0;
  };
  struct Plan;

  bool goes_ahead(const Progress& send, bool is_announced) const;
  void put_late();
  void put_urgent(const Header& header, std::span<const std::byte> payload);
  void plan_frames(Plan& plan);
  void consume(Plan& plan, std::size_t written, Sink& sink);
  bool consume_frame(Frame& frame, std::size_t& written, Sink& sink);
  void frame_done(Sink& sink);
  Stripe find_stripe(std::size_t& at) const;

  uint32_t epoch_;
  std::size_t chunk_bytes_;
  std::size_t eager_bytes_max_;
  std::size_t write_bytes_max_ = kWriteBytesPerPoll;
  std::size_t call_bytes_max_ = kFragmentBytes;
  std::size_t announced_bytes_max_ = kAnnouncedBytes;
  uint64_t stripe_bytes_ = kStripeBytes;
  Transport::Counters& counters_;

  ByteQueue late_;                // grants that go with the next output
  std::size_t late_bytes_ = 0;    // bytes of their transfers, with kEagerCost for each
  ByteQueue urgent_;              // whole frames: control, grants, heartbeats
  std::optional<Frame> current_;  // a partly written frame of ready_.front(), so it goes before
                                  // urgent_
  RingQueue<uint32_t> ready_;     // granted sends, by slot
  MatchTable<uint32_t> waiting_;  // sends that wait for a grant -> slot
  MatchTable<uint64_t> grants_;   // grants that wait for a send -> bytes
  MatchTable<uint64_t> eager_;    // sends that went ahead of their grants -> bytes
  std::size_t eager_bytes_ = 0;   // bytes of those sends, with kEagerCost for each
  ProgressPool sends_;
  std::string fault_;
};

}  // namespace rdmacoll::tcp
