#include "bootstrap/rdma_ability.h"

#include <algorithm>

#include "base/text.h"

namespace rdmacoll {
namespace {

constexpr std::string_view kTurnedOff = "RDMA is turned off (RDMACOLL_TRANSPORT, TF_RDMA_ENABLED).";
// Enough to see whether memory can be registered at all.
constexpr std::size_t kTrialBytes = 64 << 10;

bool may_use_rdma(const Config& config) {
  const auto& allowed = config.transports;
  const bool is_listed =
      allowed.empty() || std::any_of(allowed.begin(), allowed.end(), [](const std::string& name) {
        return name == "rdma" || name == "auto";
      });
  return config.rdma_enabled && is_listed;
}

// Opens each device and registers something: permissions and limits show here.
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

Status look(const Config& config, MemoryPool& pool, RdmaAbility& ability) {
  if (ability.verbs == nullptr) RC_RETURN_IF_ERROR(rdma::system_verbs(ability.verbs));
  std::vector<rdma::DeviceFacts> devices;
  RC_RETURN_IF_ERROR(ability.verbs->list(devices));
  ability.card.has_devices = !devices.empty();
  RC_RETURN_IF_ERROR(rdma::choose_rails(
      devices, {.devices = config.rdma_device, .gid_index = config.rdma_gid_index}, ability.rails));
  return try_devices(*ability.verbs, ability.rails, pool);
}

}  // namespace

RdmaAbility find_rdma(const Config& config, MemoryPool& pool, rdma::Verbs* verbs) {
  RdmaAbility ability;
  ability.verbs = verbs;
  ability.card.is_requested = config.rdma_requested;
  if (!may_use_rdma(config)) {
    ability.card.obstacle = kTurnedOff;
    return ability;
  }
  if (Status looked = look(config, pool, ability); !looked.ok()) {
    ability.card.obstacle = looked.message();
  }
  return ability;
}

Status agree_on_rdma(std::span<const Card> cards, const std::function<std::string(int)>& describe,
                     RdmaAgreement& agreement) {
  agreement = {};
  const auto unable = std::find_if(cards.begin(), cards.end(),
                                   [](const Card& card) { return !card.rdma.obstacle.empty(); });
  agreement.use = unable == cards.end();
  if (agreement.use) return {};
  const auto asker = std::find_if(cards.begin(), cards.end(),
                                  [](const Card& card) { return card.rdma.is_requested; });
  const std::string who = describe(static_cast<int>(unable - cards.begin()));
  if (asker != cards.end()) {
    return {
        Code::invalid,
        cat("RDMA was asked for (TF_RDMA_ENABLED, TF_RDMA_DEV_NAME or RDMACOLL_TRANSPORT), and ",
            who, " cannot use it: ", unable->rdma.obstacle)};
  }
  // Where nobody has a device there is nothing to say.
  const bool has_devices = std::any_of(cards.begin(), cards.end(),
                                       [](const Card& card) { return card.rdma.has_devices; });
  if (has_devices && unable->rdma.obstacle != kTurnedOff) {
    agreement.warning = cat("no RDMA, but TCP: ", who, " cannot use it: ", unable->rdma.obstacle);
  }
  return {};
}

}  // namespace rdmacoll
