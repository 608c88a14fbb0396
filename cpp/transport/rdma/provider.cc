#include "transport/rdma/provider.h"

#include "base/text.h"
#include "transport/rdma/devices_json.h"
#include "transport/rdma/rdma_transport.h"
#include "transport/rdma/settings.h"

namespace rdmacoll {
namespace {

// Commands, events and completions.
constexpr int kDescriptorsPerDevice = 3;

}  // namespace

Status RdmaProvider::check_settings(Config& config, const GivenSettings& given) const {
  return rdma::check_settings(config, given);
}

std::string RdmaProvider::devices_json(const Config& config) const {
  return rdma::devices_json(rdma::device_request(config));
}

TransportCard RdmaProvider::probe(const Config& config, MemoryPool& pool) {
  ability_ = rdma::find_ability(config, pool, verbs_, limit_.value_or(rdma::memory_limit()));
  return ability_.card;
}

int RdmaProvider::descriptors_of_devices() const {
  return static_cast<int>(ability_.rails.size()) * kDescriptorsPerDevice;
}

Status RdmaProvider::agree(std::span<const Candidate> ranks, const Config& config,
                           const Describe& describe, TransportAgreement& agreement) const {
  return rdma::agree_on_pool(ranks, config, describe, agreement);
}

Status RdmaProvider::open(const TransportOptions& options,
                          std::unique_ptr<SocketTransport>& transport) {
  rdma::PeerOptions peers =
      rdma::peer_options(options.config, options.pool.size(), options.world.size());
  peers.pins_callers_memory = ability_.pins_callers_memory;
  rdma::note_retries(options.config, ability_.rails, notes_);
  std::unique_ptr<RdmaTransport> opened;
  RC_RETURN_IF_ERROR(RdmaTransport::open(options.world, options.pool, options.clock,
                                         *ability_.verbs, ability_.rails, peers, opened));
  transport = std::move(opened);
  return {};
}

std::vector<std::string> RdmaProvider::nics() const {
  std::vector<std::string> names;
  for (const rdma::Rail& rail : ability_.rails) names.push_back(rail.device);
  return names;
}

std::vector<std::string> RdmaProvider::ports() const {
  std::vector<std::string> texts;
  for (const rdma::Rail& rail : ability_.rails) texts.push_back(rail.text());
  return texts;
}

std::optional<double> RdmaProvider::port_gbit_per_s() const {
  double gbit = 0;
  for (const rdma::Rail& rail : ability_.rails) {
    if (rail.is_software) return 0;  // a software device always reports 2.5
    gbit += rail.gbit_per_s;
  }
  return gbit;
}

std::vector<std::string> RdmaProvider::choices() const {
  std::vector<std::string> lines;
  for (const rdma::Rail& rail : ability_.rails) {
    lines.push_back(cat("RDMA over ", rail.text(), ": ", rail.reason, "."));
  }
  return lines;
}

}  // namespace rdmacoll
