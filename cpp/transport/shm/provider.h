// Shared memory among the transports.
#pragma once

#include <memory>

#include "transport/provider.h"

namespace rdmacoll {

class ShmProvider final : public TransportProvider {
 public:
  int descriptors_per_peer(const Config& config) const override;
  std::string_view separation(const Candidate& a, const Candidate& b) const override;
  SocketKind socket_kind() const override { return SocketKind::unix_domain; }
  bool shares_memory() const override { return true; }
  Status open(const TransportOptions& options,
              std::unique_ptr<SocketTransport>& transport) override;
};

}  // namespace rdmacoll
