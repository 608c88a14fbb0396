#include "transport/socket_transport.h"

#include "base/text.h"

namespace rdmacoll {

void SocketTransport::adopt_stream(int peer, int number, Fd) {
  RC_ASSERT(false, cat("no stream ", number, " with peer ", peer));
}

bool SocketTransport::has_stream(int peer, int number) const {
  RC_ASSERT(false, cat("no stream ", number, " with peer ", peer));
  return false;
}

std::string SocketTransport::stream_failure(int number, const std::string& cause) const {
  return cat("stream ", number + 1, " of ", streams(), " failed: ", cause);
}

std::string SocketTransport::missing_streams(int opened) const {
  return cat("it opened ", opened, " of ", streams(), " streams");
}

}  // namespace rdmacoll
