#include "bootstrap/rdma_ability.h"

#include <algorithm>

#include "base/text.h"
#include "transport/rdma/sysfs.h"

namespace rdmacoll {
namespace {

constexpr std::string_view kTurnedOff = "RDMA is turned off (RDMACOLL_TRANSPORT, TF_RDMA_ENABLED).";
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
Status fit_pool(const Config& config, std::size_t rails, const rdma::MemoryLimit& limit,
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
            rdma::pool_too_large(pool_bytes, pinned_bytes(pool_bytes, rails), limit, lower)};
  }
  if (fitting < kPoolBytesMin) {
    return {Code::failed, rdma::pool_too_large(kPoolBytesMin, pinned_bytes(kPoolBytesMin, rails),
                                               limit, ", this being the smallest pool")};
  }
  pool_bytes = fitting;
  return {};
}

Status check_messages(const Config& config, uint64_t pool_bytes) {
  if (!config.accumulation_bytes) return {};  // unset: as much as fits
  const uint64_t bytes = rdma::message_bytes_min(*config.accumulation_bytes);
  if (bytes <= pool_bytes / kMessagesShare) return {};
  const uint64_t slots = rdma::message_bytes_min(kMiB) / kMiB;  // their headers are less than one
  const uint64_t lower = pool_bytes / kMessagesShare / (slots + 1);
  return {
      Code::invalid,
      cat("TF_RDMA_ACC_SIZE=", *config.accumulation_bytes, " is too large for a buffer pool of ",
          bytes_text(pool_bytes), " (TF_RDMA_BUF_SIZE): the messages of one peer, ", slots,
          " of that size, would take ", bytes_text(bytes), ", which is more than 1/",
          kMessagesShare, " of it. Lower TF_RDMA_ACC_SIZE to ", lower,
          ", or raise TF_RDMA_BUF_SIZE to ", bytes * kMessagesShare, ".")};
}

Status check_queue_depth(const Config& config, std::span<const rdma::Rail> rails) {
  for (const rdma::Rail& rail : rails) {
    const auto most = static_cast<uint32_t>(std::max(0, rail.queue_depth_max));
    if (config.rdma_queue_depth.value_or(0) <= most) continue;
    return {Code::failed,
            cat("RDMA_QUEUE_DEPTH=", *config.rdma_queue_depth, ", and a queue of ", rail.device,
                " holds ", most, " requests at most: lower it, or leave it unset.")};
  }
  return {};
}

// Opens each device and registers some memory, which shows missing permissions and limits.
Status try_devices(rdma::Verbs& verbs, std::span<const rdma::Rail> rails, MemoryPool& pool) {
  const std::size_t bytes = std::min(kTrialBytes, pool.size());
  for (const rdma::Rail& rail : rails) {
    std::unique_ptr<rdma::Device> device;
    RC_RETURN_IF_ERROR(verbs.open({.device = rail.device, .completions = 1}, device));
    std::unique_ptr<rdma::Registration> registration;
    RC_RETURN_IF_ERROR(device->register_memory(pool.base(), bytes, registration));
  }
  return {};
}

Status look(const Config& config, MemoryPool& pool, const rdma::MemoryLimit& limit,
            RdmaAbility& ability) {
  if (ability.verbs == nullptr) RC_RETURN_IF_ERROR(rdma::system_verbs(ability.verbs));
  std::vector<rdma::DeviceFacts> devices;
  RC_RETURN_IF_ERROR(ability.verbs->list(devices));
  ability.card.has_devices |= !devices.empty();
  RC_RETURN_IF_ERROR(rdma::choose_rails(devices, wish_of(config), ability.rails));
  if (ability.rails.size() > rdma::kRailsMax) {
    return {Code::failed,
            cat(config.rdma_device_by, "=", config.rdma_device, " names ", ability.rails.size(),
                " ports, and ", rdma::kRailsMax, " carry the data at most: leave some out.")};
  }
  RC_RETURN_IF_ERROR(check_queue_depth(config, ability.rails));
  RC_RETURN_IF_ERROR(fit_pool(config, ability.rails.size(), limit, ability.card.pool_bytes));
  ability.pins_callers_memory = !limit.allowed && ability.verbs->copies_for_forks();
  return try_devices(*ability.verbs, ability.rails, pool);
}

}  // namespace

rdma::Wish wish_of(const Config& config) {
  return {.devices = config.rdma_device,
          .devices_by = config.rdma_device_by,
          .gid_index = config.rdma_gid_index,
          .port = config.rdma_port,
          .pkey_index = config.rdma_pkey_index};
}

rdma::PeerOptions peer_options(const Config& config, std::size_t pool_bytes, int ranks) {
  const uint64_t messages =
      config.accumulation_bytes.value_or(rdma::accumulation_that_fits(pool_bytes, ranks));
  rdma::PeerOptions options{.accumulation_bytes = static_cast<uint32_t>(messages),
                            .finds_cut = !config.accumulation_bytes,
                            .chunk_bytes = static_cast<uint32_t>(config.chunk_bytes),
                            .peer_timeout = from_seconds(config.peer_timeout_s)};
  options.queue_depth = config.rdma_queue_depth.value_or(options.queue_depth);
  rdma::PathSettings& path = options.path;
  path.mtu = config.rdma_mtu.value_or(path.mtu);
  path.timeout = config.rdma_timeout.value_or(path.timeout);
  path.retries = config.rdma_retries.value_or(path.retries);
  path.service_level = config.rdma_service_level.value_or(path.service_level);
  path.traffic_class = config.rdma_traffic_class.value_or(path.traffic_class);
  return options;
}

void note_retries(const Config& config, std::span<const rdma::Rail> rails,
                  std::vector<std::string>& notes) {
  const auto soft = std::find_if(rails.begin(), rails.end(),
                                 [](const rdma::Rail& rail) { return rail.is_software; });
  if (config.rdma_retries != rdma::kRetriesForEver || soft == rails.end()) return;
  notes.push_back(cat("RDMA_RETRY_CNT=7 means for ever on ", soft->device,
                      ", which is soft-RoCE, so that a lost peer would never be noticed: it is "
                      "taken as 6; set RDMA_RETRY_CNT=6 to be rid of this line."));
}

RdmaAbility find_rdma(const Config& config, MemoryPool& pool, rdma::Verbs* verbs,
                      const rdma::MemoryLimit& limit) {
  RdmaAbility ability;
  ability.verbs = verbs;
  ability.card.request = config.rdma_request;
  // The kernel may have devices that the library does not see, or for which there is no library.
  if (verbs == nullptr) ability.card.has_devices = !rdma::Sysfs().devices().empty();
  if (!config.rdma_enabled || !config.allows("rdma")) {
    ability.card.obstacle = kTurnedOff;
    return ability;
  }
  if (Status looked = look(config, pool, limit, ability); !looked.ok()) {
    ability.card.obstacle = looked.message();
  }
  return ability;
}

namespace {

Status agree_on_pool(std::span<const Card> cards, const Config& config,
                     const std::function<std::string(int)>& describe, RdmaAgreement& agreement) {
  const auto least = std::min_element(cards.begin(), cards.end(), [](const Card& a, const Card& b) {
    return a.rdma.pool_bytes < b.rdma.pool_bytes;
  });
  agreement.pool_bytes = least->rdma.pool_bytes;
  RC_RETURN_IF_ERROR(check_messages(config, agreement.pool_bytes));
  if (agreement.pool_bytes < config.pool_bytes) {
    const std::string who = describe(static_cast<int>(least - cards.begin()));
    const bool is_pinned_less = least->rdma.pool_bytes < least->pool_bytes;
    agreement.notes.push_back(
        is_pinned_less ? rdma::pool_shrunk(who, agreement.pool_bytes, config.pool_bytes)
                       : cat("the buffer pool has ", bytes_text(agreement.pool_bytes),
                             " instead of ", bytes_text(config.pool_bytes), ", since ", who,
                             " has no larger one: its own line names the limit (address space, or "
                             "memory of its container). Raise that, or set RDMACOLL_BUF_SIZE "
                             "(TF_RDMA_BUF_SIZE)."));
  }
  return {};
}

}  // namespace

Status agree_on_rdma(std::span<const Card> cards, const Config& config,
                     const std::function<std::string(int)>& describe, RdmaAgreement& agreement) {
  agreement = {};
  agreement.pool_bytes = cards.front().pool_bytes;
  for (const Card& card : cards) {
    agreement.pool_bytes = std::min(agreement.pool_bytes, card.pool_bytes);
  }
  const auto unable = std::find_if(cards.begin(), cards.end(),
                                   [](const Card& card) { return !card.rdma.obstacle.empty(); });
  agreement.use = unable == cards.end();
  if (agreement.use) return agree_on_pool(cards, config, describe, agreement);
  const auto asker = std::find_if(cards.begin(), cards.end(),
                                  [](const Card& card) { return !card.rdma.request.empty(); });
  const std::string who = describe(static_cast<int>(unable - cards.begin()));
  if (asker != cards.end()) {
    const std::string by = describe(static_cast<int>(asker - cards.begin()));
    return {Code::invalid, cat("RDMA was asked for (", asker->rdma.request, " at ", by, "), and ",
                               who, " cannot use it: ", unable->rdma.obstacle,
                               " To go without, unset what asks for it.")};
  }
  // If no rank has a device, there is nothing to report.
  const bool has_devices = std::any_of(cards.begin(), cards.end(),
                                       [](const Card& card) { return card.rdma.has_devices; });
  if (has_devices && unable->rdma.obstacle != kTurnedOff) {
    agreement.warning = cat("no RDMA, but TCP: ", who, " cannot use it: ", unable->rdma.obstacle,
                            " TF_RDMA_ENABLED=false says that TCP is meant.");
  }
  return {};
}

}  // namespace rdmacoll
