#include "cuda/gpus.h"

#include <array>
#include <cstring>
#include <vector>

#include "base/text.h"

namespace rdmacoll::cuda {
namespace {

constexpr int kVersionWithFlush = 11'030;  // CUDA 11.3 has the attributes of flushes

std::string uuid_text(std::string_view prefix, const Uuid& uuid) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(prefix);
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid.bytes[i] >> 4];
    text += kDigits[uuid.bytes[i] & 15];
  }
  return text;
}

// The newer function gives the UUID of a part of a GPU (MIG), the older one that of the whole GPU.
Status read_uuid(const Driver& driver, DeviceNumber device, std::string& text) {
  Uuid whole{};
  RC_RETURN_IF_ERROR(driver.check(driver.call.cuDeviceGetUuid(&whole, device), "cuDeviceGetUuid"));
  text = uuid_text("GPU-", whole);
  if (driver.call.cuDeviceGetUuid_v2 == nullptr) return {};
  Uuid part{};
  RC_RETURN_IF_ERROR(
      driver.check(driver.call.cuDeviceGetUuid_v2(&part, device), "cuDeviceGetUuid"));
  if (std::memcmp(&whole, &part, sizeof whole) != 0) text = uuid_text("MIG-", part);
  return {};
}

// Attributes that an older driver does not know are 0.
int attribute(const Driver& driver, DeviceNumber device, DeviceAttribute which) {
  int value = 0;
  const Result result = driver.call.cuDeviceGetAttribute(&value, static_cast<int>(which), device);
  return result == kSuccess ? value : 0;
}

}  // namespace

std::string GpuFacts::text() const {
  return cat("the GPU cuda:", ordinal, " (", name, ", ", uuid, ")");
}

Status read_facts(const Driver& driver, int ordinal, GpuFacts& facts) {
  facts = {.ordinal = ordinal};
  DeviceNumber& device = facts.device;
  RC_RETURN_IF_ERROR(driver.check(driver.call.cuDeviceGet(&device, ordinal),
                                  cat("cuDeviceGet of cuda:", ordinal)));
  std::array<char, 256> text{};
  RC_RETURN_IF_ERROR(driver.check(
      driver.call.cuDeviceGetName(text.data(), static_cast<int>(text.size()) - 1, device),
      "cuDeviceGetName"));
  facts.name = text.data();
  RC_RETURN_IF_ERROR(read_uuid(driver, device, facts.uuid));
  text = {};
  RC_RETURN_IF_ERROR(driver.check(
      driver.call.cuDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()) - 1, device),
      "cuDeviceGetPCIBusId"));
  facts.pci = text.data();
  RC_RETURN_IF_ERROR(
      driver.check(driver.call.cuDeviceTotalMem_v2(&facts.bytes, device), "cuDeviceTotalMem"));
  const auto read = [&](DeviceAttribute which) { return attribute(driver, device, which); };
  facts.capability =
      read(DeviceAttribute::capability_major) * 10 + read(DeviceAttribute::capability_minor);
  facts.multiprocessors = read(DeviceAttribute::multiprocessors);
  facts.compute_mode = read(DeviceAttribute::compute_mode);
  facts.has_gpudirect = read(DeviceAttribute::gpudirect_rdma) != 0;
  facts.has_dma_buf = read(DeviceAttribute::dma_buf) != 0;
  if (driver.version() < kVersionWithFlush) return {};
  facts.flush_options = read(DeviceAttribute::gpudirect_flush_options);
  facts.writes_ordering = read(DeviceAttribute::gpudirect_writes_ordering);
  return {};
}

Gpus::~Gpus() {
  if (driver_.is_forked_child()) return;
  for (int i = 0; i < count_.load(); ++i) {
    driver_.call.cuDevicePrimaryCtxRelease_v2(used_[static_cast<std::size_t>(i)].facts.device);
  }
}

std::size_t Gpus::index(Gpu gpu) const {
  RC_ASSERT(gpu >= 0 && gpu < size(), cat("GPU ", gpu, " of ", size()));
  return static_cast<std::size_t>(gpu);
}

bool Gpus::find_used(int ordinal, Gpu& gpu) const {
  const int count = size();
  for (int i = 0; i < count; ++i) {
    if (used_[static_cast<std::size_t>(i)].facts.ordinal != ordinal) continue;
    gpu = static_cast<Gpu>(i);
    return true;
  }
  return false;
}

Status Gpus::use(int ordinal, Gpu& gpu) {
  RC_RETURN_IF_ERROR(driver_.usable());
  if (find_used(ordinal, gpu)) return {};
  const std::lock_guard lock(mutex_);
  if (find_used(ordinal, gpu)) return {};  // by another thread meanwhile
  const int count = size();
  RC_ASSERT(count < kGpusMax, cat("more than ", kGpusMax, " GPUs in one process"));
  Used& used = used_[static_cast<std::size_t>(count)];
  RC_RETURN_IF_ERROR(read_facts(driver_, ordinal, used.facts));
  RC_RETURN_IF_ERROR(retain(used));
  gpu = static_cast<Gpu>(count);
  count_.store(count + 1, std::memory_order_release);
  return {};
}

Status Gpus::use_device(DeviceNumber device, Gpu& gpu) {
  int count = 0;
  RC_RETURN_IF_ERROR(driver_.check(driver_.call.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    DeviceNumber found = 0;
    if (driver_.call.cuDeviceGet(&found, ordinal) == kSuccess && found == device) {
      return use(ordinal, gpu);
    }
  }
  return driver_.error(kInvalidDevice, cat("a look at device ", device));
}

Status Gpus::retain(Used& used) const {
  const GpuFacts& facts = used.facts;
  if (facts.compute_mode == kComputeModeProhibited) {
    return {Code::invalid, cat(facts.text(),
                               " is in the compute mode \"prohibited\", which allows no "
                               "process on it: run \"nvidia-smi -i ",
                               facts.uuid, " -c DEFAULT\".")};
  }
  const Result result = driver_.call.cuDevicePrimaryCtxRetain(&used.context, facts.device);
  if (result != kSuccess && facts.compute_mode == kComputeModeExclusiveProcess) {
    return {
        Code::invalid,
        cat(facts.text(),
            " is in the compute mode \"exclusive process\", and another process uses it (",
            driver_.name_of(result), "): give each rank a GPU of its own, or run \"nvidia-smi -i ",
            facts.uuid, " -c DEFAULT\".")};
  }
  return driver_.check(result, cat("cuDevicePrimaryCtxRetain of ", facts.text()));
}

Status Gpus::find(const std::string& uuid, int& ordinal) const {
  int count = 0;
  RC_RETURN_IF_ERROR(driver_.check(driver_.call.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  std::vector<std::string> seen;
  for (ordinal = 0; ordinal < count; ++ordinal) {
    DeviceNumber device = 0;
    std::string found;
    RC_RETURN_IF_ERROR(driver_.check(driver_.call.cuDeviceGet(&device, ordinal), "cuDeviceGet"));
    RC_RETURN_IF_ERROR(read_uuid(driver_, device, found));
    if (found == uuid) return {};
    seen.push_back(std::move(found));
  }
  return {Code::invalid,
          cat("this process does not see the GPU ", uuid, ", but ",
              seen.empty() ? "none" : join(seen, ", "), ": look at CUDA_VISIBLE_DEVICES.")};
}

}  // namespace rdmacoll::cuda
