#include "transport/tcp/provider.h"

#include "transport/tcp/tcp_transport.h"

namespace rdmacoll {

Status TcpProvider::open(const TransportOptions& options,
                         std::unique_ptr<SocketTransport>& transport) {
  const Config& config = options.config;
  auto opened = std::make_unique<TcpTransport>(
      options.world, options.clock, from_seconds(config.peer_timeout_s),
      TcpOptions{.chunk_bytes = config.chunk_bytes, .streams = {.count = config.tcp_streams}});
  RC_RETURN_IF_ERROR(opened->opened());
  transport = std::move(opened);
  return {};
}

}  // namespace rdmacoll
