// Effects of the RDMA settings, on simulated devices and through whole fabrics.
#include <gmock/gmock.h>

#include "base/text.h"
#include "fabric_fixture.h"
#include "transport/rdma/eager_cut.h"
#include "verbs_sim/fabric.h"

namespace rdmacoll::fabric_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using verbs_sim::AdapterModel;
using verbs_sim::SimFabric;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

struct RdmaOptions : FabricOptions {
  rdma::Verbs* verbs = nullptr;
  rdma::MemoryLimit memory_limit;
};
using Configure = std::function<void(RdmaOptions&)>;

// Two ranks on two hosts with one device each. The ranks may use only RDMA.
struct RdmaCluster {
  SimFabric wire{verbs_sim::FabricPolicy{}};
  std::unique_ptr<Cluster> cluster;

  explicit RdmaCluster(const std::function<AdapterModel(int)>& adapter,
                       const Configure& configure = {}) {
    for (int host = 0; host < 2; ++host) wire.add_host({adapter(host)});
    cluster = std::make_unique<Cluster>(2, [&](FabricOptions& options) {
      options.config.transports = {"rdma"};
      RdmaOptions all{options, &wire.verbs(options.rank), {}};
      if (configure) configure(all);
      options = all;
      options.transports = transports_over(*all.verbs, all.memory_limit);
    });
  }
  ~RdmaCluster() { cluster.reset(); }  // before the wire

  [[nodiscard]] bool meets() {
    if (Status begun = cluster->begin(); !begun.ok()) {
      ADD_FAILURE() << begun.message();
      return false;
    }
    cluster->connect_all();
    return cluster->until([&] {
      while (wire.step()) {
      }
      return cluster->events[0].peers.size() == 1 && cluster->events[1].peers.size() == 1;
    });
  }
  const std::vector<std::string>& notes() const { return cluster->fabrics[0]->notes(); }
};

AdapterModel ethernet(int host) { return verbs_sim::ethernet(host); }
AdapterModel infiniband(int host) {
  AdapterModel model = verbs_sim::infiniband(host);
  model.facts.ports.front().pkeys = {0x0012, 0xffff, 0x8034};  // limited, full, full
  return model;
}
AdapterModel soft_roce(int host) { return verbs_sim::soft_roce(host); }

void set_all(RdmaOptions& options) {
  Config& config = options.config;
  config.rdma_pkey_index = 2;
  config.rdma_queue_depth = 333;
  config.rdma_timeout = 13;
  config.rdma_retries = 7;
  config.rdma_service_level = 5;
  config.rdma_mtu = 512;
  config.rdma_traffic_class = 106;
}

TEST(RdmaSettings, every_one_reaches_the_queue_pairs) {
  RdmaCluster set(infiniband, set_all);
  ASSERT_TRUE(set.meets());
  ASSERT_EQ(set.wire.connected().size(), 2U);
  for (const verbs_sim::Connected& pair : set.wire.connected()) {
    EXPECT_EQ(pair.limits.sends, 333U);
    EXPECT_EQ(pair.path.pkey_index, 2);
    EXPECT_EQ(pair.path.timeout, 13);
    EXPECT_EQ(pair.path.retries, 7);
    EXPECT_EQ(pair.path.service_level, 5);
    EXPECT_EQ(pair.path.mtu, 512U);
    EXPECT_EQ(pair.path.traffic_class, 106);
  }
  EXPECT_TRUE(set.notes().empty());
}

TEST(RdmaSettings, unset_ones_are_chosen) {
  RdmaCluster unset(infiniband);
  ASSERT_TRUE(unset.meets());
  ASSERT_EQ(unset.wire.connected().size(), 2U);
  for (const verbs_sim::Connected& pair : unset.wire.connected()) {
    EXPECT_EQ(pair.limits.sends, 128U);
    EXPECT_EQ(pair.path.pkey_index, 1);  // the first with full membership
    EXPECT_EQ(pair.path.timeout, 17);
    EXPECT_EQ(pair.path.retries, 6);
    EXPECT_EQ(pair.path.mtu, 4096U);
  }
}

TEST(RdmaSettings, eager_cut_is_found_by_both_ends_or_obeyed) {
  const auto cuts = [](RdmaCluster& found) {
    return std::pair(found.cluster->fabrics[0]->reach(1).eager_bytes,
                     found.cluster->fabrics[1]->reach(0).eager_bytes);
  };
  RdmaCluster unset(ethernet);
  ASSERT_TRUE(unset.meets());
  const auto [mine, theirs] = cuts(unset);
  EXPECT_EQ(mine, theirs);
  EXPECT_GE(mine, rdma::kEagerBytesMin);
  EXPECT_LE(mine, rdma::kEagerBytesMax);
  for (const uint64_t wanted : {0, 700, 4096, 100'000}) {
    RdmaCluster set(ethernet,
                    [&](RdmaOptions& options) { options.config.accumulation_bytes = wanted; });
    ASSERT_TRUE(set.meets());
    EXPECT_EQ(cuts(set), std::pair(wanted, wanted));
  }
}

// Both ranks are limited members of the partition. Limited members may not talk to each other.
TEST(RdmaSettings, a_partition_that_leads_nowhere_is_a_failure_of_the_peer) {
  RdmaCluster limited(infiniband, [](RdmaOptions& options) { options.config.rdma_pkey_index = 0; });
  ASSERT_TRUE(limited.cluster->begin().ok());
  limited.cluster->connect_all();
  ASSERT_TRUE(limited.cluster->until([&] {
    while (limited.wire.step()) {
    }
    return !limited.cluster->events[0].failures.empty();
  }));
  const auto& [peer, causes] = *limited.cluster->events[0].failures.begin();
  EXPECT_EQ(peer, 1);
  EXPECT_THAT(causes.front(), HasSubstr("mlx5_0"));
}

TEST(RdmaSettings, a_port_takes_no_larger_packets_than_it_has_active) {
  const auto small = [](int host) {
    AdapterModel model = ethernet(host);
    model.facts.ports.front().active_mtu = 1024;
    return model;
  };
  RdmaCluster large(small, [](RdmaOptions& options) { options.config.rdma_mtu = 4096; });
  ASSERT_TRUE(large.meets());
  EXPECT_EQ(large.wire.connected().front().path.mtu, 1024U);
}

TEST(RdmaSettings, soft_roce_does_not_retry_for_ever_and_says_so_once) {
  RdmaCluster soft(soft_roce, [](RdmaOptions& options) { options.config.rdma_retries = 7; });
  ASSERT_TRUE(soft.meets());
  for (const verbs_sim::Connected& pair : soft.wire.connected()) EXPECT_EQ(pair.path.retries, 6);
  ASSERT_EQ(soft.notes().size(), 1U);
  EXPECT_THAT(soft.notes().front(), AllOf(HasSubstr("RDMA_RETRY_CNT=7"), HasSubstr("taken as 6")));
  RdmaCluster fewer(soft_roce, [](RdmaOptions& options) { options.config.rdma_retries = 5; });
  ASSERT_TRUE(fewer.meets());
  EXPECT_EQ(fewer.wire.connected().front().path.retries, 5);
  EXPECT_TRUE(fewer.notes().empty());
}

// Returns the reason why ranks refuse RDMA although the settings demand it.
std::string refusal(const std::function<AdapterModel(int)>& adapter, const Configure& configure) {
  RdmaCluster refused(adapter, [&](RdmaOptions& options) {
    options.config.rdma_request = "TF_RDMA_ENABLED=true";
    configure(options);
  });
  const Status begun = refused.cluster->begin();
  EXPECT_EQ(begun.code(), Code::invalid) << begun.message();
  return begun.message();
}

TEST(RdmaSettings, what_the_device_has_not_is_named_with_what_it_has) {
  EXPECT_THAT(refusal(infiniband, [](auto& options) { options.config.rdma_port = 9; }),
              HasSubstr("RDMACOLL_DEVICE_PORT=9"));
  EXPECT_THAT(refusal(infiniband, [](auto& options) { options.config.rdma_pkey_index = 77; }),
              AllOf(HasSubstr("no PKEY 77"), HasSubstr("1 0xffff")));
  const auto shallow = [](int host) {
    AdapterModel model = ethernet(host);
    model.facts.queue_depth_max = 64;
    return model;
  };
  EXPECT_THAT(refusal(shallow, [](auto& options) { options.config.rdma_queue_depth = 65; }),
              AllOf(HasSubstr("RDMA_QUEUE_DEPTH=65"), HasSubstr("holds 64")));
}

TEST(RdmaSettings, more_rails_than_there_may_be_are_refused) {
  const auto with_five_ports = [](int host) {
    AdapterModel model = ethernet(host);
    for (int number = 2; number <= 5; ++number) {
      model.facts.ports.push_back(model.facts.ports.front());
      model.facts.ports.back().number = number;
    }
    return model;
  };
  const auto name_all = [](RdmaOptions& options) {
    std::vector<rdma::DeviceFacts> devices;
    ASSERT_TRUE(options.verbs->list(devices).ok());
    for (int number = 1; number <= 5; ++number) {
      options.config.rdma_device += cat(number > 1 ? "," : "", devices.front().name, ":", number);
    }
  };
  EXPECT_THAT(refusal(with_five_ports, name_all),
              AllOf(HasSubstr("names 5 ports"), HasSubstr("4 carry")));
}

// Pinned memory: a pool takes a quarter more than its size.

TEST(RdmaSettings, a_pool_that_nobody_asked_for_shrinks_to_what_all_may_pin) {
  RdmaCluster limited(ethernet, [](RdmaOptions& options) {
    if (options.rank == 1) options.memory_limit.allowed = 50 * kMiB;
  });
  ASSERT_TRUE(limited.meets());
  for (const auto& pool : limited.cluster->pools) EXPECT_EQ(pool->size(), 40 * kMiB);
  ASSERT_EQ(limited.notes().size(), 1U);
  EXPECT_THAT(limited.notes().front(),
              AllOf(HasSubstr("40 MiB instead of 1 GiB"), HasSubstr("rank 1"),
                    HasSubstr("RLIMIT_MEMLOCK"), HasSubstr("ulimit -l unlimited")));
}

TEST(RdmaSettings, what_is_pinned_already_counts) {
  RdmaCluster limited(ethernet, [](RdmaOptions& options) {
    options.memory_limit = {.allowed = 60 * kMiB, .pinned = 10 * kMiB};
  });
  ASSERT_TRUE(limited.meets());
  EXPECT_EQ(limited.cluster->pools.front()->size(), 40 * kMiB);
}

TEST(RdmaSettings, a_pool_that_was_asked_for_and_cannot_be_pinned_is_refused) {
  EXPECT_THAT(refusal(ethernet,
                      [](RdmaOptions& options) {
                        options.config.pool_bytes = 64 * kMiB;
                        options.config.pool_is_given = true;
                        options.memory_limit.allowed = 50 * kMiB;
                      }),
              AllOf(HasSubstr("64 MiB needs 80 MiB"), HasSubstr("is 50 MiB"),
                    HasSubstr("ulimit -l"), HasSubstr("lower TF_RDMA_BUF_SIZE to 40 MiB")));
}

TEST(RdmaSettings, a_limit_below_the_smallest_pool_is_refused) {
  EXPECT_THAT(
      refusal(ethernet, [](RdmaOptions& options) { options.memory_limit.allowed = 8 * kMiB; }),
      AllOf(HasSubstr("16 MiB, the smallest, needs 20 MiB"), HasSubstr("is 8 MiB"),
            HasSubstr("ulimit -l")));
}

TEST(RdmaSettings, accumulation_that_the_pool_cannot_hold_is_refused_with_both_values) {
  const auto with = [](uint64_t accumulation) {
    return [=](RdmaOptions& options) {
      options.config.accumulation_bytes = accumulation;
      options.config.pool_bytes = 64 * kMiB;
      options.config.pool_is_given = true;
    };
  };
  const std::string said = refusal(ethernet, with(kMiB));
  EXPECT_THAT(said, AllOf(HasSubstr("TF_RDMA_ACC_SIZE=1048576"), HasSubstr("64 MiB")));
  // Both cures in the message work.
  const std::string lower = "Lower TF_RDMA_ACC_SIZE to ";
  const uint64_t fits = std::stoull(said.substr(said.find(lower) + lower.size()));
  RdmaCluster lowered(ethernet, with(fits));
  EXPECT_TRUE(lowered.meets());
  const std::string raise = "raise TF_RDMA_BUF_SIZE to ";
  const uint64_t enough = std::stoull(said.substr(said.find(raise) + raise.size()));
  RdmaCluster raised(ethernet, [&](RdmaOptions& options) {
    with(kMiB)(options);
    options.config.pool_bytes = enough;
  });
  EXPECT_TRUE(raised.cluster->begin().ok());
  EXPECT_LE(enough, kGiB);
}

}  // namespace
}  // namespace rdmacoll::fabric_test
