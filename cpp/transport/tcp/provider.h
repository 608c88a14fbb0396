// TCP among the transports. It reaches every rank.
#pragma once

#include <memory>

#include "transport/provider.h"

namespace rdmacoll {

class TcpProvider final : public TransportProvider {
 public:
  int descriptors_per_peer(const Config& config) const override { return config.tcp_streams; }
  Status open(const TransportOptions& options,
              std::unique_ptr<SocketTransport>& transport) override;
};

}  // namespace rdmacoll
