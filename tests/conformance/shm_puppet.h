// A peer over shared memory that the test plays itself, byte by byte.
#pragma once

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/harness.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/greeting.h"
#include "transport/shm/ring.h"
#include "transport/shm/shm_transport.h"

namespace rdmacoll::conformance {

using shm::Hello;
using shm::PieceRecord;
using shm::RecordHeader;
using shm::RecordKind;
using shm::Traffic;

struct ManualClock final : Clock {
  Nanoseconds time = kSecond;
  // Runs once when the transport reads the clock. The transport then has polled the rings, but not
  // the sockets.
  mutable std::function<void()> meanwhile;
  Nanoseconds now() const override {
    if (meanwhile) std::exchange(meanwhile, nullptr)();
    return time;
  }
};

// Rank 0 is a real transport, which dials. The test plays rank 1.
class Puppet {
 public:
  explicit Puppet(ShmOptions options = {}) {
    pool = make_pool();
    transport = std::make_unique<ShmTransport>(world_of(2, 0), *pool, clock, options);
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    transport->adopt(1, Fd(fds[0]), true);
    socket = Fd(fds[1]);
    EXPECT_TRUE(doorbell.open().ok());
    my_pool = make_pool();
    hello = {.epoch = 3,
             .rank = 1,
             .pid = ::getpid(),
             .pool_base = reinterpret_cast<uint64_t>(my_pool->base()),
             .pool_bytes = my_pool->size(),
             .probe_address = reinterpret_cast<uint64_t>(&probe),
             .probe_value = probe};
    descriptors = {doorbell.event(), doorbell.page(), my_pool->fd()};
  }

  void poll(int times = 200) {
    for (int i = 0; i < times; ++i) {
      clock.time += 100 * kMicrosecond;
      transport->poll(sink);
    }
  }
  void greet() {
    shm::SocketMessage message;
    const auto bytes = shm::encode(hello);
    message.prepare(bytes, descriptors);
    message.expect(bytes.size(), shm::kPassedMax);
    EXPECT_TRUE(message.send(socket.get()).ok());
    poll();
    if (!message.receive(socket.get()).ok()) return;
    const Fd channel = message.take(shm::Passed::channel);
    // As ShmPeer lays it out: indexes, ring of the dialer, ring of the acceptor.
    EXPECT_TRUE(map_shared(channel.get(), 4096, indexes_).ok());
    EXPECT_TRUE(
        map_ring(channel.get(), shm::kRingsBegin + shm::kRingBytes, shm::kRingBytes, ring_).ok());
    my_indexes = reinterpret_cast<shm::RingIndexes*>(indexes_.data() + 2048);
    ring = shm::RingProducer(my_indexes, ring_.data(), hello.probe_value);
  }
  void judge(shm::Verdict verdict) {
    shm::SocketMessage message;
    const auto bytes = shm::encode(verdict);
    message.prepare(bytes, {});
    EXPECT_TRUE(message.send(socket.get()).ok());
    poll();
  }
  void connect(shm::Verdict verdict = shm::Verdict::can_read) {
    greet();
    judge(verdict);
    EXPECT_TRUE(transport->is_connected(1));
  }

  void write(RecordHeader header, std::span<const std::byte> payload = {}) {
    std::byte* place = ring.reserve(payload.size());
    ASSERT_NE(place, nullptr);
    if (!payload.empty()) std::memcpy(place, payload.data(), payload.size());
    ring.commit(header);
    poll();
  }
  void write_pieces(RecordHeader header, const std::vector<PieceRecord>& pieces) {
    header.bytes = static_cast<uint32_t>(pieces.size() * sizeof(PieceRecord));
    write(header, std::as_bytes(std::span(pieces)));
  }
  void write_data(std::size_t bytes) {
    RecordHeader header = record(RecordKind::data);
    header.bytes = static_cast<uint32_t>(bytes);
    write(header, std::vector<std::byte>(bytes));
  }
  static RecordHeader record(RecordKind kind, uint64_t sequence = 0) {
    RecordHeader header;
    header.kind = kind;
    header.epoch = 3;
    header.sequence = sequence;
    return header;
  }

  void expect_failed(const std::string& cause) {
    poll();
    ASSERT_EQ(sink.failures[1].size(), 1u) << "expected: " << cause;
    EXPECT_THAT(sink.failures[1][0], ::testing::HasSubstr(cause));
    EXPECT_FALSE(transport->is_connected(1));
  }

  const shm::RingIndexes* their_indexes() const {
    return reinterpret_cast<const shm::RingIndexes*>(indexes_.data());
  }

  ManualClock clock;
  std::unique_ptr<MemoryPool> pool;
  std::unique_ptr<ShmTransport> transport;
  Recorder sink;
  Fd socket;
  shm::Doorbell doorbell;
  std::unique_ptr<MemoryPool> my_pool;
  uint64_t probe = 0x1234567890abcdef;
  Hello hello;
  std::vector<int> descriptors;
  shm::RingProducer ring;
  shm::RingIndexes* my_indexes = nullptr;

 private:
  Mapping indexes_;
  Mapping ring_;
};

}  // namespace rdmacoll::conformance
