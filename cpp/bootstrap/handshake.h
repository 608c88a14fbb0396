// The first exchange on every connection, before any other byte is parsed. Both sides prove that
// they know the job's secret, without sending it.
//
//   dialer   -> listener  Hello: magic, version, role, stream, epoch, from, to, digest of the job,
//                         nonce
//   listener -> dialer    its own Hello, and HMAC(secret, "listener", both Hellos)
//   dialer   -> listener  HMAC(secret, "dialer", both Hellos)
//
// A fresh nonce on each side makes a recorded proof worthless. The label makes a reflected proof
// wrong. The Hellos are in the proof, so nobody on the way can change job, epoch, ranks, role or
// stream. The handshake proves identities; it encrypts nothing.
//
// Over TCP a check of the path ends it (path_check.h). The handshake reads no byte beyond itself:
// frames, or descriptors, follow on the same socket.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/path_check.h"
#include "bootstrap/sha256.h"

namespace rdmacoll {

// The time from the first byte to the last. A peer that sends its bytes slowly gains nothing.
inline constexpr Nanoseconds kHandshakeTimeout = 10 * kSecond;

// The purpose of the connection. Both sides must mean the same.
enum class Role : uint8_t { data = 1 };

struct Credentials {
  std::string job;
  uint32_t epoch = 0;
  int rank = 0;
  int size = 0;
  std::vector<std::byte> secret;
  int streams = 1;  // connections that two ranks may have
};

class Handshake {
 public:
  // Credentials must outlive the handshake. The dialer knows the peer, and the stream of their
  // pair. The listener learns both. It also learns which world is called: that of `credentials`, or
  // one of the `others`.
  static Handshake dial(const Credentials& credentials, Role role, int peer, Nanoseconds now,
                        int stream = 0);
  static Handshake listen(const Credentials& credentials, Role role, Nanoseconds now,
                          std::vector<const Credentials*> others = {});

  // Advances as far as the (non-blocking, stream) socket allows. If ok() and not done(), wait until
  // the socket is readable or writable, or until deadline(). After an error, close the socket.
  Status advance(int socket, Nanoseconds now);
  bool done() const { return state_ == State::done; }
  Nanoseconds deadline() const { return std::min(deadline_, path_.deadline()); }

  // The peer's rank. It is proven when done(); before that it is only claimed, or -1.
  int peer() const { return peer_; }
  int stream() const { return stream_; }
  const Credentials& credentials() const { return *credentials_; }
  // The two sides have different secrets, so a retry is of no use.
  bool is_refused() const { return refused_; }
  // Large frames do not reach the other host.
  bool has_path_fault() const { return path_.has_found_fault(); }
  // A byte has arrived. A probe, or a port scan, ends without one.
  bool has_heard() const { return heard_; }
  // Tells a listener that the other side has named this job, its ranks and itself. Only ranks can.
  bool is_known() const { return state_ == State::proof || is_proven(); }

 private:
  enum class State : uint8_t { send, hello, answer, proof, path, done, failed };
  static constexpr std::size_t kHelloBytes = 88;
  using HelloBytes = std::array<std::byte, kHelloBytes>;

  Handshake(const Credentials& credentials, bool dialer, Role role, int peer, int stream,
            Nanoseconds now);

  bool is_proven() const { return state_ == State::path || state_ == State::done; }
  void prove(int socket, Nanoseconds now);
  HelloBytes make_hello() const;
  void choose_world(const Digest& job, int rank);
  // Returns "" or why a hello of the other side does not fit ours. Sets peer_ and stream_.
  // `is_ours`: the hello is one of rdmacoll at all.
  std::string check_hello(const HelloBytes& hello, bool& is_ours);
  Digest proof_of(bool dialer) const;
  void expect(State state, std::size_t bytes);
  void put(std::span<const std::byte> bytes);
  Status write(int socket);
  Status read(int socket);
  Status take_input(int socket, Nanoseconds now);
  Status refuse(const std::string& why, bool is_final);

  const Credentials* credentials_;
  std::vector<const Credentials*> others_;
  bool dialer_;
  Role role_;
  int peer_;
  int stream_;
  Nanoseconds deadline_;
  Digest nonce_;
  HelloBytes own_hello_{};
  HelloBytes peer_hello_{};
  State state_ = State::hello;
  bool refused_ = false;
  bool heard_ = false;
  std::vector<std::byte> input_;  // exactly as long as the expected input
  std::size_t filled_ = 0;
  std::vector<std::byte> output_;
  PathCheck path_;
};

}  // namespace rdmacoll
