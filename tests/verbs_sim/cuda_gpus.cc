#include "verbs_sim/cuda_gpus.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "base/runtime_library.h"
#include "base/text.h"

namespace rdmacoll::verbs_sim {
namespace {

constexpr std::size_t kPageBytes = 64 << 10;
constexpr std::size_t kHostPageBytes = 4 << 10;
// A GPU whose attribute has at least this value shows the writes of NICs to its kernels itself.
constexpr int kOrderedForOwner = 100;

unsigned long long number(const std::byte* address) {
  return reinterpret_cast<unsigned long long>(address);
}

}  // namespace

// A part of an allocation that a NIC has registered. A dma-buf is mapped, so its bytes are those of
// the descriptor, whatever is at the address.
class CudaGpus::Registered final : public GpusOfHost::Range {
 public:
  Registered(CudaGpus& gpus, std::byte* begin, std::size_t bytes)
      : gpus_(gpus),
        gpu_(gpus.call_.gpu(number(begin))),
        buffer_id_(gpus.attribute(begin, cuda::PointerAttribute::buffer_id)),
        begin_(begin),
        bytes_(bytes) {
    const std::size_t within = number(begin) % kPageBytes;
    bar1_bytes_ = (within + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  ~Registered() override {
    if (is_charged_) {
      gpus_.call_.take_bar1(gpu_, -static_cast<long long>(bar1_bytes_));
      const std::lock_guard lock(gpus_.mutex_);
      gpus_.bar1_used_ -= bar1_bytes_;
    }
    if (mapped_ == nullptr) return;
    // A write that is under way arrives all the same.
    gpus_.show_if([&](const Unflushed& write) {
      return write.visible >= dma_ && write.visible < dma_ + bytes_;
    });
    ::munmap(mapped_, mapped_bytes_);
  }

  // Returns false if the descriptor has no such bytes.
  bool map(int descriptor, uint64_t offset) {
    const off_t at = ::lseek(descriptor, 0, SEEK_CUR);
    if (at < 0) return false;
    const std::size_t place = static_cast<std::size_t>(at) + offset;
    const std::size_t within = place % kHostPageBytes;
    mapped_bytes_ = within + bytes_;
    void* mapped = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor,
                          static_cast<off_t>(place - within));
    if (mapped == MAP_FAILED) return false;
    mapped_ = mapped;
    dma_ = static_cast<std::byte*>(mapped) + within;
    return true;
  }
  // Returns false if BAR1 has no room.
  bool charge() {
    if (gpus_.call_.take_bar1(gpu_, static_cast<long long>(bar1_bytes_)) == 0) return false;
    const bool is_synchronous = gpus_.attribute(begin_, cuda::PointerAttribute::sync_memops) != 0;
    const std::lock_guard lock(gpus_.mutex_);
    if (!is_synchronous) ++gpus_.counters_.unsynchronized;
    ++(dma_ != nullptr ? gpus_.counters_.dma_bufs : gpus_.counters_.peer_mappings);
    gpus_.bar1_used_ += bar1_bytes_;
    return is_charged_ = true;
  }

  Gpu gpu() const override { return gpu_; }
  void check(const std::byte* address) override {
    if (gpus_.attribute(address, cuda::PointerAttribute::buffer_id) == buffer_id_) return;
    const std::lock_guard lock(gpus_.mutex_);
    ++gpus_.counters_.stale_accesses;
  }
  void read(const std::byte* address, std::span<std::byte> into) override {
    check(address);
    std::byte* const visible = place(address, into.size());
    const std::lock_guard lock(gpus_.mutex_);
    gpus_.counters_.bytes_read += into.size();
    if (visible == nullptr) {
      std::ranges::fill(into, std::byte{0xbd});
      return;
    }
    std::memcpy(into.data(), visible, into.size());
    for (const Unflushed& write : gpus_.unflushed_) overlay(write, address, into);
  }
  void write(const void* nic, std::byte* address, std::span<const std::byte> bytes) override {
    check(address);
    std::byte* const visible = place(address, bytes.size());
    const bool is_ordered = gpus_.orders_writes(gpu_);
    const std::lock_guard lock(gpus_.mutex_);
    gpus_.counters_.bytes_written += bytes.size();
    if (visible == nullptr) return;
    if (is_ordered) {
      std::memcpy(visible, bytes.data(), bytes.size());
    } else {
      gpus_.unflushed_.push_back({nic, gpu_, address, visible, {bytes.begin(), bytes.end()}});
    }
  }

 private:
  // Null if the address has no memory any more.
  std::byte* place(const std::byte* address, std::size_t bytes) const {
    if (dma_ != nullptr) return dma_ + (address - begin_);
    return static_cast<std::byte*>(gpus_.call_.bytes(number(address), bytes));
  }
  // Puts bytes of the write into those that were read at `address`.
  static void overlay(const Unflushed& write, const std::byte* address, std::span<std::byte> into) {
    const std::byte* const begin = std::max(address, write.address);
    const std::byte* const end =
        std::min(address + into.size(), write.address + write.bytes.size());
    if (begin >= end) return;
    std::memcpy(into.data() + (begin - address), write.bytes.data() + (begin - write.address),
                static_cast<std::size_t>(end - begin));
  }

  CudaGpus& gpus_;
  const Gpu gpu_;
  const unsigned long long buffer_id_;
  std::byte* const begin_;
  const std::size_t bytes_;
  std::size_t bar1_bytes_ = 0;
  bool is_charged_ = false;
  void* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::byte* dma_ = nullptr;
};

CudaGpus& CudaGpus::of(const std::string& library, const cuda::Driver& driver) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::string, std::unique_ptr<CudaGpus>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<CudaGpus>& found = all[library];
  if (found == nullptr) found.reset(new CudaGpus(library, driver));
  return *found;
}

CudaGpus::CudaGpus(const std::string& library, const cuda::Driver& driver) : driver_(driver) {
  RuntimeLibrary opened(library);
  opened.need("cuda_sim_bytes", call_.bytes);
  opened.need("cuda_sim_gpu", call_.gpu);
  opened.need("cuda_sim_take_bar1", call_.take_bar1);
  opened.need("cuda_sim_on_flush", call_.on_flush);
  RC_ASSERT(opened.problem().empty() && opened.missing().empty(),
            cat(opened.problem(), opened.missing()));
  call_.on_flush(
      [](int gpu, void* context) {
        auto& gpus = *static_cast<CudaGpus*>(context);
        gpus.show(gpu, nullptr);
        const std::lock_guard lock(gpus.mutex_);
        ++gpus.counters_.flushes_by_call;
      },
      this);
}

CudaGpuCounters CudaGpus::counters() {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void CudaGpus::reset_counters() {
  const std::lock_guard lock(mutex_);
  counters_ = {};
}

uint64_t CudaGpus::bar1_used() {
  const std::lock_guard lock(mutex_);
  return bar1_used_;
}

void CudaGpus::refuse_registrations(int after, int count) {
  const std::lock_guard lock(mutex_);
  accepted_ = after;
  refused_ = count;
}

unsigned long long CudaGpus::attribute(const std::byte* address,
                                       cuda::PointerAttribute which) const {
  unsigned long long value = 0;
  const cuda::Result result =
      driver_.call.cuPointerGetAttribute(&value, static_cast<int>(which), number(address));
  return result == cuda::kSuccess ? value : 0;
}

bool CudaGpus::orders_writes(Gpu gpu) const {
  int value = 0;
  const auto which = static_cast<int>(cuda::DeviceAttribute::gpudirect_writes_ordering);
  const cuda::Result result = driver_.call.cuDeviceGetAttribute(&value, which, gpu);
  return result == cuda::kSuccess && value >= kOrderedForOwner;
}

bool CudaGpus::owns(const std::byte* address) const { return call_.gpu(number(address)) >= 0; }

bool CudaGpus::is_refused() {
  const std::lock_guard lock(mutex_);
  if (accepted_ > 0) {
    --accepted_;
    return false;
  }
  if (refused_ == 0) return false;
  --refused_;
  return true;
}

int CudaGpus::charge(std::unique_ptr<Registered> range, std::unique_ptr<Range>& charged) {
  if (!range->charge()) {
    const std::lock_guard lock(mutex_);
    ++counters_.bar1_refusals;
    return ENOMEM;
  }
  charged = std::move(range);
  return 0;
}

int CudaGpus::map(std::byte* address, std::size_t bytes, std::unique_ptr<Range>& range) {
  const bool is_capable =
      attribute(address, cuda::PointerAttribute::is_gpu_direct_rdma_capable) != 0;
  if (!owns(address) || !is_capable || call_.bytes(number(address), bytes) == nullptr) {
    return EFAULT;
  }
  if (is_refused()) return EIO;
  return charge(std::make_unique<Registered>(*this, address, bytes), range);
}

int CudaGpus::map_dma_buf(const rdma::DmaBufPart& part, std::unique_ptr<Range>& range) {
  if (!owns(part.memory)) return EINVAL;
  auto made = std::make_unique<Registered>(*this, part.memory, part.bytes);
  if (!made->map(part.descriptor, part.offset)) return EINVAL;
  if (is_refused()) return EIO;
  return charge(std::move(made), range);
}

void CudaGpus::flush_by(const void* nic, Gpu gpu) {
  show(gpu, nic);
  const std::lock_guard lock(mutex_);
  ++counters_.flushes_by_read;
}

template <typename Choose>
void CudaGpus::show_if(Choose choose) {
  const std::lock_guard lock(mutex_);
  std::erase_if(unflushed_, [&](const Unflushed& write) {
    if (!choose(write)) return false;
    std::memcpy(write.visible, write.bytes.data(), write.bytes.size());
    return true;
  });
}

void CudaGpus::show(Gpu gpu, const void* nic) {
  show_if([&](const Unflushed& write) {
    return write.gpu == gpu && (nic == nullptr || write.nic == nic);
  });
}

}  // namespace rdmacoll::verbs_sim
