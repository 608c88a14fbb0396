// Two or more hosts on a simulated fabric, each with one device and some registered memory.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "verbs_sim/fabric.h"

namespace rdmacoll::verbs_sim {

using rdma::Completion;
using rdma::CompletionKind;
using rdma::SendKind;

class TestClock final : public Clock {
 public:
  Nanoseconds now() const override { return now_; }
  void advance(Nanoseconds by) { now_ += by; }

 private:
  Nanoseconds now_ = kSecond;
};

struct HostOptions {
  AdapterModel adapter;
  rdma::QueuePairLimits limits{.sends = 8, .receives = 8, .send_pieces = 2, .inline_bytes = 64};
  uint32_t completions = 256;
  std::size_t memory_bytes = 4096;
};

// Members in the order of creation. They are destroyed in reverse order.
struct Host {
  std::vector<std::byte> memory;
  std::unique_ptr<rdma::Device> device;
  std::unique_ptr<rdma::Registration> registration;
  std::unique_ptr<rdma::QueuePair> queue_pair;

  rdma::MemoryKeys keys() const { return registration->keys(); }
  uint64_t address(std::size_t at) const { return reinterpret_cast<uint64_t>(memory.data() + at); }
  rdma::Sge piece(std::size_t at, uint32_t bytes) const {
    return {memory.data() + at, bytes, keys().local};
  }
  void fill(std::size_t at, std::size_t bytes, int value) {
    std::fill_n(memory.begin() + static_cast<std::ptrdiff_t>(at), bytes, std::byte(value));
  }
  bool is_filled(std::size_t at, std::size_t bytes, int value) const {
    for (std::size_t i = at; i < at + bytes; ++i) {
      if (memory[i] != std::byte(value)) return false;
    }
    return true;
  }

  bool post_receive(uint64_t id, std::size_t at, uint32_t bytes) {
    const rdma::ReceiveRequest request{.id = id, .piece = piece(at, bytes)};
    Status status;
    const std::size_t taken = queue_pair->post_receives({&request, 1}, status);
    EXPECT_TRUE(status.ok()) << status.message();
    return taken == 1;
  }
  bool post(rdma::SendRequest request, std::size_t at, uint32_t bytes) {
    const rdma::Sge from = piece(at, bytes);
    request.pieces = {&from, 1};
    Status status;
    const std::size_t taken = queue_pair->post_sends({&request, 1}, status);
    EXPECT_TRUE(status.ok()) << status.message();
    return taken == 1;
  }
  bool post_send(uint64_t id, std::size_t at, uint32_t bytes, bool is_signalled = true) {
    return post({.is_signalled = is_signalled, .id = id}, at, bytes);
  }
  bool post_write(uint64_t id, std::size_t at, uint32_t bytes, const Host& to, std::size_t to_at,
                  SendKind kind = SendKind::write) {
    return post({.kind = kind,
                 .is_signalled = true,
                 .immediate = static_cast<uint32_t>(id),
                 .remote_key = to.keys().remote,
                 .remote_address = to.address(to_at),
                 .id = id},
                at, bytes);
  }
  std::vector<Completion> poll() {
    std::vector<Completion> found(64);
    Status status;
    found.resize(device->poll(found, status));
    EXPECT_TRUE(status.ok()) << status.message();
    return found;
  }
};

inline Host make_host(SimVerbs& verbs, const HostOptions& options, int gid_index, int pkey_index) {
  Host host{.memory = std::vector<std::byte>(options.memory_bytes)};
  Status status = verbs.open({options.adapter.facts.name, options.completions}, host.device);
  EXPECT_TRUE(status.ok()) << status.message();
  status = host.device->register_memory(host.memory.data(), host.memory.size(), host.registration);
  EXPECT_TRUE(status.ok()) << status.message();
  status =
      host.device->create_queue_pair(options.limits, 1, gid_index, pkey_index, host.queue_pair);
  EXPECT_TRUE(status.ok()) << status.message();
  return host;
}

inline rdma::PathSettings path_of(const Host& host, int gid_index, int pkey_index) {
  return {.gid_index = gid_index,
          .pkey_index = pkey_index,
          .needs_grh = host.device->facts().ports[0].link == rdma::LinkLayer::ethernet,
          .mtu = host.device->facts().ports[0].active_mtu,
          .retries = 2,
          .rnr_retries = 3};
}

// Hosts 0 and 1, connected.
struct Pair {
  explicit Pair(const FabricPolicy& policy, const Clock* clock = nullptr)
      : Pair(policy, {soft_roce(0)}, {soft_roce(1)}, clock) {}
  Pair(const FabricPolicy& policy, HostOptions a, HostOptions b, const Clock* clock = nullptr)
      : fabric(policy, clock), options{std::move(a), std::move(b)} {
    for (const HostOptions& one : options) fabric.add_host({one.adapter});
    const bool is_infiniband =
        options[0].adapter.facts.ports[0].link == rdma::LinkLayer::infiniband;
    make(is_infiniband ? 0 : 1, is_infiniband ? 1 : 0);
    path = path_of(left(), gid_index, pkey_index);
  }
  void make(int gid, int pkey) {
    gid_index = gid;
    pkey_index = pkey;
    hosts.clear();
    for (int i = 0; i < 2; ++i) {
      hosts.push_back(make_host(fabric.verbs(i), options[static_cast<std::size_t>(i)], gid, pkey));
    }
  }
  Pair& connect() {
    const Status a = left().queue_pair->connect(right().queue_pair->local(), path);
    const Status b = right().queue_pair->connect(left().queue_pair->local(), path);
    EXPECT_TRUE(a.ok() && b.ok()) << a.message() << b.message();
    return *this;
  }
  Host& left() { return hosts[0]; }
  Host& right() { return hosts[1]; }
  // Steps until nothing is under way, then polls one side. Its polls may step as well.
  std::vector<Completion> finish(Host& host) {
    EXPECT_TRUE(fabric.run());
    return host.poll();
  }

  SimFabric fabric;
  std::vector<HostOptions> options;
  int gid_index = 0;
  int pkey_index = 0;
  rdma::PathSettings path;
  std::vector<Host> hosts;
};

inline std::vector<int> statuses(const std::vector<Completion>& completions) {
  std::vector<int> found;
  for (const Completion& completion : completions) found.push_back(completion.status);
  return found;
}
inline std::vector<uint64_t> ids(const std::vector<Completion>& completions) {
  std::vector<uint64_t> found;
  for (const Completion& completion : completions) found.push_back(completion.id);
  return found;
}
inline bool is_readable(int fd) {
  pollfd entry{.fd = fd, .events = POLLIN};
  return ::poll(&entry, 1, 0) == 1;
}

}  // namespace rdmacoll::verbs_sim
