// The sending half of a peer: what waits for the socket, and in which order it goes. Further
// streams take stripes of what waits.
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

  // From now on there are other streams, which take stripes as long as this.
  void share(uint64_t stripe_bytes);

  Status post_control(std::span<const std::byte> message);
  Status post_send(const Transfer& transfer);
  void grant(Lane lane, uint64_t sequence, uint64_t bytes);
  void heartbeat();

  // The peer has posted a receive. Returns what is wrong with that, or "".
  std::string granted(Lane lane, uint64_t sequence, uint64_t bytes);

  bool has_output() const { return !urgent_.empty() || !ready_.empty(); }
  bool awaits_grants() const { return !waiting_.empty(); }
  // A grant that came before its send, and does not fit it: found by post_send, which cannot say
  // so.
  const std::string& fault() const { return fault_; }

  enum class Result : uint8_t { idle, moved, blocked, broken };
  // Writes what the socket takes, up to a share of one poll. broken: errno says why.
  Result write(int socket, Sink& sink);

  // For another stream: something to be sent can be cut, and is.
  bool has_stripe() const;
  bool take_stripe(Header& header, Progress& part, uint32_t& slot);
  // All of it has been written.
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

  bool goes_ahead(const Progress& send) const;
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
  uint64_t stripe_bytes_ = kStripeBytes;
  Transport::Counters& counters_;

  ByteQueue urgent_;              // whole frames: control, grants, heartbeats
  std::optional<Frame> current_;  // of ready_.front(); partly written, so it goes before urgent_
  RingQueue<uint32_t> ready_;     // granted sends, by slot
  MatchTable<uint32_t> waiting_;  // sends that wait for a grant -> slot
  MatchTable<uint64_t> grants_;   // grants that wait for a send -> bytes
  MatchTable<uint64_t> eager_;    // sends that went ahead of their grants -> bytes
  std::size_t eager_bytes_ = 0;   // of those, with what each costs beside
  ProgressPool sends_;
  std::string fault_;
};

}  // namespace rdmacoll::tcp
