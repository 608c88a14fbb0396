#include "sim/gpu_nic.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"

namespace rdmacoll {
namespace {

constexpr uint32_t kLoopNumber = 1;
constexpr uint64_t kReadMax = 200 * kMicrosecond;
// Allocations whose end is noticed in a poll.
constexpr std::size_t kSweptPerPoll = 1;

}  // namespace

class SimGpuNic::Registered final : public rdma::Registration {
 public:
  Registered(SimGpuNic& nic, uint32_t key) : nic_(nic), key_(key) {}
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  ~Registered() override {
    const auto found = nic_.ranges_.find(key_);
    const Range& range = found->second;
    if (range.gpu != kHost)
      nic_.registered_bytes_[static_cast<std::size_t>(range.gpu)] -= range.cost;
    nic_.ranges_.erase(found);
  }
  rdma::MemoryKeys keys() const override { return {key_, key_}; }

 private:
  SimGpuNic& nic_;
  const uint32_t key_;
};

// The NIC's connection to itself, which reads what the NIC has written.
class SimGpuNic::Loop final : public rdma::QueuePair {
 public:
  explicit Loop(SimGpuNic& nic) : nic_(nic) {}
  rdma::End local() const override { return {.queue_pair = kLoopNumber}; }
  rdma::QueuePairLimits granted() const override { return {.sends = 1, .receives = 1}; }
  Status connect(const rdma::End&, const rdma::PathSettings&) override { return {}; }
  std::size_t post_receives(std::span<const rdma::ReceiveRequest>, Status&) override { return 0; }
  std::size_t post_sends(std::span<const rdma::SendRequest> requests, Status&) override {
    RC_ASSERT(requests.size() == 1 && requests[0].kind == rdma::SendKind::read);
    if (nic_.network_.chance(nic_.network_.policy().busy)) return 0;
    const auto delay = static_cast<Nanoseconds>(nic_.network_.random()() % kReadMax);
    nic_.network_.at(nic_.network_.clock().now() + delay,
                     [&nic = nic_, is_alive = nic_.is_alive_, key = requests[0].remote_key,
                      address = requests[0].remote_address, id = requests[0].id] {
                       if (*is_alive) {
                         nic.finish_read(key, reinterpret_cast<const std::byte*>(address), id);
                       }
                     });
    return 1;
  }
  void fail() override {}

 private:
  SimGpuNic& nic_;
};

// The keys of a transfer, which its peer may use until its end.
class SimGpuNic::Held final : public SimGpuAccess::Hold {
 public:
  Held(SimGpuNic& nic, std::span<const Piece> pieces) : nic_(nic), is_alive_(nic.is_alive_) {
    for (const Piece& piece : pieces) {
      if (piece.gpu == kHost || piece.bytes == 0) continue;
      nic.registrations_.hold_again(piece);
      pieces_.push_back(piece);
      for (std::size_t done = 0; done < piece.bytes;) {
        std::byte* const at = piece.data + done;
        const std::size_t bytes = std::min(nic.registrations_.reach(at), piece.bytes - done);
        parts_.push_back({{at, bytes, piece.gpu}, nic.registrations_.keys(at)[0].remote});
        done += bytes;
      }
    }
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() override {
    if (!*is_alive_) return;
    for (const Piece& piece : pieces_) nic_.registrations_.release(piece);
  }

  void read(const Piece& memory, std::byte* into) const override {
    each_part(memory, [&](const Piece& part, uint32_t key, std::size_t done) {
      nic_.check(key, part);
      nic_.read(part, into + done);
    });
  }
  void write(const Piece& memory, const std::byte* bytes) const override {
    each_part(memory, [&](const Piece& part, uint32_t key, std::size_t done) {
      nic_.check(key, part);
      nic_.write(part, bytes + done);
    });
  }

 private:
  struct Part {
    Piece memory;
    uint32_t key = 0;
  };

  template <typename Function>
  void each_part(const Piece& memory, Function function) const {
    for (const Part& part : parts_) {
      std::byte* const begin = std::max(part.memory.data, memory.data);
      std::byte* const end =
          std::min(part.memory.data + part.memory.bytes, memory.data + memory.bytes);
      if (begin >= end) continue;
      function(Piece{begin, static_cast<std::size_t>(end - begin), memory.gpu}, part.key,
               static_cast<std::size_t>(begin - memory.data));
    }
  }

  SimGpuNic& nic_;
  const std::shared_ptr<bool> is_alive_;
  std::vector<Piece> pieces_;
  std::vector<Part> parts_;
};

SimGpuNic::SimGpuNic(const SimDirect& direct, SimNetwork& network, SimGpus& gpus,
                     std::function<void()> ring)
    : direct_(direct),
      network_(network),
      gpus_(gpus),
      ring_(std::move(ring)),
      facts_(direct, gpus, [this] { show_all(); }),
      registrations_(facts_, devices_, transport_counters_, [](const std::string&) {}),
      flushes_(registrations_, devices_, rails_, {}, transport_counters_) {}

SimGpuNic::~SimGpuNic() { *is_alive_ = false; }

void SimGpuNic::complain(const std::string& sentence) {
  if (complaint_.empty()) complaint_ = sentence;
}

// ---- registrations ----

Status SimGpuNic::register_memory(std::byte* memory, std::size_t bytes,
                                  std::unique_ptr<rdma::Registration>& registration) {
  ranges_[++next_key_] = {.begin = memory, .bytes = bytes};
  registration = std::make_unique<Registered>(*this, next_key_);
  return {};
}

Status SimGpuNic::register_gpu_memory(std::byte* memory, std::size_t bytes,
                                      std::unique_ptr<rdma::Registration>& registration) {
  if (network_.chance(direct_.refused)) return {Code::failed, "no registration now"};
  GpuAllocation found;
  if (!gpus_.find(memory, found)) return {Code::failed, "bad address"};
  const auto page = [](const std::byte* address) {
    return reinterpret_cast<uintptr_t>(address) / rdma::kGpuPageBytes;
  };
  const uint64_t cost = (page(memory + bytes - 1) - page(memory) + 1) * rdma::kGpuPageBytes;
  uint64_t& registered_bytes = registered_bytes_[static_cast<std::size_t>(found.gpu)];
  registered_bytes += cost;
  if (registered_bytes > direct_.bar1_bytes) complain("BAR1 is overrun");
  ranges_[++next_key_] = {memory, bytes, found.buffer_id, cost, found.gpu};
  registration = std::make_unique<Registered>(*this, next_key_);
  return {};
}

Status SimGpuNic::create_queue_pair(const rdma::QueuePairLimits&, int, int, int,
                                    std::unique_ptr<rdma::QueuePair>& queue_pair) {
  queue_pair = std::make_unique<Loop>(*this);
  return {};
}

std::shared_ptr<const SimGpuAccess::Hold> SimGpuNic::hold(std::span<const Piece> pieces) {
  return std::make_shared<Held>(*this, pieces);
}

// ---- accesses ----

void SimGpuNic::check(uint32_t key, const Piece& memory) {
  const auto found = ranges_.find(key);
  GpuAllocation now;
  if (found == ranges_.end()) {
    return complain(cat("a NIC uses the key ", key, " after its end"));
  }
  const Range& range = found->second;
  if (memory.data < range.begin || memory.data + memory.bytes > range.begin + range.bytes) {
    return complain(cat("a NIC uses the key ", key, " for other memory"));
  }
  if (!gpus_.find(memory.data, now) || now.buffer_id != range.buffer_id) {
    complain(cat("a NIC uses the key ", key, " of memory that was freed"));
  }
}

void SimGpuNic::read(const Piece& memory, std::byte* into) {
  if (!direct_.ways.sends) complain("a NIC reads memory of a GPU although this is off");
  std::memcpy(into, gpus_.bytes_of(memory.gpu, memory.data, memory.bytes), memory.bytes);
  // NICs find what they have written.
  for (const Unflushed& write : unflushed_) {
    const std::byte* const begin = std::max<const std::byte*>(memory.data, write.address);
    const std::byte* const end =
        std::min<const std::byte*>(memory.data + memory.bytes, write.address + write.bytes.size());
    if (begin >= end) continue;
    std::memcpy(into + (begin - memory.data), write.bytes.data() + (begin - write.address),
                static_cast<std::size_t>(end - begin));
  }
}

void SimGpuNic::write(const Piece& memory, const std::byte* bytes) {
  if (!direct_.ways.receives) complain("a NIC writes memory of a GPU although this is off");
  std::byte* const visible = gpus_.bytes_of(memory.gpu, memory.data, memory.bytes);
  if (direct_.flush == WriteFlush::none) {
    std::memcpy(visible, bytes, memory.bytes);
  } else {
    unflushed_.push_back({memory.data, visible, {bytes, bytes + memory.bytes}});
  }
}

// ---- flushes ----

void SimGpuNic::show(Gpu gpu) {
  std::erase_if(unflushed_, [&](const Unflushed& write) {
    GpuAllocation found;
    const bool is_there = gpus_.find(write.address, found);
    if (is_there && found.gpu != gpu) return false;
    if (is_there) std::memcpy(write.visible, write.bytes.data(), write.bytes.size());
    return true;
  });
}

void SimGpuNic::show_all() {
  for (Gpu gpu = 0; gpu < SimGpus::kGpus; ++gpu) show(gpu);
}

void SimGpuNic::flush(const Piece& written, std::function<void(const std::string& fault)> done) {
  ++flushes_done_;
  switch (direct_.flush) {
    case WriteFlush::none:
      return done("");
    case WriteFlush::call: {
      const Status status = facts_.flush(written.gpu);
      return done(status.ok() ? "" : status.message());
    }
    case WriteFlush::read:
      pending_[next_flush_] = std::move(done);
      flushes_.ask(0, written.data, *this, next_flush_++);
      return ring_();
  }
}

void SimGpuNic::finish_read(uint32_t key, const std::byte* address, uint64_t id) {
  const auto found = ranges_.find(key);
  if (found == ranges_.end()) return complain("a flush uses a key after its end");
  GpuAllocation now;
  const bool is_there = gpus_.find(address, now) && now.buffer_id == found->second.buffer_id;
  if (!is_there) complain("a flush uses the key of memory that was freed");
  show(found->second.gpu);
  completions_.push_back({.id = id, .queue_pair = kLoopNumber});
  ring_();
}

void SimGpuNic::push() {
  while (!completions_.empty()) {
    const rdma::Completion completion = completions_.front();
    completions_.pop_front();
    RC_ASSERT(flushes_.owns(0, completion.queue_pair));
    flushes_.handle(0, completion);
  }
  flushes_.push();
  registrations_.sweep(kSweptPerPoll);
}

void SimGpuNic::end_flush(uint32_t number, const std::string& fault) {
  const auto done = pending_.extract(number);
  if (!done.empty()) done.mapped()(fault);
}

void SimGpuNic::flush_failed(const std::string& cause) {
  const auto all = std::exchange(pending_, {});
  for (const auto& [number, done] : all) done(cause);
}

}  // namespace rdmacoll
