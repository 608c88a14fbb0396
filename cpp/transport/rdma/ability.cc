#include "transport/rdma/ability.h"

#include <algorithm>

#include "base/text.h"
#include "transport/rdma/rdma_peer.h"
#include "transport/rdma/settings.h"
#include "transport/rdma/sysfs.h"

namespace rdmacoll::rdma {
namespace {

// Enough to find out whether memory can be registered at all.
constexpr std::size_t kTrialBytes = 64 << 10;
// Every rail pins the pool once. Messages and staging buffers lie in it and are pinned once more: a
// quarter of it.
constexpr uint64_t kPinnedAgain = 4;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kPoolBytesMin = 16 * kMiB;  // the least TF_RDMA_BUF_SIZE
// The messages of one peer must leave room for those of others, and for data.
constexpr uint64_t kMessagesShare = 8;

uint64_t pinned_bytes(uint64_t pool_bytes, std::size_t rails) {
  return (pool_bytes + pool_bytes / kPinnedAgain) * rails;
}

// Finds the largest pool that may be pinned. An error if the requested pool, or else the smallest
// one, may not be pinned.
Status fit_pool(const Config& config, std::size_t rails, const MemoryLimit& limit,
                uint64_t& pool_bytes) {
  pool_bytes = config.pool_bytes;
  if (!limit.allowed) return {};
  const uint64_t free = *limit.allowed - std::min(limit.pinned, *limit.allowed);
  if (pinned_bytes(pool_bytes, rails) <= free) return {};
  const uint64_t fitting = free / rails / (kPinnedAgain + 1) * kPinnedAgain / kMiB * kMiB;
  if (config.pool_is_given) {
    const std::string lower =
        fitting >= kPoolBytesMin
            ? cat("; or lower TF_RDMA_BUF_SIZE to ", bytes_text(fitting), ", or leave it unset")
            : "";
    return {Code::failed,
            pool_too_large(bytes_text(pool_bytes), pinned_bytes(pool_bytes, rails), limit, lower)};
  }
  if (fitting < kPoolBytesMin) {
    return {Code::failed, pool_too_large(cat(bytes_text(kPoolBytesMin), ", the smallest,"),
                                         pinned_bytes(kPoolBytesMin, rails), limit, "")};
  }
  pool_bytes = fitting;
  return {};
}

Status check_messages(const Config& config, uint64_t pool_bytes) {
  if (!config.accumulation_bytes) return {};  // unset: as much as fits
  const uint64_t bytes = message_bytes_min(*config.accumulation_bytes);
  if (bytes <= pool_bytes / kMessagesShare) return {};
  const uint64_t slots = message_bytes_min(kMiB) / kMiB;  // their headers are less than one
  const uint64_t lower = pool_bytes / kMessagesShare / (slots + 1);
  return {
      Code::invalid,
      cat("TF_RDMA_ACC_SIZE=", *config.accumulation_bytes, " is too large for a buffer pool of ",
          bytes_text(pool_bytes), " (TF_RDMA_BUF_SIZE): the messages of one peer, ", slots,
          " of that size, would take ", bytes_text(bytes), ", which is more than 1/",
          kMessagesShare, " of it. Lower TF_RDMA_ACC_SIZE to ", lower,
          ", or raise TF_RDMA_BUF_SIZE to ", bytes * kMessagesShare, ".")};
}

Status check_queue_depth(const Config& config, std::span<const Rail> rails) {
  for (const Rail& rail : rails) {
    const auto most = static_cast<uint32_t>(std::max(0, rail.queue_depth_max));
    if (config.rdma_queue_depth.value_or(0) <= most) continue;
    return {Code::failed,
            cat("RDMA_QUEUE_DEPTH=", *config.rdma_queue_depth, ", and a queue of ", rail.device,
                " holds ", most, " requests at most: lower it, or leave it unset.")};
  }
  return {};
}

// Opens each device and registers some memory, which shows missing permissions and limits.
Status try_devices(Verbs& verbs, std::span<const Rail> rails, MemoryPool& pool) {
  const std::size_t bytes = std::min(kTrialBytes, pool.size());
  for (const Rail& rail : rails) {
    std::unique_ptr<Device> device;
    RC_RETURN_IF_ERROR(verbs.open({.device = rail.device, .completions = 1}, device));
    std::unique_ptr<Registration> registration;
    RC_RETURN_IF_ERROR(device->register_memory(pool.base(), bytes, registration));
  }
  return {};
}

Status look(const Config& config, MemoryPool& pool, const MemoryLimit& limit, Ability& ability) {
  if (ability.verbs == nullptr) RC_RETURN_IF_ERROR(system_verbs(ability.verbs));
  std::vector<DeviceFacts> devices;
  RC_RETURN_IF_ERROR(ability.verbs->list(devices));
  ability.card.has_devices |= !devices.empty();
  RC_RETURN_IF_ERROR(choose_rails(devices, device_request(config), ability.rails));
  if (ability.rails.size() > kRailsMax) {
    return {Code::failed,
            cat(config.rdma_device_by, "=", config.rdma_device, " names ", ability.rails.size(),
                " ports, and ", kRailsMax, " carry the data at most: leave some out.")};
  }
  RC_RETURN_IF_ERROR(check_queue_depth(config, ability.rails));
  RC_RETURN_IF_ERROR(fit_pool(config, ability.rails.size(), limit, ability.card.pool_bytes));
  ability.pins_callers_memory = !limit.allowed && ability.verbs->copies_for_forks();
  return try_devices(*ability.verbs, ability.rails, pool);
}

}  // namespace

Ability find_ability(const Config& config, MemoryPool& pool, Verbs* verbs,
                     const MemoryLimit& limit) {
  Ability ability;
  ability.verbs = verbs;
  ability.card.request = config.rdma_request;
  // The kernel may have devices that the library does not see, or for which there is no library.
  if (verbs == nullptr) ability.card.has_devices = !Sysfs().devices().empty();
  if (!config.rdma_enabled) {  // as RdmaProvider::is_off
    ability.card.obstacle = "RDMA is turned off (TF_RDMA_ENABLED).";
    ability.card.is_off = true;
    return ability;
  }
  if (Status looked = look(config, pool, limit, ability); !looked.ok()) {
    ability.card.obstacle = looked.message();
  }
  return ability;
}

Status agree_on_pool(std::span<const Candidate> ranks, const Config& config,
                     const Describe& describe, TransportAgreement& agreement) {
  const auto least = std::min_element(
      ranks.begin(), ranks.end(),
      [](const Candidate& a, const Candidate& b) { return a.card.pool_bytes < b.card.pool_bytes; });
  agreement.pool_bytes = least->card.pool_bytes;
  RC_RETURN_IF_ERROR(check_messages(config, agreement.pool_bytes));
  if (agreement.pool_bytes < config.pool_bytes) {
    const std::string who = describe(static_cast<int>(least - ranks.begin()));
    const bool is_pinned_less = least->card.pool_bytes < least->pool_bytes;
    agreement.notes.push_back(
        is_pinned_less ? pool_shrunk(who, agreement.pool_bytes, config.pool_bytes)
                       : cat("the buffer pool has ", bytes_text(agreement.pool_bytes),
                             " instead of ", bytes_text(config.pool_bytes), ", since ", who,
                             " has no larger one: its own line names the limit (address space, or "
                             "memory of its container). Raise that, or set RDMACOLL_BUF_SIZE "
                             "(TF_RDMA_BUF_SIZE)."));
  }
  return {};
}

}  // namespace rdmacoll::rdma
