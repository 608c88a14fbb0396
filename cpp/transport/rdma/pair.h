// One queue pair with its flow control. A send, or a write with an immediate, takes a receive that
// the other end has posted: a credit. The other end returns credits in the headers of its messages
// (message.h). This class only counts them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/queues.h"
#include "transport/rdma/choose_device.h"
#include "transport/rdma/verbs.h"

namespace rdmacoll::rdma {

inline constexpr std::size_t kSgesMax = 8;

// Describes a finished send request to the caller that added it.
struct Sent {
  enum class Kind : uint8_t { message, write, path_test, timed, tail };
  Kind kind = Kind::message;
  bool is_awaited = true;  // false: a later request's completion is early enough
  uint16_t stage = 0;      // write: the index of the staging buffer + 1
  uint32_t index = 0;      // message: its slot; write: its transfer
};

class Pair {
 public:
  struct Sizes {
    uint32_t sends = 0;
    uint32_t receives = 0;
    uint32_t receive_bytes = 0;  // 0: only immediates come
  };
  // Receives of messages lie consecutively in `memory`.
  Status open(Device& device, const Rail& rail, const Sizes& sizes, std::byte* memory,
              uint32_t local_key);
  End local() const { return queue_pair_->local(); }
  uint32_t inline_bytes_max() const { return inline_bytes_max_; }
  std::size_t pieces_max() const { return pieces_max_; }
  uint64_t message_bytes_max() const { return message_bytes_max_; }

  // `credits`: the number of receives that the other end has posted.
  Status connect(const End& remote, const PathSettings& path, uint32_t credits);

  bool has_room() const { return in_flight_.size() < sizes_.sends; }
  bool has_credit(uint32_t reserve) const { return credits_ > reserve; }
  std::size_t in_flight() const { return in_flight_.size(); }
  // Asks for a completion if only requests without one are in flight, and this was so at the last
  // call too.
  void request_tail_completion();
  // Adds a request of at most kSgesMax pieces. It leaves with the next flush().
  void add(SendRequest request, std::span<const Sge> pieces, Sent sent);
  // Gives receives and sends to the device, as far as the device takes them.
  Status flush();
  bool is_flushed() const { return chain_.empty() && !has_many_consumed(); }

  // A completed request completes all before it.
  template <typename OnSent>
  void retire(uint64_t id, OnSent on_sent) {
    for (; first_id_ <= id && !in_flight_.empty(); ++first_id_) {
      const Sent sent = in_flight_.front();
      in_flight_.pop();
      on_sent(sent);
    }
  }

  std::span<const std::byte> received(uint64_t id, uint32_t bytes) const;
  // Call when receive `id` is read. It may be posted again.
  void consume(uint64_t id) { consumed_.push_back(id); }
  void add_credits(uint32_t credits) { credits_ += credits; }
  bool credits_are_sound() const { return credits_ <= credits_max_; }
  // Takes the number of receives that are posted again and not yet reported to the other end.
  uint16_t take_owed();
  bool owes_much() const { return owed_ >= static_cast<int32_t>(sizes_.receives / 2); }

  // After this the device reads and writes nothing. Requests in flight are given back.
  template <typename OnSent>
  void close(OnSent on_sent) {
    destroy();
    for (; !in_flight_.empty(); in_flight_.pop()) on_sent(in_flight_.front());
  }

 private:
  // Receives are posted again in groups, which costs less per request. The peer has credits
  // meanwhile.
  bool has_many_consumed() const {
    return !consumed_.empty() && consumed_.size() >= sizes_.receives / 8;
  }
  using Pieces = std::array<Sge, kSgesMax>;
  Status flush_receives();
  void forget(std::size_t taken);
  void note_signalled() {  // its completion covers all earlier requests
    unsignalled_ = 0;
    is_awaited_ = false;
  }
  void destroy();

  std::unique_ptr<QueuePair> queue_pair_;
  Sizes sizes_;
  std::byte* memory_ = nullptr;
  uint32_t local_key_ = 0;
  uint32_t inline_bytes_max_ = 0;
  std::size_t pieces_max_ = 1;
  uint64_t message_bytes_max_ = UINT32_MAX;  // limit of one request
  uint32_t credits_ = 0;
  uint32_t credits_max_ = 0;
  int32_t owed_ = 0;  // below 0 until the receives that the greeting announced are posted

  uint64_t first_id_ = 0;  // id of in_flight_.front()
  uint64_t next_id_ = 0;
  uint32_t unsignalled_ = 0;  // since the last signalled one
  bool is_awaited_ = false;   // one of those, or of chain_, is awaited
  uint64_t tail_at_last_request_ = 0;
  RingQueue<Sent> in_flight_;       // added and not retired
  std::vector<SendRequest> chain_;  // added, and not given to the device yet
  std::vector<Pieces> pieces_;      // pieces of the requests in chain_, at stable addresses
  std::vector<uint64_t> consumed_;
  std::vector<ReceiveRequest> receives_;
};

}  // namespace rdmacoll::rdma
