// Moves bytes between ranks. Knows nothing of tensors, batches or reductions.
//
// Contract. All calls come from the holder of the baton, one at a time; nothing blocks. Three kinds
// of traffic share a peer:
//
//   control   small messages, delivered once and in order per peer (the decision log and its like)
//   transfer  post_send at one side, post_recv at the other, matched by (lane, sequence). Lanes are
//             independent; within a lane sequences are unique but may be posted in any order.
//             post_recv *is* the grant: no byte is written before the receiver has posted.
//   view      publish at one side, await at the other, matched by (lane, sequence) in a space of
//   its
//             own. The reader gets a View of the publisher's memory, reads it, and releases it.
//             The publisher's completion (`sent`) comes with the release: until then it must leave
//             the memory alone.
//
// Memory named in a Transfer must stay valid until its completion, or until the peer has failed and
// this was reported: after peer_failed for p, nothing touches memory of transfers with p any more.
// `pieces` itself (the array) is copied before the call returns.
//
// Errors: a call returns Status::busy() when a queue is full (poll, then offer it again). A broken
// peer is never a return value: it is reported once through Sink::peer_failed, and later calls that
// name it are accepted and dropped, since whoever called is about to be told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "base/wire.h"
#include "memory/piece.h"

namespace rdmacoll {

using Lane = uint8_t;

struct Transfer {
  int peer = -1;
  Lane lane = 0;
  uint64_t sequence = 0;
  std::span<const Piece> pieces;
  uint64_t cookie = 0;
  // Where it is not null, a send that is done already when it is posted says so here, and there is
  // no Sink::sent for it.
  bool* is_done = nullptr;
};

struct View {
  std::span<const RemotePiece> pieces;   // valid until release()
  const RemoteReader* reader = nullptr;  // null when every piece is mapped
};

// What a peer offers once it is connected.
struct Reach {
  std::string_view transport;          // "shm", "tcp", "rdma", "sim"
  bool views = false;                  // publish/await work
  bool foreign_views = false;          // ... also for memory outside the pool (one-copy reads)
  std::size_t view_pieces_max = 0;     // pieces in one publication
  std::size_t transfer_bytes_max = 0;  // of one Transfer
  bool foreign_transfers = true;       // memory outside the pool is sent without another copy
  std::size_t eager_bytes = 0;         // transfers up to here do not wait for a grant
  bool shared_pools = false;           // both may read and write each other's: pool_of()
};

// A peer's pool in this process, and a view of it as in memory/private_view.h. `mapping` keeps both
// there.
struct PeerPool {
  std::byte* base = nullptr;
  std::byte* view = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<const void> mapping;
};

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void connected(int peer) = 0;
  virtual void sent(uint64_t cookie) = 0;
  virtual void received(uint64_t cookie) = 0;
  virtual void viewed(uint64_t cookie, const View& view) = 0;
  // `message` is valid during the call only.
  virtual void control(int peer, std::span<const std::byte> message) = 0;
  // Once per peer. `cause`: "connection reset by peer", "silent for 5 s", ...
  virtual void peer_failed(int peer, const std::string& cause) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Begins to connect if that has not begun; Sink::connected follows. Both sides of a pair call it
  // (the plan names both), in any order.
  virtual void connect(int peer) = 0;
  virtual bool is_connected(int peer) const = 0;
  virtual Reach reach(int peer) const = 0;  // of a peer that is connected, or has failed since
  // Where reach() says that pools are shared.
  virtual PeerPool pool_of(int peer) const;

  virtual Status post_control(int peer, std::span<const std::byte> message) = 0;
  virtual Status post_send(const Transfer& transfer) = 0;
  virtual Status post_recv(const Transfer& transfer) = 0;
  // Where reach() says that there are no views nobody may ask for one, and these need not be there.
  virtual Status publish(const Transfer& transfer);
  virtual Status await(int peer, Lane lane, uint64_t sequence, uint64_t cookie);
  virtual Status release(int peer, Lane lane, uint64_t sequence);

  // Memory of the caller, outside the pool, that stays where it is until it is unpinned: devices
  // send from it and write into it, without another copy. False: they do not. Pins are counted;
  // transfers that are under way at the last unpin() end as they began.
  virtual bool pin(const Piece&) { return false; }
  virtual void unpin(const Piece&) {}
  virtual bool is_pinned(const Piece&) const { return false; }

  // Reports what has happened into `sink`, which must not call back into the transport. Returns
  // whether anything was reported or moved.
  virtual bool poll(Sink& sink) = 0;

  // Before sleeping: asks for a wake-up. False: something arrived meanwhile, poll again. After a
  // true the engine sleeps on wait_handle() (readable = poll); poll() disarms.
  virtual bool arm() = 0;
  virtual int wait_handle() const = 0;  // an epoll descriptor, or -1
  // The next time at which poll() must run though nothing arrives (heartbeats).
  virtual Nanoseconds next_deadline() const = 0;

  // Stop talking to the peer; peer_failed is not reported for it any more.
  virtual void fail(int peer) = 0;
  // Whether poll() has to run for what was accepted to reach the peers, whatever they do.
  virtual bool needs_poll() const = 0;
  // Everything handed over has left this process (so that it may exit).
  virtual bool flushed() const = 0;

  struct Counters {
    uint64_t handshakes = 0;
    uint64_t connections = 0;
    uint64_t registrations = 0;
    uint64_t control_messages = 0;
    uint64_t bytes_sent = 0;
    uint64_t bytes_striped = 0;  // of these, over further streams to a peer
    uint64_t bytes_received = 0;
    uint64_t bytes_copied = 0;  // by the transport itself, beside what compute does
    uint64_t doorbells = 0;
  };
  virtual Counters counters() const = 0;
};

}  // namespace rdmacoll
