// The path between two ranks that are threads of one process, over real connections.
#include "api/pair_session.h"

#include <gtest/gtest.h>

#include <thread>

namespace rdmacoll {
namespace {

constexpr std::array<int, 2> kNumbers = {3, 7};  // in the job that these two are a part of

struct Pair {
  std::array<std::unique_ptr<PairSession>, 2> sessions;
  std::array<std::string, 2> cards;
  std::array<int, 2> leaders{};

  Status open(int place, const std::string& settings) {
    const std::vector<std::byte> secret(32, std::byte{7});
    RC_RETURN_IF_ERROR(
        PairSession::open(place, kNumbers, "test", secret, settings, sessions[place]));
    cards[place] = sessions[place]->card();
    return {};
  }
  Status open(const std::string& settings) {
    RC_RETURN_IF_ERROR(open(0, settings));
    RC_RETURN_IF_ERROR(open(1, settings));
    RC_RETURN_IF_ERROR(sessions[0]->probe_node(cards, leaders[0]));
    return sessions[1]->probe_node(cards, leaders[1]);
  }
};

probe::Plan plan(double limit_s = 60) {
  return {.sizes = {8, 100'000},
          .repeats = 1,
          .burst = kMillisecond,
          .progress_timeout = 30 * kSecond,
          .limit = from_seconds(limit_s)};
}

class PairSessions : public testing::TestWithParam<std::string> {};

TEST_P(PairSessions, measure_over_the_transport_that_was_asked_for) {
  Pair pair;
  const Status opened = pair.open("RDMACOLL_TRANSPORT=" + GetParam() + "\n");
  ASSERT_TRUE(opened.ok()) << opened.message();
  std::array<std::string, 2> json;
  std::array<Status, 2> status;
  std::thread follower([&] { status[1] = pair.sessions[1]->run(pair.leaders, plan(), json[1]); });
  status[0] = pair.sessions[0]->run(pair.leaders, plan(), json[0]);
  follower.join();
  for (const Status& one : status) EXPECT_TRUE(one.ok()) << one.message();
  for (const std::string& text : json) {
    EXPECT_NE(text.find("\"transport\": \"" + GetParam() + "\""), std::string::npos) << text;
  }
  for (const char* key : {"\"bytes\": 8,", "\"bytes\": 100000,", "\"latency_us\": ",
                          "\"exchange_us\": ", "\"GB_per_s_forward\": ", "\"GB_per_s_back\": "}) {
    EXPECT_NE(json[0].find(key), std::string::npos) << key << " in " << json[0];
  }
  EXPECT_NE(json[1].find("\"rows\": []"), std::string::npos) << json[1];
}

INSTANTIATE_TEST_SUITE_P(Transports, PairSessions, testing::Values("tcp", "shm"),
                         [](const auto& info) { return info.param; });

TEST(PairSession, whose_peer_never_comes_says_who_did_not) {
  Pair pair;
  ASSERT_TRUE(pair.open("RDMACOLL_TRANSPORT=tcp\nRDMACOLL_START_TIMEOUT_S=0.2\n").ok());
  std::string json;
  const Status waited = pair.sessions[1]->run(pair.leaders, plan(20), json);
  EXPECT_EQ(waited.code(), Code::rank_failed) << waited.message();
  EXPECT_EQ(waited.detail().rank, JobRank(kNumbers[0]));
  EXPECT_NE(waited.message().find("rank 3 ("), std::string::npos) << waited.message();
  EXPECT_NE(waited.message().find("within 0.2 s"), std::string::npos) << waited.message();
  EXPECT_EQ(json, "");
}

TEST(PairSession, whose_peer_has_ended_names_it) {
  Pair pair;
  ASSERT_TRUE(pair.open("RDMACOLL_TRANSPORT=tcp\nRDMACOLL_START_TIMEOUT_S=0.5\n").ok());
  pair.sessions[1].reset();
  std::string json;
  const Status called = pair.sessions[0]->run(pair.leaders, plan(20), json);
  EXPECT_EQ(called.code(), Code::rank_failed) << called.message();
  EXPECT_NE(called.message().find("rank 7 ("), std::string::npos) << called.message();
}

TEST(PairSession, with_different_settings_names_both_ranks_of_the_job) {
  Pair pair;
  ASSERT_TRUE(pair.open(0, "RDMACOLL_TRANSPORT=tcp\n").ok());
  ASSERT_TRUE(pair.open(1, "RDMACOLL_TRANSPORT=shm\n").ok());
  const Status compared = pair.sessions[0]->probe_node(pair.cards, pair.leaders[0]);
  EXPECT_EQ(compared.code(), Code::invalid);
  EXPECT_NE(compared.message().find("rank 3: tcp; rank 7: shm"), std::string::npos)
      << compared.message();
}

}  // namespace
}  // namespace rdmacoll
