// Registrations of GPU memory with the NICs. Registering takes milliseconds, so whole allocations
// are registered once and kept, or slabs of an allocation that is too large for the GPU's BAR1.
//
// Callers free and allocate memory without a word. So each use compares the allocation at the
// address, and above all its buffer id, with that of the registration. A registered dma-buf keeps
// freed memory alive: sweep() finds such memory.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "memory/gpu_memory_facts.h"
#include "memory/piece.h"
#include "transport/rdma/slabs.h"
#include "transport/rdma/verbs.h"

namespace rdmacoll::rdma {

// NICs map GPU memory in pages of this size.
inline constexpr std::size_t kGpuPageBytes = 64 << 10;

class GpuRegistrations {
 public:
  using Say = std::function<void(const std::string&)>;
  struct Counters {
    uint64_t hits = 0;           // holds that found all registrations
    uint64_t registrations = 0;  // slabs, each with all NICs
    uint64_t evictions = 0;      // for lack of BAR1
    uint64_t freed = 0;          // allocations whose memory the caller has freed
    uint64_t refusals = 0;       // holds that returned false
  };

  // `say` hears each kind of reason once for each GPU if NICs cannot access memory.
  GpuRegistrations(GpuMemoryFacts& facts, std::span<Device* const> devices,
                   Transport::Counters& counters, Say say);
  GpuRegistrations(const GpuRegistrations&) = delete;
  GpuRegistrations& operator=(const GpuRegistrations&) = delete;

  // Registers the memory, which lies in one allocation, until release(). Holds are counted. Returns
  // false if NICs cannot access it now. A reason that holds for the allocation's whole life is
  // remembered. A registration that fails is tried again ever more rarely, since other processes
  // may give BAR1 back.
  bool hold(const Piece& memory);
  // Holds memory once more that is held.
  void hold_again(const Piece& memory);
  // Afterwards the memory stays registered until its BAR1 is needed, or it is freed.
  void release(const Piece& memory);
  bool is_held(const Piece& memory) const;

  // The next three functions take addresses in held memory. reach() returns the number of bytes
  // from `address` to the end of its slab.
  std::size_t reach(const std::byte* address) const;
  const RailKeys& keys(const std::byte* address) const { return slab_of(address).keys; }
  Gpu gpu(const std::byte* address) const;

  // Looks at up to `count` allocations, each call at the next ones. Forgets those that were freed.
  void sweep(std::size_t count);

  GpuMemoryFacts& facts() const { return facts_; }
  // Returns true if the byte at the address is held. Other addresses may be the host's by now.
  bool is_held(const std::byte* address) const {
    return is_held(Piece{const_cast<std::byte*>(address), 1});
  }
  const Counters& counters() const { return counters_; }
  // Bytes of a GPU's BAR1 that the registrations take.
  uint64_t registered_bytes(Gpu gpu) const;
  std::size_t allocations() const { return allocations_.size(); }

 private:
  // Kinds of reasons why memory is staged.
  enum class Reason : uint8_t {
    not_capable,
    bar1_unknown,
    bar1_tiny,
    attribute,
    too_large,
    full,
    split,
    refused
  };

  struct Slab;
  using Idle = std::list<Slab*>;  // registered and not held, the longest unused first
  struct Allocation;
  struct Slab {
    Allocation* allocation = nullptr;
    std::size_t index = 0;
    std::array<std::unique_ptr<Registration>, kRailsMax> registrations;
    RailKeys keys{};
    uint64_t cost = 0;
    uint32_t holds = 0;
    Idle::iterator idle;
  };
  struct Allocation {
    GpuAllocation facts;
    std::size_t slab_bytes = 0;
    std::map<std::size_t, Slab> slabs;
    uint32_t held_slabs = 0;
    std::string obstacle;   // why NICs never access it, or ""
    uint32_t failures = 0;  // registrations that failed, one after the other
    uint32_t skips = 0;     // holds that are refused until the next try

    const std::byte* end() const { return facts.begin + facts.bytes; }
    bool holds(const Piece& piece) const {
      return piece.data >= facts.begin && piece.data + piece.bytes <= end();
    }
    std::size_t index(const std::byte* address) const;
    Piece part(std::size_t index) const;  // the memory of a slab
  };
  struct OfGpu {
    uint64_t registered_bytes = 0;
    uint64_t held_bytes = 0;  // the part of held slabs
    Idle idle;
  };
  using Allocations = std::map<const std::byte*, Allocation>;  // by the first byte

  Allocation* current(const std::byte* address);
  bool forget(const std::byte* begin, const std::byte* end);
  Allocation& remember(const GpuAllocation& found);
  bool may_fit(Allocation& allocation, std::size_t first, std::size_t last);
  void say_full(Gpu gpu);
  uint64_t cost_of(const Allocation& allocation, std::size_t index) const;
  bool hold(Allocation& allocation, std::size_t index);
  void release(Slab& slab);
  Status open(Slab& slab);
  Status open(Slab& slab, std::size_t rail, const Piece& part, Fd& descriptor,
              std::string& no_dma_buf);
  bool make_room(Gpu gpu, uint64_t cost);
  void evict(Slab& slab);
  Allocations::iterator drop(Allocations::iterator at);
  void set_obstacle(Allocation& allocation, Reason reason, const std::string& why);
  void say_staged(Gpu gpu, Reason reason, const std::string& why);
  const Allocation* find(const std::byte* address) const;
  const Slab& slab_of(const std::byte* address) const;

  GpuMemoryFacts& facts_;
  std::span<Device* const> devices_;
  Transport::Counters& transport_counters_;
  Say say_;
  Counters counters_;
  Allocations allocations_;
  std::map<Gpu, OfGpu> gpus_;
  const std::byte* swept_ = nullptr;  // the last allocation that sweep() looked at
  std::set<std::pair<Gpu, Reason>> said_;
};

}  // namespace rdmacoll::rdma
