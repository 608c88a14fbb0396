// The receiving half of a peer: decodes the first stream and puts payloads into their receives.
// Further streams ask here for the place of their stripes.
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

  // The caller sends the grant. `came_first`: whether the data has come before, or begun to come.
  Status post_recv(const Transfer& transfer, bool& came_first);
  // Receives that were complete when they were posted, to be reported.
  bool has_reports() const { return !ended_.empty(); }
  bool report(Sink& sink);
  // A large transfer has come before its receive. The next read() takes it.
  bool is_held() const { return state_ == State::held; }
  // The error of data that came before its receive and does not fit it, or "". post_recv finds the
  // error and cannot return it.
  const std::string& fault() const { return fault_; }

  struct Result {
    bool moved = false;
    bool drained = false;  // nothing is left in the socket for now
    std::string ended;     // why the stream has ended, or ""
  };
  // Reads up to the share of one poll. `hangup`: the socket has an end to report, so read until it.
  Result read(int socket, bool hangup, Outbound& outbound, Sink& sink);

  // Call for a further stream: `part` becomes the place of the stripe that follows `frame`. Returns
  // "" or the error.
  std::string begin_stripe(const Header& frame, Progress& part, uint32_t& slot);
  // Call when all bytes of a stripe are there.
  void stripe_received(uint32_t slot, uint64_t bytes, Sink& sink);
  void share(uint64_t stripe_bytes) { stripe_bytes_ = stripe_bytes; }

  void clear();

 private:
  // held: a large transfer came before its receive, which may be posted until the next read().
  enum class State : uint8_t { header, control, held, data };

  static constexpr std::size_t kBufferBytes = 16 * 1024;

  // Data that comes before its receive: an internal receive into memory kept aside.
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
  std::size_t left_ = 0;            // bytes left of the payload of frame_
  uint32_t slot_ = 0;               // the transfer that frame_ belongs to
  bool is_early_ = false;           // true if the receive of that transfer is not posted
  std::vector<std::byte> message_;  // the part of a control message that has come

  MatchTable<uint32_t> posted_;
  ProgressPool receives_;
  MatchTable<Early> early_;
  std::size_t early_bytes_ = 0;  // by the sender's count
  SlotPool<std::vector<std::byte>> aside_;
  std::vector<uint64_t> ended_;  // cookies to be reported
  std::string fault_;

  uint64_t stripe_bytes_ = kStripeBytes;
  std::vector<std::vector<bool>> stripes_;  // by slot: the stripes that have begun, by number
};

}  // namespace rdmacoll::tcp
