// The ability to use RDMA, of each rank and of all ranks together.
#include <gmock/gmock.h>

#include "base/text.h"
#include "bootstrap/transport_choice.h"
#include "transport/rdma/ability.h"
#include "unit/fabric_fixture.h"
#include "verbs_sim/fabric.h"

namespace rdmacoll {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using verbs_sim::SimFabric;
using verbs_sim::SimVerbs;

class FindRdma : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(MemoryPool::create(16 << 20, pool_).ok()); }

  rdma::Ability find(SimVerbs& verbs) { return rdma::find_ability(config_, *pool_, &verbs, {}); }

  SimFabric fabric_{{.seed = 71}};
  std::unique_ptr<MemoryPool> pool_;
  Config config_;
};

TEST_F(FindRdma, device_that_works_is_no_obstacle) {
  const rdma::Ability ability = find(fabric_.add_host({verbs_sim::soft_roce(0)}));
  EXPECT_EQ(ability.card.obstacle, "");
  EXPECT_TRUE(ability.card.has_devices);
  ASSERT_EQ(ability.rails.size(), 1u);
  EXPECT_EQ(ability.rails[0].device, "rxe0");
  EXPECT_EQ(fabric_.counters().registrations, 1u) << "tried";
  EXPECT_EQ(fabric_.counters().deregistrations, 1u) << "and given back";
}

TEST_F(FindRdma, callers_memory_is_registered_where_nothing_limits_it_alone) {
  SimVerbs& verbs = fabric_.add_host({verbs_sim::soft_roce(0)});
  EXPECT_TRUE(find(verbs).pins_callers_memory);
  const rdma::MemoryLimit limit{.allowed = uint64_t{1} << 40};
  EXPECT_FALSE(rdma::find_ability(config_, *pool_, &verbs, limit).pins_callers_memory);
  verbs.shares_with_forks();
  EXPECT_FALSE(find(verbs).pins_callers_memory);
}

TEST_F(FindRdma, missing_library_is_the_obstacle_in_its_own_words) {
  SimVerbs& verbs = fabric_.add_host({verbs_sim::soft_roce(0)});
  verbs.refuse_with({Code::failed, "libibverbs.so.1 is missing: apt install libibverbs1"});
  const rdma::Ability ability = find(verbs);
  EXPECT_EQ(ability.card.obstacle, "libibverbs.so.1 is missing: apt install libibverbs1");
  EXPECT_FALSE(ability.card.has_devices);
}

TEST_F(FindRdma, no_device_is_an_obstacle) {
  const rdma::Ability ability = find(fabric_.add_host({}));
  EXPECT_NE(ability.card.obstacle, "");
  EXPECT_FALSE(ability.card.has_devices);
}

TEST_F(FindRdma, missing_device_that_was_asked_for_is_named_beside_those_there_are) {
  config_.rdma_device = "mlx5_7";
  config_.rdma_request = "TF_RDMA_DEV_NAME=mlx5_7";
  const rdma::Ability ability = find(fabric_.add_host({verbs_sim::ethernet(0)}));
  EXPECT_THAT(ability.card.obstacle, AllOf(HasSubstr("mlx5_7"), HasSubstr("mlx5_0")));
  EXPECT_TRUE(ability.card.has_devices);
  EXPECT_EQ(ability.card.request, "TF_RDMA_DEV_NAME=mlx5_7");
}

TEST_F(FindRdma, device_with_its_port_down_is_an_obstacle) {
  SimVerbs& verbs = fabric_.add_host({verbs_sim::ethernet(0)});
  fabric_.lower_port(0, "mlx5_0", 1);
  EXPECT_THAT(find(verbs).card.obstacle, AllOf(HasSubstr("mlx5_0"), HasSubstr("down")));
}

TEST_F(FindRdma, memory_that_may_not_be_locked_is_an_obstacle) {
  verbs_sim::AdapterModel limited = verbs_sim::soft_roce(0);
  limited.lockable_bytes = 4096;
  EXPECT_THAT(find(fabric_.add_host({limited})).card.obstacle, HasSubstr("registering"));
}

TEST_F(FindRdma, what_is_turned_off_is_not_even_looked_at) {
  SimVerbs& verbs = fabric_.add_host({verbs_sim::soft_roce(0)});
  config_.rdma_enabled = false;
  EXPECT_THAT(find(verbs).card.obstacle, HasSubstr("turned off"));
  EXPECT_TRUE(find(verbs).card.is_off);
  config_.rdma_enabled = true;
  config_.transports = {"shm", "tcp"};
  TransportChoice choice(fabric_test::transports_over(verbs), config_);
  const TransportCard off = choice.probe(*pool_, true)["rdma"];
  EXPECT_THAT(off.obstacle, HasSubstr("RDMACOLL_TRANSPORT"));
  EXPECT_TRUE(off.is_off);
  EXPECT_EQ(fabric_.counters().registrations, 0u);
  config_.transports = {"shm", "rdma"};
  EXPECT_EQ(choice.probe(*pool_, true)["rdma"].obstacle, "");
}

// ---- all together ----

TransportCard able() { return {.has_devices = true, .pool_bytes = 64 << 20}; }
TransportCard unable(std::string obstacle, bool has_devices) {
  return {.obstacle = std::move(obstacle), .has_devices = has_devices};
}
TransportCard asking(TransportCard card) {
  card.request = "TF_RDMA_DEV_NAME=mlx5_0";
  return card;
}

Status agree(const std::vector<TransportCard>& each, TransportAgreement& agreement) {
  std::vector<Candidate> ranks;
  for (const TransportCard& card : each) ranks.push_back({.card = card});
  const TransportRow row{"rdma", "RDMA", {}};
  return agree_on_transport(
      row, RdmaProvider(), "TCP", ranks, {},
      [](int rank) { return cat("rank ", rank, " on h", rank); }, agreement);
}

TEST(AgreeOnRdma, when_all_are_able) {
  TransportAgreement agreement;
  EXPECT_TRUE(agree({able(), asking(able()), able()}, agreement).ok());
  EXPECT_TRUE(agreement.use);
  EXPECT_EQ(agreement.warning, "");
}

TEST(AgreeOnRdma, names_the_limit_that_has_made_the_pool_smaller) {
  const auto note_of = [](uint64_t made, uint64_t pinned) {
    std::vector<Candidate> ranks(2);
    for (Candidate& rank : ranks) rank.pool_bytes = rank.card.pool_bytes = 1 << 30;
    ranks[1].pool_bytes = made << 20;
    ranks[1].card.pool_bytes = pinned << 20;
    Config config;
    config.pool_bytes = 1 << 30;
    TransportAgreement agreement;
    const auto describe = [](int rank) { return cat("rank ", rank); };
    EXPECT_TRUE(RdmaProvider().agree(ranks, config, describe, agreement).ok());
    return agreement.notes.empty() ? std::string() : agreement.notes.front();
  };
  EXPECT_THAT(note_of(1024, 64), AllOf(HasSubstr("64 MiB instead of 1 GiB, since rank 1 may pin"),
                                       HasSubstr("RLIMIT_MEMLOCK")));
  EXPECT_THAT(note_of(64, 64), AllOf(HasSubstr("64 MiB instead of 1 GiB, since rank 1 has no"),
                                     HasSubstr("address space"), Not(HasSubstr("MEMLOCK"))));
}

TEST(AgreeOnRdma, one_that_is_unable_decides_for_all_and_is_named) {
  TransportAgreement agreement;
  EXPECT_TRUE(agree({able(), able(), unable("its port is down.", true)}, agreement).ok());
  EXPECT_FALSE(agreement.use);
  EXPECT_EQ(agreement.warning,
            "no RDMA, but TCP: rank 2 on h2 cannot use it: its port is down. TF_RDMA_ENABLED=false "
            "says that TCP is meant.");
}

TEST(AgreeOnRdma, what_one_asked_for_and_another_cannot_is_an_error) {
  TransportAgreement agreement;
  const Status status = agree({asking(able()), unable("no library.", false)}, agreement);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("RDMA was requested (TF_RDMA_DEV_NAME=mlx5_0 at rank 0 on h0)"),
                    HasSubstr("To go without it, unset that setting."),
                    HasSubstr("rank 1 on h1 cannot use it: no library.")));
  EXPECT_FALSE(agreement.use);
}

TEST(AgreeOnRdma, where_nobody_has_a_device_nothing_is_said) {
  TransportAgreement agreement;
  EXPECT_TRUE(agree({unable("no library.", false), unable("no device.", false)}, agreement).ok());
  EXPECT_FALSE(agreement.use);
  EXPECT_EQ(agreement.warning, "");
}

TEST(AgreeOnRdma, who_turned_it_off_is_not_warned) {
  SimFabric fabric({});
  std::unique_ptr<MemoryPool> pool;
  ASSERT_TRUE(MemoryPool::create(16 << 20, pool).ok());
  Config config;
  config.rdma_enabled = false;
  const rdma::Ability off = rdma::find_ability(config, *pool, &fabric.add_host({}), {});
  TransportAgreement agreement;
  EXPECT_TRUE(agree({able(), off.card}, agreement).ok());
  EXPECT_FALSE(agreement.use);
  EXPECT_EQ(agreement.warning, "");
}

// ---- fabrics of one process over simulated devices ----

TEST(FabricOverRdma, ranks_talk_and_a_large_transfer_arrives) {
  SimFabric fabric({.seed = 72});
  {
    fabric_test::Cluster cluster(2, [&](FabricOptions& options) {
      options.config.transports = {"rdma"};
      options.transports =
          fabric_test::transports_over(fabric.add_host({verbs_sim::soft_roce(options.rank)}));
    });
    ASSERT_TRUE(cluster.begin().ok());
    cluster.connect_all();
    const auto until = [&](const std::function<bool()>& done) {
      return cluster.until([&] {
        for (int i = 0; i < 100 && fabric.step(); ++i) {
        }
        return done();
      });
    };
    ASSERT_TRUE(until([&] {
      return cluster.events[0].peers.contains(1) && cluster.events[1].peers.contains(0);
    }));
    std::vector<std::byte> source(500'000, std::byte{5}), target(500'000);
    const Piece from{source.data(), source.size()}, to{target.data(), target.size()};
    EXPECT_EQ(cluster.fabrics[0]->reach(1).transport, "rdma");
    ASSERT_TRUE(cluster.fabrics[0]->post_send({1, 0, 1, std::span(&from, 1), 1}).ok());
    ASSERT_TRUE(cluster.fabrics[1]->post_recv({0, 0, 1, std::span(&to, 1), 2}).ok());
    EXPECT_TRUE(until([&] { return cluster.events[1].received_cookies.contains(2); }));
    EXPECT_EQ(source, target);
    EXPECT_EQ(fabric.counters().changed_under_way, 0u);
  }
}

TEST(FabricOverRdma, rank_without_a_device_is_an_error_where_rdma_was_asked_for) {
  SimFabric fabric({.seed = 73});
  fabric_test::Cluster cluster(2, [&](FabricOptions& options) {
    options.config.transports = {"rdma"};
    options.config.rdma_request = "TF_RDMA_ENABLED=true";
    options.transports = fabric_test::transports_over(
        options.rank == 0 ? fabric.add_host({verbs_sim::soft_roce(0)}) : fabric.add_host({}));
  });
  const Status status = cluster.begin();
  EXPECT_THAT(status.message(), AllOf(HasSubstr("RDMA was requested"), HasSubstr("rank 1")));
}

TEST(FabricOverRdma, a_world_of_one_that_asks_for_rdma_needs_it_as_any_other) {
  std::vector<std::string> sentences;
  for (const int size : {1, 2}) {
    SimFabric fabric{verbs_sim::FabricPolicy{}};
    fabric_test::Cluster cluster(size, [&](FabricOptions& options) {
      options.transports = fabric_test::transports_over(fabric.add_host({}));
      options.config.rdma_request = "TF_RDMA_ENABLED=true";
    });
    const Status status = cluster.begin();
    EXPECT_EQ(status.code(), Code::invalid);
    sentences.push_back(status.message());
  }
  EXPECT_THAT(sentences[0], AllOf(HasSubstr("RDMA was requested"), HasSubstr("rank 0 (")));
  EXPECT_EQ(sentences[0], sentences[1]);
}

TEST(FabricOverRdma, a_world_of_one_that_has_what_it_asks_for_starts) {
  SimFabric fabric{verbs_sim::FabricPolicy{}};
  fabric_test::Cluster cluster(1, [&](FabricOptions& options) {
    options.transports = fabric_test::transports_over(fabric.add_host({verbs_sim::soft_roce(0)}));
    options.config.rdma_request = "TF_RDMA_ENABLED=true";
  });
  const Status status = cluster.begin();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(cluster.fabrics[0]->transport_name(), "none");
}

}  // namespace
}  // namespace rdmacoll
