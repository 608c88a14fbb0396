#include "transport/shm/shm_peer.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/system_error.h"
#include "base/text.h"
#include "transport/closing.h"

namespace rdmacoll::shm {
namespace {

// The channel of a pair: the indexes of both rings, then the rings. Ring 0 carries the dialer's
// records.
constexpr std::size_t kIndexBytes = 4096;
constexpr std::size_t kSecondIndexes = kIndexBytes / 2;
constexpr std::size_t kChannelBytes = kRingsBegin + 2 * kRingBytes;
static_assert(sizeof(RingIndexes) <= kSecondIndexes && kSecondIndexes % alignof(RingIndexes) == 0);

constexpr int passed_by(bool dialer) { return dialer ? kPassedMax : kPassedMax - 1; }

// The kernel's pid of the process that made the socket. It differs from the peer's own pid if the
// peer lives in another pid namespace.
int64_t pid_of_socket(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) return 0;
  return credentials.pid;
}

}  // namespace

ShmPeer::ShmPeer(const RankState& rank_state, int rank, Fd socket, bool dialer)
    : rank_state_(rank_state),
      rank_(rank),
      dialer_(dialer),
      socket_(std::move(socket)),
      remote_(rank),
      outbound_(rank_state.pool, rank_state.world.epoch,
                eager_bytes_of_peer(rank_state.world.size()), rank_state.counters),
      inbound_(remote_, outbound_, consumer_, eager_bytes_of_peer(rank_state.world.size()),
               rank_state.counters),
      liveness_(rank_state.peer_timeout, rank_state.clock.now()) {
  epoll_event event{.events = EPOLLIN | EPOLLRDHUP, .data = {.u32 = static_cast<uint32_t>(rank)}};
  prepared_ = watch(rank_state_.epoll, socket_.get(), event);
  if (prepared_.ok()) prepared_ = greet(dialer);
}

// meet() reports a failure: the peer then gets no descriptor and no message.
Status ShmPeer::greet(bool dialer) {
  if (dialer) RC_RETURN_IF_ERROR(create_shared("rdmacoll channel", kChannelBytes, channel_));
  const Hello hello{.epoch = rank_state_.world.epoch,
                    .rank = rank_state_.world.rank,
                    .pid = ::getpid(),
                    .pool_base = reinterpret_cast<uint64_t>(rank_state_.pool.base()),
                    .pool_bytes = rank_state_.pool.size(),
                    .probe_address = reinterpret_cast<uint64_t>(&rank_state_.probe),
                    .probe_value = rank_state_.probe};
  const std::array<int, kPassedMax> descriptors = {rank_state_.doorbell.event(),
                                                   rank_state_.doorbell.page(),
                                                   rank_state_.pool.fd(), channel_.get()};
  const std::vector<std::byte> bytes = encode(hello);
  message_.prepare(bytes, std::span(descriptors).first(passed_by(dialer)));
  message_.expect(bytes.size(), passed_by(!dialer));
  return {};
}

Status ShmPeer::meet(Sink& sink) {
  RC_RETURN_IF_ERROR(prepared_);
  while (!connected()) {
    const Status sent = message_.send(socket_.get());
    if (!sent.ok() && !sent.is_busy()) return sent;
    written_ = sent.ok();
    const Status received = message_.receive(socket_.get());
    if (received.is_busy()) return {};
    RC_RETURN_IF_ERROR(received);
    if (!written_) return {};

    if (state_ == State::greeting) {
      RC_RETURN_IF_ERROR(accept_hello());
      state_ = State::judging;
      continue;
    }
    Verdict verdict{};
    RC_RETURN_IF_ERROR(decode(message_.received(), verdict));
    if (can_read_ && verdict == Verdict::can_read) remote_.allow_one_copy();
    Bell bell;
    RC_RETURN_IF_ERROR(
        bell.open(message_.take(Passed::bell_event), message_.take(Passed::bell_page)));
    auto* indexes = indexes_.data() + (dialer_ ? 0 : kSecondIndexes);
    RC_RETURN_IF_ERROR(
        outbound_.open(RingProducer(reinterpret_cast<RingIndexes*>(indexes),
                                    rings_[dialer_ ? 0 : 1].data(), rank_state_.probe),
                       std::move(bell), remote_.one_copy()));
    state_ = State::connected;
    ++rank_state_.counters.handshakes;
    ++rank_state_.counters.connections;
    sink.connected(rank_);
  }
  return {};
}

Status ShmPeer::accept_hello() {
  Hello hello;
  RC_RETURN_IF_ERROR(decode(message_.received(), hello));
  if (hello.rank != rank_ || hello.epoch != rank_state_.world.epoch) {
    return Status(Code::failed,
                  cat("it says that it is rank ", hello.rank, " of epoch ", hello.epoch,
                      ", not rank ", rank_, " of epoch ", rank_state_.world.epoch));
  }
  RC_RETURN_IF_ERROR(
      remote_.map_pool(message_.take(Passed::pool), hello.pool_base, hello.pool_bytes));
  RC_RETURN_IF_ERROR(open_channel(hello.probe_value));
  RC_RETURN_IF_ERROR(judge(hello));
  const auto verdict = encode(can_read_ ? Verdict::can_read : Verdict::cannot_read);
  message_.prepare(verdict, {});
  message_.expect(verdict.size(), 0);
  return {};
}

Status ShmPeer::open_channel(uint64_t their_mark) {
  if (!dialer_) channel_ = message_.take(Passed::channel);
  RC_RETURN_IF_ERROR(check_shared(channel_.get(), kChannelBytes));
  RC_RETURN_IF_ERROR(map_shared(channel_.get(), kIndexBytes, indexes_));
  for (std::size_t i = 0; i < 2; ++i) {
    RC_RETURN_IF_ERROR(
        map_ring(channel_.get(), kRingsBegin + i * kRingBytes, kRingBytes, rings_[i]));
  }
  channel_.reset();
  auto* indexes = indexes_.data() + (dialer_ ? kSecondIndexes : 0);
  consumer_ = RingConsumer(reinterpret_cast<RingIndexes*>(indexes), rings_[dialer_ ? 1 : 0].data(),
                           their_mark);
  return {};
}

Status ShmPeer::judge(const Hello& hello) {
  if (rank_state_.one_copy == false) return {};
  const std::array<int64_t, 2> pids = {hello.pid, pid_of_socket(socket_.get())};
  can_read_ = remote_.probe(pids, hello.probe_address, hello.probe_value);
  if (can_read_ || rank_state_.one_copy != true) return {};
  return Status(Code::failed,
                "RDMACOLL_ONE_COPY demands that its memory is read by process_vm_readv, and the "
                "kernel does not permit that (kernel.yama.ptrace_scope, seccomp, or another user)");
}

void ShmPeer::check_socket(Sink& sink) {
  if (state_ == State::failed) return;
  if (!connected()) {
    if (Status met = meet(sink); !met.ok()) fail(sink, met);
    return;
  }
  std::byte byte{};
  const ssize_t got = ::recv(socket_.get(), &byte, sizeof byte, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  const bool has_ended = got == 0 || (got > 0 && byte == kEnded);
  const std::string cause = got > 0 && !has_ended ? "it sent nonsense on its socket"
                                                  : closing_cause(has_ended ? 0 : errno);
  // Records that the peer wrote before its end are still in the ring.
  if (Status last = drain(sink); !last.ok()) return fail(sink, last);
  fail(sink, cause);
}

std::string ShmPeer::end(bool on_gpu) const {
  if (state_ == State::failed) return cause_;
  if (!on_gpu) return consumer_.has_ended() ? closing_cause(0) : "";
  std::byte byte{};
  const ssize_t got = ::recv(socket_.get(), &byte, sizeof byte, MSG_DONTWAIT | MSG_PEEK);
  if (got > 0 && byte != kEnded) return "";  // check_socket() reports it
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return "";
  return closing_cause(got < 0 ? errno : 0);
}

void ShmPeer::keep_alive(Nanoseconds now, Sink& sink) {
  if (state_ == State::failed) return;
  liveness_.polled(now);
  if (heard_) liveness_.received(now);
  heard_ = false;
  if (liveness_.is_silent(now)) return fail(sink, liveness_.cause());
  if (!liveness_.is_heartbeat_due(now)) return;
  if (connected()) outbound_.heartbeat();
  liveness_.sent(now);
}

bool ShmPeer::work(Sink& sink) {
  bool moved = false;
  if (inbound_.has_work()) {
    if (Status delivered = inbound_.deliver_ready(sink); !delivered.ok()) {
      fail(sink, delivered);
      return true;
    }
    moved = true;
  }
  if (!consumer_.empty()) {
    if (Status drained = drain(sink); !drained.ok()) {
      fail(sink, drained);
      return true;
    }
    moved = true;
  }
  if (outbound_.has_work()) moved |= outbound_.flush(sink);
  if (outbound_.broken()) {
    fail(sink, "its ring holds nonsense");
    return true;
  }
  outbound_.recheck_sleep();
  return moved;
}

Status ShmPeer::drain(Sink& sink) {
  // The peer may write more records meanwhile, so one call reads at most a ring of them.
  const uint64_t begin = consumer_.taken();
  RecordHeader header;
  const std::byte* payload = nullptr;
  RingConsumer::Take took{};
  bool any = false;
  while (consumer_.taken() - begin < kRingBytes &&
         (took = consumer_.take(header, payload)) == RingConsumer::Take::record) {
    // The lists of a peer that has ended may be gone. Its last messages tell why it has ended.
    if (const Status handled = handle(header, payload, sink); !handled.ok()) {
      if (!consumer_.has_ended()) return handled;
    }
    consumer_.pop(header);
    any = true;
  }
  if (took == RingConsumer::Take::nonsense) {
    return Status(Code::failed, cat("it sent a record of ", header.bytes, " bytes"));
  }
  heard_ = heard_ || any;
  if (any && consumer_.show_space()) outbound_.ring_bell();
  return {};
}

Status ShmPeer::handle(const RecordHeader& header, const std::byte* payload, Sink& sink) {
  if (header.epoch != rank_state_.world.epoch) {
    return Status(Code::failed, cat("it sent a record of epoch ", header.epoch, " instead of ",
                                    rank_state_.world.epoch));
  }
  const Key key{header.traffic, header.lane, header.sequence};
  switch (header.kind) {
    case RecordKind::control:
      return inbound_.control(header, payload, rank_, sink);
    case RecordKind::publish:
      return inbound_.published(header, payload, sink);
    case RecordKind::release:
      return outbound_.released(key, sink);
    case RecordKind::grant:
      return outbound_.granted(key);
    case RecordKind::heartbeat:
      return {};
    case RecordKind::data:
      return inbound_.data(header, payload, sink);
    case RecordKind::offer:
      return inbound_.offered(header);
    case RecordKind::gpu_offer:
      return offered(header, payload, sink);
    case RecordKind::gpu_answer:
      return answered(header, payload, sink);
  }
  return Status(Code::failed, cat("it sent a record of kind ", static_cast<int>(header.kind)));
}

bool ShmPeer::arm() {
  if (!connected()) return state_ == State::failed || written_;
  if (inbound_.has_work() || !consumer_.empty_for_sleep()) return false;
  return outbound_.arm();
}

void ShmPeer::close() {
  if (state_ == State::failed) return;
  state_ = State::failed;
  remote_.forget();
  outbound_.close();
  inbound_.close();
  ::epoll_ctl(rank_state_.epoll, EPOLL_CTL_DEL, socket_.get(), nullptr);
  end_socket();
  channel_.reset();
}

void ShmPeer::fail(Sink& sink, const std::string& cause) {
  if (state_ == State::failed) return;
  close();
  cause_ = cause;
  sink.peer_failed(rank_, cause);
}

void ShmPeer::fail(Sink& sink, const Status& status) {
  const std::string& cause = status.detail().cause;
  if (!cause.empty()) return fail(sink, cause);
  // A limit of this process. The other ranks hear the message as well.
  const bool is_own = status.code() == Code::invalid;
  const std::string who =
      is_own ? cat(rank_state_.world.describe(rank_state_.world.rank), ": ") : "";
  fail(sink, cat(who, status.message()));
}

}  // namespace rdmacoll::shm
