// A fixture with two connected queue pairs on the devices that RDMACOLL_TEST_DEVICE names.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/text.h"
#include "transport/rdma/choose_device.h"
#include "transport/rdma/verbs.h"

namespace rdmacoll::rdma {

// Returns the names in RDMACOLL_TEST_DEVICE, such as "rxe1,rxe2". A single device is both ends.
inline std::array<std::string, 2> test_devices() {
  const char* set = std::getenv("RDMACOLL_TEST_DEVICE");
  const std::string names = set == nullptr ? "" : set;
  EXPECT_FALSE(names.empty()) << "set RDMACOLL_TEST_DEVICE to one or two devices";
  const std::size_t comma = names.find(',');
  const std::string first = names.substr(0, comma);
  if (comma == std::string::npos) return {first, first};
  return {first, names.substr(comma + 1, names.find(',', comma + 1) - comma - 1)};
}

inline Verbs& verbs() {
  Verbs* found = nullptr;
  const Status status = system_verbs(found);
  EXPECT_TRUE(status.ok()) << status.message();
  return *found;
}

inline Rail rail_of(const std::string& device) {
  std::vector<DeviceFacts> present;
  Status status = verbs().list(present);
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<Rail> rails;
  status = choose_rails(present, {.devices = device, .gid_index = {}}, rails);
  EXPECT_TRUE(status.ok()) << status.message();
  return rails.empty() ? Rail{} : rails[0];
}

constexpr std::size_t kMemoryBytes = 8192;
constexpr QueuePairLimits kLimits{
    .sends = 16, .receives = 64, .send_pieces = 2, .inline_bytes = 64};
constexpr auto kPatience = std::chrono::seconds(20);

using Completions = std::map<uint32_t, std::deque<Completion>>;  // by queue pair

// One end. Its members are destroyed from the last to the first: queue pair, registration, memory,
// device.
struct Side {
  std::shared_ptr<Device> device;
  std::shared_ptr<Completions> completions;
  Rail rail;
  std::vector<std::byte> memory = std::vector<std::byte>(kMemoryBytes);
  std::unique_ptr<Registration> registration;
  std::unique_ptr<QueuePair> pair;

  Sge piece(std::size_t offset, uint32_t bytes) const {
    return {memory.data() + offset, bytes, registration->keys().local};
  }
  uint64_t address(std::size_t offset) const {
    return reinterpret_cast<uint64_t>(memory.data() + offset);
  }
  void post_receive(uint64_t id, std::size_t offset, uint32_t bytes) {
    const ReceiveRequest request{id, bytes == 0 ? Sge{} : piece(offset, bytes)};
    Status status;
    EXPECT_EQ(pair->post_receives({&request, 1}, status), 1u) << status.message();
  }
  void post(const SendRequest& request) {
    Status status;
    EXPECT_EQ(pair->post_sends({&request, 1}, status), 1u) << status.message();
  }

  void take_in() {
    std::array<Completion, 8> taken;
    Status status;
    const std::size_t count = device->poll(taken, status);
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::size_t i = 0; i < count; ++i) {
      (*completions)[taken[i].queue_pair].push_back(taken[i]);
    }
  }
  // Waits for the next completion of this end's queue pair and returns it.
  Completion next() {
    std::deque<Completion>& own = (*completions)[pair->local().queue_pair];
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (own.empty() && std::chrono::steady_clock::now() < end) {
      take_in();
      if (own.empty()) ::usleep(200);  // the guest has one processor, and its kernel needs it
    }
    if (own.empty()) {
      ADD_FAILURE() << "no completion came";
      return {.status = -1};
    }
    const Completion first = own.front();
    own.pop_front();
    return first;
  }
  bool has_none() {
    take_in();
    return (*completions)[pair->local().queue_pair].empty();
  }
};

enum class On { one_device, two_devices };

class VerbsPair : public testing::TestWithParam<On> {
 protected:
  void SetUp() override {
    const auto names = test_devices();
    open(first_, names[0]);
    if (GetParam() == On::one_device) {
      second_.device = first_.device;
      second_.completions = first_.completions;
      second_.rail = first_.rail;
    } else {
      open(second_, names[1]);
    }
    if (HasFatalFailure()) return;
    prepare(first_);
    prepare(second_);
    if (HasFatalFailure()) return;
    connect({});
  }

  void connect(PathSettings path) {
    path.mtu = std::min(first_.pair->local().mtu, second_.pair->local().mtu);
    path.timeout = 18;
    for (auto [from, to] : {std::pair{&first_, &second_}, std::pair{&second_, &first_}}) {
      path.gid_index = from->rail.gid_index;
      path.pkey_index = from->rail.pkey_index;
      path.needs_grh = from->rail.link == LinkLayer::ethernet;
      const Status status = from->pair->connect(to->pair->local(), path);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }

  // Makes new queue pairs on the same devices and connects them with these settings.
  void connect_again(const PathSettings& path) {
    for (Side* side : {&first_, &second_}) make_pair(*side);
    connect(path);
  }

  void fill(Side& side) {
    for (std::byte& byte : side.memory) byte = static_cast<std::byte>(random_());
  }
  static bool same(const Side& a, std::size_t at_a, const Side& b, std::size_t at_b,
                   std::size_t bytes) {
    return std::memcmp(a.memory.data() + at_a, b.memory.data() + at_b, bytes) == 0;
  }

  SendRequest write(std::span<const Sge> pieces, std::size_t to, uint64_t id) const {
    return {.kind = SendKind::write,
            .is_signalled = true,
            .remote_key = second_.registration->keys().remote,
            .remote_address = second_.address(to),
            .id = id,
            .pieces = pieces};
  }

  Side first_;
  Side second_;

 private:
  static void open(Side& side, const std::string& name) {
    side.rail = rail_of(name);
    std::unique_ptr<Device> device;
    const Status status = verbs().open({.device = name, .completions = 256}, device);
    ASSERT_TRUE(status.ok()) << status.message();
    side.device = std::move(device);
    side.completions = std::make_shared<Completions>();
  }
  void prepare(Side& side) {
    fill(side);
    const Status status =
        side.device->register_memory(side.memory.data(), side.memory.size(), side.registration);
    ASSERT_TRUE(status.ok()) << status.message();
    make_pair(side);
  }
  static void make_pair(Side& side) {
    const Status status = side.device->create_queue_pair(
        kLimits, side.rail.port, side.rail.gid_index, side.rail.pkey_index, side.pair);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  const uint64_t seed_ = std::random_device{}();
  std::mt19937_64 random_{seed_};
  const testing::ScopedTrace trace_{__FILE__, __LINE__, cat("seed ", seed_)};
};

}  // namespace rdmacoll::rdma
