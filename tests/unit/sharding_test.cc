// The division of variables among servers.
#include "ps/sharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace rdmacoll::ps {
namespace {

constexpr std::size_t kShareBytes = 4096;

VariableSpec dense(std::string name, std::vector<int64_t> dims, Dtype dtype = Dtype::float32) {
  return {std::move(name), dtype, std::move(dims), false};
}
VariableSpec embedding(std::string name, std::vector<int64_t> dims) {
  return {std::move(name), Dtype::float32, std::move(dims), true};
}

// Expects that shares cover every element once and in order, and that the places of each server
// have no gaps.
void expect_whole(const Sharding& sharding, std::size_t variable, const VariableSpec& spec) {
  uint64_t next = 0;
  std::vector<uint64_t> places(static_cast<std::size_t>(sharding.servers()), 0);
  for (const Share& share : sharding.shares(variable)) {
    EXPECT_EQ(share.first, next) << spec.name;
    EXPECT_EQ(share.place, places[static_cast<std::size_t>(share.server)]) << spec.name;
    EXPECT_EQ(share.elements % spec.row_elements(), 0U) << spec.name;
    places[static_cast<std::size_t>(share.server)] += share.elements;
    next += share.elements;
  }
  EXPECT_EQ(next, spec.elements()) << spec.name;
  for (int server = 0; server < sharding.servers(); ++server) {
    EXPECT_EQ(sharding.elements_on(variable, server), places[static_cast<std::size_t>(server)]);
  }
}

TEST(Sharding, gives_every_element_to_one_server) {
  std::mt19937_64 random(11);
  for (int servers = 1; servers <= 7; ++servers) {
    std::vector<VariableSpec> specs;
    for (int i = 0; i < 40; ++i) {
      const auto rows = static_cast<int64_t>(random() % 500);
      const auto columns = static_cast<int64_t>(random() % 30);
      VariableSpec spec = dense("v" + std::to_string(i), {rows, columns},
                                random() % 2 == 0 ? Dtype::float32 : Dtype::float64);
      spec.by_rows = columns > 0 && random() % 3 == 0;
      specs.push_back(spec);
    }
    Sharding sharding(servers, kShareBytes);
    sharding.add(specs);
    for (std::size_t i = 0; i < specs.size(); ++i) expect_whole(sharding, i, specs[i]);
  }
}

TEST(Sharding, balances_by_bytes_up_to_one_share) {
  std::vector<VariableSpec> specs;
  for (int64_t i = 1; i <= 60; ++i) {
    specs.push_back(
        dense("v" + std::to_string(i), {i * i}, i % 2 == 0 ? Dtype::float32 : Dtype::float64));
  }
  Sharding sharding(5, kShareBytes);
  sharding.add(specs);
  uint64_t least = sharding.bytes_on(0), most = 0;
  for (int server = 0; server < 5; ++server) {
    least = std::min(least, sharding.bytes_on(server));
    most = std::max(most, sharding.bytes_on(server));
  }
  EXPECT_LE(most - least, kShareBytes);
}

TEST(Sharding, is_the_same_everywhere) {
  const std::vector<VariableSpec> specs = {dense("a", {3000}), dense("b", {7}), dense("c", {900}),
                                           embedding("d", {77, 5}), dense("e", {})};
  Sharding here(3, kShareBytes), there(3, kShareBytes);
  here.add(specs);
  there.add(specs);
  EXPECT_EQ(here.text(), there.text());
  // The cut must not change between builds, since a build reads the checkpoints of earlier builds.
  EXPECT_EQ(here.text(),
            "server 0: 5116 B: a[0:1024], d[0:130], d[260:385]\n"
            "server 1: 4648 B: a[1024:2048], b, d[130:260], e\n"
            "server 2: 7408 B: a[2048:3000], c\n");
}

TEST(Sharding, puts_rows_of_an_embedding_on_every_server) {
  const VariableSpec spec = embedding("words", {10, 4});
  Sharding sharding(4, kShareBytes);
  sharding.add({&spec, 1});
  for (int server = 0; server < 4; ++server) EXPECT_GE(sharding.elements_on(0, server), 4U);
  // A row is never cut, even if shares are small.
  Sharding tiny(2, 8);
  tiny.add({&spec, 1});
  expect_whole(tiny, 0, spec);
}

TEST(Sharding, goes_on_where_earlier_variables_lie) {
  const VariableSpec first = dense("first", {1000}), second = dense("second", {900}),
                     third = dense("third", {50});
  Sharding sharding(2, kShareBytes);
  sharding.add({&first, 1});
  sharding.add({&second, 1});
  sharding.add({&third, 1});
  EXPECT_EQ(sharding.text(), "server 0: 4000 B: first\nserver 1: 3800 B: second, third\n");
}

TEST(Sharding, refuses_what_cannot_be_stored) {
  const auto refusal = [](const VariableSpec& spec) { return check(spec).message(); };
  EXPECT_THAT(refusal(dense("", {1})), testing::HasSubstr("name has 0 bytes"));
  EXPECT_THAT(refusal(dense("w", {2}, Dtype::float16)),
              testing::HasSubstr("w is of float16: servers update float32 and float64"));
  EXPECT_THAT(refusal(dense("w", {2, -1})), testing::HasSubstr("shape (2, -1)"));
  EXPECT_THAT(refusal(dense("w", {1 << 30, 1 << 30})), testing::HasSubstr("2^44"));
  EXPECT_THAT(refusal(dense("w", {0, int64_t{1} << 62, int64_t{1} << 62})),
              testing::HasSubstr("2^44"));
  EXPECT_THAT(refusal(dense("w", std::vector<int64_t>(9, 1))), testing::HasSubstr("9 dimensions"));
  EXPECT_THAT(refusal(embedding("w", {})), testing::HasSubstr("has no rows"));
  EXPECT_TRUE(check(dense("w", {})).ok());
  EXPECT_TRUE(check(dense("w", {0, 3})).ok());
}

}  // namespace
}  // namespace rdmacoll::ps
