// One rank of the same node: its socket (a liveness check after the greeting), its rings, its
// memory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "base/world.h"
#include "memory/pool.h"
#include "transport/liveness.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/greeting.h"
#include "transport/shm/inbound.h"
#include "transport/shm/outbound.h"
#include "transport/shm/remote_memory.h"
#include "transport/transport.h"

namespace rdmacoll::shm {

// State that all peers of a rank share. It outlives them.
struct RankState {
  const World& world;
  MemoryPool& pool;
  const Clock& clock;
  std::optional<bool> one_copy;
  Nanoseconds peer_timeout;
  const Doorbell& doorbell;
  const uint64_t& probe;  // a random word that identifies this rank
  int epoll;              // each peer watches its socket there, with its rank as token
  Transport::Counters& counters;
};

class ShmPeer {
 public:
  ShmPeer(const RankState& rank_state, int rank, Fd socket, bool dialer);

  enum class State : uint8_t { greeting, judging, connected, failed };
  State state() const { return state_; }
  bool connected() const { return state_ == State::connected; }
  int rank() const { return rank_; }
  bool one_copy() const { return remote_.one_copy(); }
  PeerPool pool() const { return remote_.pool(); }
  int core() const { return outbound_.core_of_peer(); }

  Outbound& outbound() { return outbound_; }
  Inbound& inbound() { return inbound_; }

  // Call for a connected peer: reads the ring. Returns whether anything happened.
  bool poll(Sink& sink) {
    if (consumer_.empty() && !outbound_.has_work() && !inbound_.has_work()) return false;
    return work(sink);
  }
  // Call when the socket is readable, or during the greeting.
  void check_socket(Sink& sink);
  // The cause of the peer's end, if it was reported or if the peer tells of one now, or "". The
  // end of a process is looked for only if memory `on_gpu` depends on it.
  std::string end(bool on_gpu) const;
  void keep_alive(Nanoseconds now, Sink& sink);
  bool arm();
  Nanoseconds next_deadline() const { return liveness_.next_deadline(); }

  // Memory on GPUs, as in Transport.
  GpuViews gpu_views(const GpuSlab& slab) const;
  void offer(const GpuSlab& slab, GpuWork& work);
  void open_offers(GpuWork& work);
  void stop_views();

  // Ends the connection: no later call sends or reads. Mappings stay until destruction.
  void close();
  void fail(Sink& sink, const std::string& cause);
  void fail(Sink& sink, const Status& status);

 private:
  Status greet(bool dialer);
  Status meet(Sink& sink);
  Status accept_hello();
  Status open_channel(uint64_t their_mark);
  Status judge(const Hello& hello);
  bool work(Sink& sink);
  Status drain(Sink& sink);
  Status handle(const RecordHeader& header, const std::byte* payload, Sink& sink);
  Status offered(const RecordHeader& header, const std::byte* payload, Sink& sink);
  Status answered(const RecordHeader& header, const std::byte* payload, Sink& sink);
  bool open_offered(const GpuSlab& slab, GpuWork& work);
  void answer(const GpuSlab& slab, GpuAnswer answer, std::string_view refusal);
  void end_socket();

  RankState rank_state_;
  const int rank_;
  const bool dialer_;
  State state_ = State::greeting;
  std::string cause_;  // why the peer has ended, once that was reported
  Fd socket_;
  SocketMessage message_;
  Status prepared_;  // success if rank_state_.epoll watches the socket and the dialer has a channel
  bool written_ = false;  // this side's part of the present step has been sent
  bool can_read_ = false;
  bool heard_ = false;
  Fd channel_;
  Mapping indexes_;
  Mapping rings_[2];
  RingConsumer consumer_;
  RemoteMemory remote_;
  Outbound outbound_;
  Inbound inbound_;
  Liveness liveness_;
  std::map<uint64_t, GpuViews> offers_;  // by the begin of this rank's slab
  std::vector<GpuSlab> offered_;         // by the peer, and not open yet
  GpuWork* opener_ = nullptr;            // may have opened memory of the peer
  GpuWork* owner_ = nullptr;             // has the memory that was offered to the peer
  int readers_ = 0;                      // slabs that the peer has or may open
  Fd to_peer_;  // a copy of the socket that outlives it, until this rank has closed memory
};

}  // namespace rdmacoll::shm
