#include "bootstrap/handshake.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "base/wire.h"
#include "bootstrap/sockets.h"

namespace rdmacoll {
namespace {

constexpr uint64_t kMagic = 0x6c6c6f63616d6472;  // "rdmacoll"
constexpr uint16_t kVersion = 1;
constexpr std::string_view kDialerLabel = "rdmacoll handshake 1: dialer";
constexpr std::string_view kListenerLabel = "rdmacoll handshake 1: listener";

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

Handshake Handshake::dial(const Credentials& credentials, Role role, int peer, Nanoseconds now,
                          int stream) {
  return Handshake(credentials, true, role, peer, stream, now);
}

Handshake Handshake::listen(const Credentials& credentials, Role role, Nanoseconds now,
                            std::vector<const Credentials*> others) {
  Handshake handshake(credentials, false, role, -1, 0, now);
  handshake.others_ = std::move(others);
  return handshake;
}

// Selects the world that the caller names, among the worlds that share this listener.
void Handshake::choose_world(const Digest& job, int rank) {
  for (const Credentials* other : others_) {
    if (other->rank == rank && job == Sha256().add(other->job).finish()) credentials_ = other;
  }
}

Handshake::Handshake(const Credentials& credentials, bool dialer, Role role, int peer, int stream,
                     Nanoseconds now)
    : credentials_(&credentials),
      dialer_(dialer),
      role_(role),
      peer_(peer),
      stream_(stream),
      deadline_(now + kHandshakeTimeout) {
  fill_random(nonce_);
  if (dialer_) {
    own_hello_ = make_hello();
    put(own_hello_);
    expect(State::answer, kHelloBytes + sizeof(Digest));
  } else {
    expect(State::hello, kHelloBytes);
  }
}

Handshake::HelloBytes Handshake::make_hello() const {
  Writer writer;
  writer.put(kMagic).put(kVersion).put(role_).put(static_cast<uint8_t>(stream_));
  writer.put(credentials_->epoch);
  writer.put(int32_t{credentials_->rank}).put(int32_t{peer_});
  const Digest job = Sha256().add(credentials_->job).finish();
  for (const std::byte byte : job) writer.put(byte);
  for (const std::byte byte : nonce_) writer.put(byte);
  HelloBytes hello;
  RC_ASSERT(writer.size() == hello.size(), cat(writer.size()));
  std::copy(writer.bytes().begin(), writer.bytes().end(), hello.begin());
  return hello;
}

std::string Handshake::check_hello(const HelloBytes& hello, bool& is_ours) {
  Reader reader(hello);
  is_ours = reader.get<uint64_t>() == kMagic;
  if (!is_ours) return "another program answers there, not rdmacoll";
  const auto version = reader.get<uint16_t>();
  const auto role = reader.get<Role>();
  const int stream = reader.get<uint8_t>();
  const auto epoch = reader.get<uint32_t>();
  const auto from = reader.get<int32_t>();
  const auto to = reader.get<int32_t>();
  Digest job;
  for (std::byte& byte : job) byte = reader.get<std::byte>();
  if (version != kVersion) {
    return cat("it speaks version ", version, " of the handshake, not ", kVersion);
  }
  choose_world(job, to);
  if (job != Sha256().add(credentials_->job).finish()) return "it belongs to another job";
  if (epoch != credentials_->epoch) {
    return cat("it is in epoch ", epoch, ", not in epoch ", credentials_->epoch);
  }
  if (dialer_ ? from != peer_ : (from < 0 || from >= credentials_->size)) {
    return dialer_ ? cat("it is rank ", from, ", not rank ", peer_)
                   : cat("it says that it is rank ", from, " of ", credentials_->size);
  }
  if (from == credentials_->rank) return cat("it says that it is this rank, ", from);
  if (!dialer_) peer_ = from;
  if (to != credentials_->rank) {
    return cat("it is looking for rank ", to, " and found rank ", credentials_->rank);
  }
  if (dialer_ ? stream != stream_ : stream >= credentials_->streams) {
    return dialer_ ? cat("it takes no stream ", stream_ + 1)
                   : cat("it calls with stream ", stream + 1, " of ", credentials_->streams);
  }
  stream_ = stream;
  if (role != role_) return cat("it wants a connection of kind ", static_cast<int>(role));
  return "";
}

Digest Handshake::proof_of(bool dialer) const {
  return hmac_sha256(credentials_->secret,
                     {bytes_of(dialer ? kDialerLabel : kListenerLabel),
                      dialer_ ? own_hello_ : peer_hello_, dialer_ ? peer_hello_ : own_hello_});
}

void Handshake::expect(State state, std::size_t bytes) {
  state_ = state;
  input_.resize(bytes);
  filled_ = 0;
}

void Handshake::put(std::span<const std::byte> bytes) {
  output_.insert(output_.end(), bytes.begin(), bytes.end());
}

Status Handshake::refuse(const std::string& why, bool is_final) {
  state_ = State::failed;
  refused_ = is_final;
  return Status(Code::failed, cat("the handshake failed: ", why));
}

Status Handshake::advance(int socket, Nanoseconds now) {
  RC_ASSERT(state_ != State::failed);
  while (!done()) {
    if (now >= deadline_) {
      return refuse(cat("no end after ", kHandshakeTimeout / kSecond, " s"), false);
    }
    RC_RETURN_IF_ERROR(write(socket));
    if (!output_.empty()) return {};
    if (state_ == State::send) prove(socket, now);
    if (state_ == State::path) {
      const Status status = path_.advance(socket, now);
      if (!status.ok()) return refuse(status.message(), false);
      if (!path_.done()) return {};
      state_ = State::done;
      return {};
    }
    RC_RETURN_IF_ERROR(read(socket));
    if (filled_ < input_.size()) return {};
    RC_RETURN_IF_ERROR(take_input(socket, now));
  }
  return {};
}

// Both sides have now proved their identity. The check of the path follows.
void Handshake::prove(int socket, Nanoseconds now) {
  state_ = State::path;
  path_.begin(socket, now);
}

Status Handshake::write(int socket) {
  std::size_t sent = 0;
  const Status status = send_available(socket, output_, sent);
  output_.erase(output_.begin(), output_.begin() + static_cast<std::ptrdiff_t>(sent));
  return status.ok() ? status : refuse(status.message(), false);
}

Status Handshake::read(int socket) {
  const std::size_t before = filled_;
  bool has_ended = false;
  const Status status = receive_available(socket, input_, filled_, has_ended);
  heard_ |= filled_ > before;
  if (!status.ok()) return refuse(status.message(), false);
  if (!has_ended) return {};
  return refuse(state_ == State::proof
                    ? "it closed the connection on our proof: another secret, or its process ended"
                    : "it closed the connection",
                false);
}

Status Handshake::take_input(int socket, Nanoseconds now) {
  const std::span<const std::byte> input(input_);
  if (state_ == State::proof) {
    if (!equal_in_constant_time(input, proof_of(true))) {
      return refuse(cat("rank ", peer_, " does not know the secret of this job"), true);
    }
    prove(socket, now);
    return {};
  }
  std::copy_n(input.begin(), kHelloBytes, peer_hello_.begin());
  bool is_ours = false;
  const std::string wrong = check_hello(peer_hello_, is_ours);
  if (!dialer_) {
    own_hello_ = make_hello();
    put(own_hello_);
    // A caller that does not fit learns the reason from our hello, but gets no proof.
    put(wrong.empty() ? proof_of(false) : Digest{});
    if (!wrong.empty()) {
      if (is_ours) RC_RETURN_IF_ERROR(write(socket));
      return refuse(wrong, false);
    }
    expect(State::proof, sizeof(Digest));
    return {};
  }
  if (!wrong.empty()) return refuse(wrong, false);
  if (!equal_in_constant_time(input.subspan(kHelloBytes), proof_of(false))) {
    return refuse(cat("rank ", peer_, " does not know the secret of this job"), true);
  }
  put(proof_of(true));
  state_ = State::send;
  return {};
}

}  // namespace rdmacoll
