// Moves bytes between ranks. A transport knows nothing of tensors, batches or reductions.
//
// Contract. All calls come from the holder of the baton, one at a time. No call blocks. Three kinds
// of traffic share a peer:
//
//   control   small messages, delivered once and in order per peer (for example the decision log)
//   transfer  post_send on one side and post_recv on the other, matched by (lane, sequence).
//             Lanes are independent. Within a lane sequences are unique, in any order of posting.
//             post_recv *is* the grant: no byte is written before the receiver has posted.
//   view      publish on one side and await on the other, matched by (lane, sequence) in a separate
//             number space. The reader gets a View of the publisher's memory, reads it, and
//             releases it. The publisher's completion (`sent`) comes with the release. Until then,
//             or until it has ended the connection, the publisher must not change the memory.
//
// Memory named in a Transfer must stay valid until its completion, or until peer_failed reports the
// peer. After peer_failed for p, nothing touches memory of transfers with p.
// The array `pieces` is copied before the call returns.
//
// Errors: a call returns Status::busy() when a queue is full. The caller polls and repeats the
// call. A broken peer is never a return value. It is reported once through Sink::peer_failed. Until
// the caller hears of it, its calls that name this peer are accepted and dropped.
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
#include "memory/gpu_memory_facts.h"
#include "memory/gpu_work.h"
#include "memory/piece.h"

namespace rdmacoll {

using Lane = uint8_t;

struct Transfer {
  int peer = -1;
  Lane lane = 0;
  uint64_t sequence = 0;
  std::span<const Piece> pieces;
  uint64_t cookie = 0;
  // If this is not null, a transfer that is done during the call sets it to true. There is then no
  // Sink::sent or Sink::received for it.
  bool* is_done = nullptr;
  // For post_send: the peer posts the receive when it handles the control messages before it. So a
  // larger transfer may go ahead of its grant.
  bool is_announced = false;
};

struct View {
  std::span<const RemotePiece> pieces;   // valid until release()
  const RemoteReader* reader = nullptr;  // null when every piece is mapped
};

// Abilities of a connected peer.
struct Reach {
  std::string_view transport;          // "shm", "tcp", "rdma", "sim"
  bool views = false;                  // publish, await and release work
  bool foreign_views = false;          // also for memory outside the pool (one-copy reads)
  bool lends = false;                  // each may write to views of the other one's pool
  std::size_t view_pieces_max = 0;     // pieces in one publication
  std::size_t transfer_bytes_max = 0;  // limit of one Transfer
  bool foreign_transfers = true;       // memory outside the pool is sent without another copy
  std::size_t eager_bytes = 0;         // transfers up to this size do not wait for a grant
  std::size_t announced_bytes = 0;     // nor do announced ones up to this size; 0: as others
  bool shared_pools = false;           // both ranks may access each other's pool: see pool_of()
};

// Whether a peer reads this rank's work memory on a GPU in place.
enum class GpuViews : uint8_t {
  not_offered,
  asked,  // the peer has yet to answer
  yes,
  no,  // the peer cannot, or has used no GPU so far: then a yes may follow
};

// A peer's pool as mapped in this process, and a view of it as in memory/private_view.h. `mapping`
// keeps both mapped.
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
  // Called once per peer. `cause`: "connection reset by peer", "silent for 5000 ms (...", ...
  virtual void peer_failed(int peer, const std::string& cause) = 0;
  // The peer has answered an offer of memory on a GPU. `refusal`: why it cannot read it, or "".
  virtual void answered(int /*peer*/, const std::string& /*refusal*/) {}
  // The work memory on GPUs of this rank. Null: this rank has used no GPU.
  virtual GpuWork* gpu_work() { return nullptr; }
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Begins to connect unless that has begun. Sink::connected follows. Both sides of a pair call it,
  // in any order, since the plan names both.
  virtual void connect(int peer) = 0;
  virtual bool is_connected(int peer) const = 0;
  virtual Reach reach(int peer) const = 0;  // the peer is connected, or has failed since
  // Call only if reach() says that pools are shared.
  virtual PeerPool pool_of(int peer) const;

  virtual Status post_control(int peer, std::span<const std::byte> message) = 0;
  virtual Status post_send(const Transfer& transfer) = 0;
  virtual Status post_recv(const Transfer& transfer) = 0;
  // Call only if reach() says that there are views. A transport without views need not override
  // these.
  virtual Status publish(const Transfer& transfer);
  virtual Status await(int peer, Lane lane, uint64_t sequence, uint64_t cookie);
  virtual Status release(int peer, Lane lane, uint64_t sequence);

  // Work memory on GPUs, which peers of the node read in place: its pieces may be published once
  // gpu_views() is yes. Sink::answered follows an offer. A transport without such views need not
  // override these.
  virtual GpuViews gpu_views(int /*peer*/, const GpuSlab&) const { return GpuViews::no; }
  virtual void offer(int /*peer*/, const GpuSlab&, GpuWork&) {}
  // Opens what peers have offered before a GPU of this rank was ready. Call it when the version of
  // the work memory has grown.
  virtual void open_offers(GpuWork&) {}
  // This rank reads no view of the peer any more. The peer may free its memory on GPUs.
  virtual void stop_views(int /*peer*/) {}
  // Looks now whether a view of the peer may have changed. This is asked behind each read of one,
  // before its result goes on. A peer that fails waits for this rank for a limited time. Then it
  // ends the connection, and gives its memory back. Memory `on_gpu` goes with the peer's process,
  // too. Returns the cause, or "". Sink::peer_failed follows later, as always. From then on the
  // cause stays, since reads that have begun before may still end.
  virtual std::string end_of(int /*peer*/, bool /*on_gpu*/) { return ""; }

  // Memory of the caller, outside the pool, whose address is stable until it is unpinned. Devices
  // send from it and write into it without another copy. pin() returns false if the devices do not.
  // Pins are counted. Transfers that are under way at the last unpin() end as they began.
  // Memory of a GPU is pinned anew for each operation, since its owner may free it in between. The
  // devices keep its registration.
  virtual bool pin(const Piece&) { return false; }
  virtual void unpin(const Piece&) {}
  virtual bool is_pinned(const Piece&) const { return false; }

  // From now on NICs may access memory of GPUs. Called once.
  virtual void use_gpus(const GpuMemoryForNics&) {}
  // How NICs access memory of this GPU. Transfers larger than eager_bytes may lie there, where it
  // is pinned.
  virtual GpuWays gpu_ways(Gpu) const { return {}; }

  // Reports events into `sink`, which must not call back into the transport. Returns whether
  // anything was reported or moved.
  virtual bool poll(Sink& sink) = 0;

  // Call before sleeping: asks for a wake-up. Returns false if something arrived meanwhile: then
  // poll again. After true the engine sleeps on wait_handle() until it is readable. poll() disarms.
  virtual bool arm() = 0;
  virtual int wait_handle() const = 0;  // an epoll descriptor, or -1
  // The next time at which poll() must run even if nothing arrives (heartbeats).
  virtual Nanoseconds next_deadline() const = 0;

  // Tells the ranks of this node that this one waits on `core`; -1: on none. Adds to `others` the
  // cores on which they have waited last.
  virtual void show_core(int /*core*/, std::vector<int>& /*others*/) {}

  // Stops talking to the peer. peer_failed is not reported for it afterwards.
  virtual void fail(int peer) = 0;
  // Returns true if accepted work reaches the peers only through further calls of poll().
  virtual bool needs_poll() const = 0;
  // Returns true if all accepted data has left this process, so that the process may exit.
  virtual bool flushed() const = 0;

  struct Counters {
    uint64_t handshakes = 0;
    uint64_t connections = 0;
    uint64_t registrations = 0;
    uint64_t control_messages = 0;
    uint64_t bytes_sent = 0;
    uint64_t bytes_striped = 0;  // the part of bytes_sent that further streams to a peer carried
    uint64_t bytes_received = 0;
    uint64_t bytes_copied = 0;  // by the transport itself, without copies by compute
    // Those of the bytes above that NICs read from memory of GPUs, and those that NICs wrote there.
    uint64_t gpu_bytes_sent = 0;
    uint64_t gpu_bytes_received = 0;
    uint64_t doorbells = 0;
  };
  virtual Counters counters() const = 0;
};

}  // namespace rdmacoll
