// RDMA among the transports.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/provider.h"
#include "transport/rdma/ability.h"

namespace rdmacoll {

class RdmaProvider final : public TransportProvider {
 public:
  // `verbs`: null for the system's. `limit` on pinned memory; none: that of this process.
  explicit RdmaProvider(rdma::Verbs* verbs = nullptr,
                        std::optional<rdma::MemoryLimit> limit = std::nullopt)
      : verbs_(verbs), limit_(limit) {}

  Status check_settings(Config& config, const GivenSettings& given) const override;
  std::string devices_json(const Config& config) const override;
  bool is_off(const Config& config) const override { return !config.rdma_enabled; }
  std::string request(const Config& config) const override { return config.rdma_request; }
  TransportCard probe(const Config& config, MemoryPool& pool) override;
  int descriptors_of_devices() const override;
  Status agree(std::span<const Candidate> ranks, const Config& config, const Describe& describe,
               TransportAgreement& agreement) const override;
  std::string_view how_to_turn_off() const override {
    return "TF_RDMA_ENABLED=false says that TCP is meant.";
  }
  bool via_nic() const override { return true; }
  Status open(const TransportOptions& options,
              std::unique_ptr<SocketTransport>& transport) override;
  std::vector<std::string> nics() const override;
  std::vector<std::string> ports() const override;
  std::optional<double> port_gbit_per_s() const override;
  std::vector<std::string> choices() const override;
  std::vector<std::string> notes() const override { return notes_; }

 private:
  rdma::Verbs* verbs_;
  std::optional<rdma::MemoryLimit> limit_;
  rdma::Ability ability_;
  std::vector<std::string> notes_;
};

}  // namespace rdmacoll
