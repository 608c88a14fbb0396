#include "transport/shm/provider.h"

#include "memory/process_limits.h"
#include "transport/shm/greeting.h"
#include "transport/shm/shm_transport.h"

namespace rdmacoll {

// The socket, the channel, and the descriptors that a peer passes.
int ShmProvider::descriptors_per_peer(const Config&) const {
  return 2 + static_cast<int>(shm::kPassedMax);
}

std::string_view ShmProvider::separation(const Candidate& a, const Candidate& b) const {
  return a.node == b.node ? "" : "they are on different nodes";
}

Status ShmProvider::open(const TransportOptions& options,
                         std::unique_ptr<SocketTransport>& transport) {
  RC_RETURN_IF_ERROR(check_mappings(options.pool.size(), static_cast<int>(options.peers.size()),
                                    process_limits()));
  auto opened = std::make_unique<ShmTransport>(
      options.world, options.pool, options.clock,
      ShmOptions{.one_copy = options.config.one_copy,
                 .peer_timeout = from_seconds(options.config.peer_timeout_s)});
  RC_RETURN_IF_ERROR(opened->opened());
  transport = std::move(opened);
  return {};
}

}  // namespace rdmacoll
