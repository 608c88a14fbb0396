// The verbs that the transport needs, as its own interface. libibverbs.cc implements them with the
// library of that name, opened at run time. Tests have a simulated device that injects faults on
// request.
//
// All calls of a Device and of its objects come from the holder of the baton. The owner of such an
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

// A registered range. Its destructor deregisters it.
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

// A read fills the pieces from remote memory.
enum class SendKind : uint8_t { send, write, write_with_immediate, read };

struct SendRequest {
  SendKind kind = SendKind::send;
  bool is_signalled = false;
  bool is_inline = false;  // the call copies the payload, of at most inline_bytes_max
  uint32_t immediate = 0;
  uint32_t remote_key = 0;
  uint64_t remote_address = 0;
  uint64_t id = 0;
  std::span<const Sge> pieces;
};

struct ReceiveRequest {
  uint64_t id = 0;
  Sge piece;  // 0 bytes: the receive is only for an immediate
};

enum class CompletionKind : uint8_t { sent, received, received_immediate };

// If a request failed, only id, status, queue_pair and vendor_error are valid.
struct Completion {
  uint64_t id = 0;
  CompletionKind kind = CompletionKind::sent;
  uint32_t queue_pair = 0;
  uint32_t bytes = 0;      // received by a send
  uint32_t immediate = 0;  // received_immediate
  int status = 0;  // ibv_wc_status: 0 is success, kFlushed the consequence of an earlier failure
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
  bool allows_reads = false;  // by the other end
};

// One end of a connection, as the other end needs it.
struct End {
  uint32_t queue_pair = 0;
  uint32_t first_packet = 0;  // starting PSN, 24 bits
  uint16_t lid = 0;
  uint32_t mtu = 0;  // bytes
  Gid gid;
};

// Soft-RoCE treats this number of retries as infinite, while hardware counts.
inline constexpr uint8_t kRetriesForEver = 7;

struct PathSettings {
  int gid_index = 0;
  int pkey_index = 0;
  bool needs_grh = true;  // Ethernet, or another InfiniBand subnet
  uint32_t mtu = 0;       // the smaller value of both ends
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;
  uint8_t timeout = 17;     // 4.096 us * 2^timeout
  uint8_t retries = 6;      // 7 is infinite on soft-RoCE
  uint8_t rnr_retries = 6;  // 7 is infinite everywhere
  uint8_t rnr_timer = 12;   // 0.64 ms
};

class QueuePair {
 public:
  virtual ~QueuePair() = default;
  // The address for the other end. The packet number is random, chosen at creation.
  virtual End local() const = 0;
  virtual QueuePairLimits granted() const = 0;
  // Moves from INIT to RTR to RTS. Receives may be posted before.
  virtual Status connect(const End& remote, const PathSettings& path) = 0;
  // Returns how many of `requests` were taken, from the first on. If fewer were taken, the queue is
  // full (repeat the rest), or `status` has an error.
  virtual std::size_t post_receives(std::span<const ReceiveRequest> requests, Status& status) = 0;
  // Posts the requests as one chain.
  virtual std::size_t post_sends(std::span<const SendRequest> requests, Status& status) = 0;
  // Moves to the error state, which flushes all posted requests.
  virtual void fail() = 0;
};

enum class EventKind : uint8_t {
  port_up,
  port_down,         // the path may come back within the retries
  device_fatal,      // ends everything on the device
  queue_pair_fatal,  // ends one connection
  completion_queue_fatal,
  other,
};
struct AsyncEvent {
  EventKind kind = EventKind::other;
  uint32_t queue_pair = 0;  // queue_pair_fatal
  int port = 0;             // port_*
  std::string text;         // the library's name of the event
};

// A part of a dma-buf.
struct DmaBufPart {
  int descriptor = -1;
  uint64_t offset = 0;          // the part's first byte
  std::byte* memory = nullptr;  // the address by which requests name its first byte
  std::size_t bytes = 0;
};

// An open device: a protection domain and one completion queue for everything.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceFacts& facts() const = 0;
  // Returns false if the machine has lost the device. Its queue pairs are flushed then. No event
  // need report it.
  virtual bool is_there() const = 0;

  // Registers for local and remote writing. An error names errno's text and the bytes.
  virtual Status register_memory(std::byte* memory, std::size_t bytes,
                                 std::unique_ptr<Registration>& registration) = 0;
  // Registers GPU memory through the kernel's peer-memory module, for remote reading as well.
  virtual Status register_gpu_memory(std::byte* memory, std::size_t bytes,
                                     std::unique_ptr<Registration>& registration) = 0;
  // Returns true if the library and the kernel register dma-bufs on this device.
  virtual bool takes_dma_bufs() = 0;
  // Like register_gpu_memory(). The descriptor may be closed afterwards.
  virtual Status register_dma_buf(const DmaBufPart& part,
                                  std::unique_ptr<Registration>& registration) = 0;
  // Creates it in state INIT, on `port` with the PKEY of that index.
  virtual Status create_queue_pair(const QueuePairLimits& limits, int port, int gid_index,
                                   int pkey_index, std::unique_ptr<QueuePair>& queue_pair) = 0;

  // Fills the front of `into` and returns the count. `status` has an error if the queue is broken.
  virtual std::size_t poll(std::span<Completion> into, Status& status) = 0;
  // Makes completion_fd() readable at the next completion. Poll once more after the call.
  virtual Status arm() = 0;
  virtual int completion_fd() const = 0;
  // Takes the events that made it readable.
  virtual void take_completion_events() = 0;

  virtual int async_fd() const = 0;
  virtual bool take_async_event(AsyncEvent& event) = 0;  // false: no event is left; never blocks
};

struct OpenOptions {
  std::string device;
  uint32_t completions = 0;  // requested entries of the completion queue
};

class Verbs {
 public:
  virtual ~Verbs() = default;
  // Lists all devices. An empty list is no error. An error says why the list is unknown (no
  // library, no kernel module), with the cure.
  virtual Status list(std::vector<DeviceFacts>& devices) = 0;
  virtual Status open(const OpenOptions& options, std::unique_ptr<Device>& device) = 0;
  // A limitation of this machine, as a message with its cure, to be logged once; or "".
  virtual std::string warning() const { return ""; }
  // Returns true if a forked child gets its own copy of registered memory. Otherwise those pages
  // are missing in the child, with any neighbouring data. Callers' memory is not registered then.
  virtual bool copies_for_forks() const { return true; }
};

// Returns libibverbs, opened once in the process, or an error with the cure if it is missing.
Status system_verbs(Verbs*& verbs);

}  // namespace rdmacoll::rdma
