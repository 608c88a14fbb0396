// A transport whose peers meet on stream sockets. The owner of the transport connects and
// authenticates the sockets, and hands them over.
#pragma once

#include <string>

#include "base/fd.h"
#include "transport/transport.h"

namespace rdmacoll {

class SocketTransport : public Transport {
 public:
  // Takes over an authenticated stream socket to `peer`. One of the two ends is the dialer.
  // Sink::connected or Sink::peer_failed follows.
  virtual void adopt(int peer, Fd socket, bool is_dialer) = 0;

  void connect(int) override {}  // the owner dials, and calls adopt()

  // Sockets between two ranks. Beyond the first one they come through adopt_stream(), with numbers
  // from 1, at any time after adopt().
  virtual int streams() const { return 1; }
  virtual void adopt_stream(int peer, int number, Fd socket);
  virtual bool has_stream(int peer, int number) const;
  // The message about a stream to a peer that could not be opened, with its cause.
  virtual std::string stream_failure(int number, const std::string& cause) const;
  // The failure of a peer that has opened only some of its streams.
  virtual std::string missing_streams(int opened) const;
};

}  // namespace rdmacoll
