// The receiving half of a peer: takes the first stream apart and puts payloads where they belong.
// Further streams ask where their stripes do.
#pragma once

#include <string>
#include <vector>

#include "transport/tcp/outbound.h"

namespace rdmacoll::tcp {

class Inbound {
 public:
  Inbound(int peer, uint32_t epoch, std::size_t eager_bytes_max, Transport::Counters& counters)
      : peer_(peer),
        epoch_(epoch),
        eager_bytes_max_(eager_bytes_max),
        counters_(counters),
        buffer_(kBufferBytes) {}

  // The caller sends the grant.
  Status post_recv(const Transfer& transfer);
  // Receives whose data had come before them have ended.
  bool has_reports() const { return !ended_.empty(); }
  bool report(Sink& sink);
  // What came before its receive, and does not fit it: found by post_recv, which cannot say so.
  const std::string& fault() const { return fault_; }

  struct Result {
    bool moved = false;
    bool drained = false;  // nothing is left in the socket for now
    std::string ended;     // why there will never be more, or ""
  };
  // Reads up to a share of one poll. `hangup`: the socket has an end to report, so go on until it.
  Result read(int socket, bool hangup, Outbound& outbound, Sink& sink);

  // For another stream: `part` becomes the place of the stripe that follows `frame`. Returns what
  // is wrong, or "".
  std::string begin_stripe(const Header& frame, Progress& part, uint32_t& slot);
  // All of it is there.
  void stripe_received(uint32_t slot, uint64_t bytes, Sink& sink);
  void share(uint64_t stripe_bytes) { stripe_bytes_ = stripe_bytes; }

  void clear();

 private:
  enum class State : uint8_t { header, control, data };

  static constexpr std::size_t kBufferBytes = 16 * 1024;

  // Data that has come, or comes, before its receive: a receive of our own into memory kept aside.
  struct Early {
    uint32_t slot;    // in receives_
    uint32_t memory;  // in aside_
  };

  std::string parse(Outbound& outbound, Sink& sink);
  std::string begin_frame(Outbound& outbound);
  std::string begin_data();
  std::string begin_early();
  void claim(const Transfer& transfer, uint32_t slot);
  void take_control(Sink& sink);
  void take_data();
  void end_data(Sink& sink);
  void end_receive(uint32_t slot, Sink& sink);
  ssize_t receive(int socket, std::size_t& wanted);

  std::size_t buffered() const { return end_ - begin_; }

  int peer_;
  uint32_t epoch_;
  std::size_t eager_bytes_max_;
  Transport::Counters& counters_;

  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;

  State state_ = State::header;
  Header frame_;
  std::size_t left_ = 0;            // of the payload of frame_
  uint32_t slot_ = 0;               // of the transfer that frame_ belongs to,
  bool is_early_ = false;           // whose receive is not posted
  std::vector<std::byte> message_;  // a control message of which a part has come

  MatchTable<uint32_t> posted_;
  ProgressPool receives_;
  MatchTable<Early> early_;
  std::size_t early_bytes_ = 0;  // as the sender counts them
  SlotPool<std::vector<std::byte>> aside_;
  std::vector<uint64_t> ended_;  // cookies to be reported
  std::string fault_;

  uint64_t stripe_bytes_ = kStripeBytes;
  std::vector<std::vector<bool>> stripes_;  // by slot: those that have begun, by their number
};

}  // namespace rdmacoll::tcp
