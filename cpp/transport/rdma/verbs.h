// The verbs that the transport needs, in its own words. libibverbs.cc has them from the library of
// that name, opened at run time; the tests have a simulated device with faults on request.
//
// All calls of a Device and of what it made come from the holder of the baton. Whoever made an
// object destroys it before the Device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/rdma/facts.h"

namespace rdmacoll::rdma {

struct MemoryKeys {
  uint32_t local = 0;
  uint32_t remote = 0;
};

// A registered range. Its destruction deregisters.
class Registration {
 public:
  virtual ~Registration() = default;
  virtual MemoryKeys keys() const = 0;
};

struct Sge {
  const std::byte* address = nullptr;
  uint32_t bytes = 0;
  uint32_t local_key = 0;
};

enum class SendKind : uint8_t { send, write, write_with_immediate };

struct SendRequest {
  SendKind kind = SendKind::send;
  bool is_signalled = false;
  bool is_inline = false;  // the payload is copied by the call; at most inline_bytes_max
  uint32_t immediate = 0;
  uint32_t remote_key = 0;
  uint64_t remote_address = 0;
  uint64_t id = 0;
  std::span<const Sge> pieces;
};

struct ReceiveRequest {
  uint64_t id = 0;
  Sge piece;  // bytes 0: only for an immediate
};

enum class CompletionKind : uint8_t { sent, received, received_immediate };

// Of a failed one only id, status, queue_pair and vendor_error say anything.
struct Completion {
  uint64_t id = 0;
  CompletionKind kind = CompletionKind::sent;
  uint32_t queue_pair = 0;
  uint32_t bytes = 0;      // received by a send
  uint32_t immediate = 0;  // received_immediate
  int status = 0;          // ibv_wc_status; 0 is success, kFlushed the echo of an earlier failure
  uint32_t vendor_error = 0;
};
inline constexpr int kNotCarriedOut = 2;  // IBV_WC_LOC_QP_OP_ERR
inline constexpr int kFlushed = 5;        // IBV_WC_WR_FLUSH_ERR
// "no answer from the other end: retry counter exceeded (12)"
std::string completion_text(int status);

struct QueuePairLimits {
  uint32_t sends = 0;
  uint32_t receives = 0;
  uint32_t send_pieces = 1;
  uint32_t inline_bytes = 0;
};

// One end of a connection, as the other end needs it.
struct End {
  uint32_t queue_pair = 0;
  uint32_t first_packet = 0;  // starting PSN, 24 bits
  uint16_t lid = 0;
  uint32_t mtu = 0;  // bytes
  Gid gid;
};

// Soft-RoCE takes this number of retries for "for ever", while hardware counts.
inline constexpr uint8_t kRetriesForEver = 7;

struct PathSettings {
  int gid_index = 0;
  int pkey_index = 0;
  bool needs_grh = true;  // Ethernet, or another InfiniBand subnet
  uint32_t mtu = 0;       // the smaller one of both ends
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;
  uint8_t timeout = 17;     // 4.096 us * 2^timeout
  uint8_t retries = 6;      // 7 is for ever on soft-RoCE
  uint8_t rnr_retries = 6;  // 7 is for ever everywhere
  uint8_t rnr_timer = 12;   // 0.64 ms
};

class QueuePair {
 public:
  virtual ~QueuePair() = default;
  // What the other end has to know. The packet number is random, chosen when it was made.
  virtual End local() const = 0;
  virtual QueuePairLimits granted() const = 0;
  // INIT to RTR to RTS. Receives may be posted before.
  virtual Status connect(const End& remote, const PathSettings& path) = 0;
  // How many of `requests` were taken, from the first on; fewer: the queue is full (offer the rest
  // again), or a Status that is not ok in `status`.
  virtual std::size_t post_receives(std::span<const ReceiveRequest> requests, Status& status) = 0;
  // As one chain.
  virtual std::size_t post_sends(std::span<const SendRequest> requests, Status& status) = 0;
  // To the error state: everything posted is flushed.
  virtual void fail() = 0;
};

enum class EventKind : uint8_t {
  port_up,
  port_down,         // not the end: the path may come back within the retries
  device_fatal,      // the end of everything on the device
  queue_pair_fatal,  // the end of one connection
  completion_queue_fatal,
  other,
};
struct AsyncEvent {
  EventKind kind = EventKind::other;
  uint32_t queue_pair = 0;  // queue_pair_fatal
  int port = 0;             // port_*
  std::string text;         // the library's name of it
};

// An open device: a protection domain and one completion queue for everything.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceFacts& facts() const = 0;
  // False: the machine has it no more. Its queue pairs are flushed then, and no event need say why.
  virtual bool is_there() const = 0;

  // For local writing and remote writing. The message of a failure has errno's text and the bytes.
  virtual Status register_memory(std::byte* memory, std::size_t bytes,
                                 std::unique_ptr<Registration>& registration) = 0;
  // In state INIT, on `port` with the PKEY of that index.
  virtual Status create_queue_pair(const QueuePairLimits& limits, int port, int gid_index,
                                   int pkey_index, std::unique_ptr<QueuePair>& queue_pair) = 0;

  // Fills the front of `into`; a Status that is not ok when the queue itself is broken.
  virtual std::size_t poll(std::span<Completion> into, Status& status) = 0;
  // The next completion makes completion_fd() readable. Poll once more after it.
  virtual Status arm() = 0;
  virtual int completion_fd() const = 0;
  // Takes what has made it readable.
  virtual void take_completion_events() = 0;

  virtual int async_fd() const = 0;
  virtual bool take_async_event(AsyncEvent& event) = 0;  // false: none is left; never blocks
};

struct OpenOptions {
  std::string device;
  uint32_t completions = 0;  // entries that are wanted
};

class Verbs {
 public:
  virtual ~Verbs() = default;
  // Everything there is; an empty list is no error. A Status that is not ok says in a sentence with
  // its cure why nothing can be known (no library, no kernel module).
  virtual Status list(std::vector<DeviceFacts>& devices) = 0;
  virtual Status open(const OpenOptions& options, std::unique_ptr<Device>& device) = 0;
  // What works less well than it should here, as a sentence with its cure, to be said once; or "".
  virtual std::string warning() const { return ""; }
  // A forked child has its own copy of registered memory. Where it has not, the pages are missing
  // in the child, with all that happens to lie beside: callers' memory is not registered then.
  virtual bool copies_for_forks() const { return true; }
};

// libibverbs, opened once in the process. A Status with the cure when it is missing.
Status system_verbs(Verbs*& verbs);

}  // namespace rdmacoll::rdma
