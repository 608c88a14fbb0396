#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "base/text.h"
#include "bootstrap/transports.h"
#include "settings/settings.h"
#include "unit/config_fixture.h"

namespace rdmacoll {
namespace {

using config_test::lookup;
using config_test::variables;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ConfigTest : public config_test::ConfigTest {};

TEST_F(ConfigTest, defaults_are_those_of_the_documentation) {
  ASSERT_TRUE(read().ok());
  EXPECT_TRUE(config.transports.empty());
  EXPECT_TRUE(config.allreduce_algorithms.empty());
  EXPECT_FALSE(config.canonical);
  EXPECT_EQ(config.chunk_bytes, 4'194'304U);
  EXPECT_EQ(config.log_level, LogLevel::warning);
  EXPECT_EQ(config.rdma_request, "");
  EXPECT_EQ(value("RDMACOLL_CHUNK_SIZE").value, "4194304");
  EXPECT_EQ(value("RDMACOLL_CHUNK_SIZE").source, "default");
  for (const char* name : {"RDMACOLL_TRANSPORT", "RDMACOLL_SEGMENT_BYTES", "RDMACOLL_DEVICE",
                           "RDMACOLL_INTERFACE", "RDMACOLL_COMPUTE_WORKERS", "RDMACOLL_RANK"}) {
    EXPECT_EQ(value(name).source, "automatic") << name;
    EXPECT_EQ(value(name).value, "") << name;
  }
}

// The struct's initial values and the table's texts are the same facts: setting each text must give
// the same Config. A failure prints bytes: compare the fields of the setting that you have changed.
TEST_F(ConfigTest, table_and_struct_agree_on_every_default) {
  const Config fresh;
  for (const Setting& setting : settings_table()) {
    if (!setting.default_value.empty() && setting.name != "RDMACOLL_DEVICE") {
      variables()[std::string(setting.name)] = setting.default_value;
    }
  }
  ASSERT_TRUE(read().ok());
  // Two fields tell that the user gave a value.
  config.pool_is_given = fresh.pool_is_given;
  config.rdma_request = fresh.rdma_request;
  EXPECT_EQ(config, fresh);
}

TEST_F(ConfigTest, the_cache_folder_is_the_users) {
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.cache_folder, "");
  variables() = {{"HOME", "/h/a"}};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.cache_folder, "/h/a/.cache/rdmacoll");
  variables()["XDG_CACHE_HOME"] = "relative";
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.cache_folder, "/h/a/.cache/rdmacoll");
  variables()["XDG_CACHE_HOME"] = "/var/b";
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.cache_folder, "/var/b/rdmacoll");
  for (const auto& [given, profile] :
       {std::pair{"auto", ""}, {"off", "off"}, {"/x.json", "/x.json"}}) {
    variables()["RDMACOLL_PROFILE"] = given;
    ASSERT_TRUE(read().ok());
    EXPECT_EQ(config.profile, profile);
  }
}

TEST_F(ConfigTest, names_are_unique_and_rows_are_complete) {
  std::set<std::string_view> names;
  for (const Setting& setting : settings_table()) {
    for (std::string_view name : names_of(setting)) {
      EXPECT_FALSE(name.empty()) << setting.name;
      // This variable of Horovod is about two settings.
      const bool is_shared = name == "HOROVOD_STALL_CHECK_DISABLE";
      EXPECT_TRUE(names.insert(name).second || is_shared) << name;
    }
    EXPECT_FALSE(setting.help.empty()) << setting.name;
    EXPECT_FALSE(setting.allowed.empty()) << setting.name;
  }
}

TEST_F(ConfigTest, sizes_take_units_of_1024) {
  const std::pair<const char*, uint64_t> kTexts[] = {
      {"65536", 65536}, {"64K", 65536},     {"64k", 65536},
      {"64KiB", 65536}, {"2M", 2097152},    {"2 MiB", 2097152},
      {"1G", 1U << 30}, {"1GiB", 1U << 30}, {" 4194304 ", 4194304}};
  for (const auto& [text, bytes] : kTexts) {
    variables() = {{"RDMACOLL_CHUNK_SIZE", text}};
    ASSERT_TRUE(read().ok()) << text;
    EXPECT_EQ(config.chunk_bytes, bytes) << text;
    EXPECT_EQ(value("RDMACOLL_CHUNK_SIZE").value, std::to_string(bytes));
    EXPECT_EQ(value("RDMACOLL_CHUNK_SIZE").source, "environment");
  }
}

TEST_F(ConfigTest, wrong_values_name_variable_value_and_what_is_allowed) {
  variables() = {{"RDMACOLL_ORDER", "reverse"}};
  const Status status = read();
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_EQ(status.message(), "RDMACOLL_ORDER=reverse is not allowed: it takes run or canonical.");
}

TEST_F(ConfigTest, refuses_what_is_not_a_value) {
  for (const char* text : {"4MB", "-1", "1.5M", "0x100", "M", "4M4", "10", "2G",
                           "99999999999999999999", "18014398509481984K"}) {
    expect_refused("RDMACOLL_CHUNK_SIZE", text);
  }
  for (const char* text : {"0", "-3", "five", "5s", "nan", "inf", "1e300"}) {
    expect_refused("RDMACOLL_PEER_TIMEOUT_S", text);
  }
  for (const char* text : {"ringer", "tree", "ring,direct", "ring:4k", "ring:direct:direct",
                           ":4k:ring", "ring:0:direct", "ring:8k:direct:4k:ring",
                           "ring:4k:", "ring#", "ring#two", "a/ring", "nccl/nccl/nccl"}) {
    expect_refused("RDMACOLL_ALLREDUCE_ALGORITHM", text);
  }
  for (const char* text : {"sim", "tcp,", ",tcp", "tcp,,shm", "tcp;shm", "auto,tcp"}) {
    expect_refused("RDMACOLL_TRANSPORT", text);
  }
  for (const char* text : {"maybe", "2"}) expect_refused("TF_RDMA_ENABLED", text);
  for (const char* text : {"host", "host:", ":80", "host:0", "host:65536", "host:8o"}) {
    expect_refused("RDMACOLL_RENDEZVOUS", text);
  }
  expect_refused("TF_RDMA_BUF_SIZE", "15M");
  expect_refused("RDMACOLL_COMPUTE_WORKERS", "257");
  expect_refused("RDMACOLL_SIZE", "0");
  expect_refused("RDMACOLL_LOG", "loud");
}

TEST_F(ConfigTest, a_wrong_value_leaves_config_alone_and_the_other_values_readable) {
  ASSERT_TRUE(read("RDMACOLL_ORDER=canonical\n").ok());
  variables() = {{"RDMACOLL_BUCKET_BYTES", "many"}, {"RDMACOLL_SECRET_FILE", "/mine"}};
  EXPECT_THAT(read("RDMACOLL_NONSENSE=1\n").message(), HasSubstr("RDMACOLL_NONSENSE"));
  EXPECT_THAT(read("RDMACOLL_ORDER=canonical\n").message(), HasSubstr("RDMACOLL_BUCKET_BYTES"));
  EXPECT_TRUE(config.canonical);
  EXPECT_NE(value("RDMACOLL_BUCKET_BYTES").source, "environment");
  EXPECT_EQ(value("RDMACOLL_BUCKET_BYTES").value.find("many"), std::string::npos);
  EXPECT_EQ(value("RDMACOLL_SECRET_FILE").value, "/mine");
  EXPECT_EQ(value("RDMACOLL_ORDER").value, "canonical");
  EXPECT_EQ(values.size(), settings_table().size());
}

TEST_F(ConfigTest, transports_are_those_of_the_table) {
  for (const TransportRow& row : transport_table()) {
    variables() = {{"RDMACOLL_TRANSPORT", std::string(row.name)}};
    ASSERT_TRUE(read().ok()) << row.name;
    EXPECT_THAT(config.transports, ElementsAre(row.name));
    EXPECT_THAT(std::string(value("RDMACOLL_TRANSPORT").setting->allowed),
                HasSubstr(std::string(row.name)));
  }
  expect_refused("RDMACOLL_TRANSPORT", "toy");
  EXPECT_THAT(read().message(), HasSubstr("it takes auto, or a comma list of shm, rdma, tcp"));
}

TEST_F(ConfigTest, transports_are_a_list_in_the_given_order) {
  variables() = {{"RDMACOLL_TRANSPORT", "TCP, shm,tcp"}};
  ASSERT_TRUE(read().ok());
  EXPECT_THAT(config.transports, ElementsAre("tcp", "shm"));
  EXPECT_EQ(value("RDMACOLL_TRANSPORT").value, "tcp,shm");
}

TEST_F(ConfigTest, an_alias_is_obeyed_and_beaten_by_our_own_name) {
  variables() = {{"TF_RDMA_CHUNK_SIZE", "1M"}};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.chunk_bytes, 1U << 20);
  EXPECT_EQ(value("RDMACOLL_CHUNK_SIZE").note, "");
  variables()["RDMACOLL_CHUNK_SIZE"] = "2M";
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.chunk_bytes, 2U << 20);
  EXPECT_EQ(value("RDMACOLL_CHUNK_SIZE").warning,
            "TF_RDMA_CHUNK_SIZE says 1M; RDMACOLL_CHUNK_SIZE=2M is obeyed");
  variables()["TF_RDMA_CHUNK_SIZE"] = "2097152";  // the same in other words
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(value("RDMACOLL_CHUNK_SIZE").note, "");
}

TEST_F(ConfigTest, arguments_beat_the_environment) {
  variables() = {{"RDMACOLL_PEER_TIMEOUT_S", "7"}, {"RDMACOLL_LOG", "debug"}};
  ASSERT_TRUE(read("RDMACOLL_PEER_TIMEOUT_S=2.5\n\nRDMACOLL_ONE_COPY=no\n").ok());
  EXPECT_EQ(config.peer_timeout_s, 2.5);
  EXPECT_EQ(value("RDMACOLL_PEER_TIMEOUT_S").value, "2.5");
  EXPECT_EQ(value("RDMACOLL_PEER_TIMEOUT_S").source, "argument");
  EXPECT_EQ(config.one_copy, false);
  EXPECT_EQ(config.log_level, LogLevel::debug);
}

TEST_F(ConfigTest, empty_means_unset_and_auto_means_automatic) {
  variables() = {
      {"RDMACOLL_ORDER", ""}, {"RDMACOLL_SEGMENT_BYTES", "auto"}, {"RDMACOLL_TRANSPORT", "Auto"}};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(value("RDMACOLL_ORDER").source, "default");
  EXPECT_FALSE(config.segment_bytes.has_value());
  EXPECT_EQ(value("RDMACOLL_SEGMENT_BYTES").source, "automatic");
  EXPECT_TRUE(config.transports.empty());
}

TEST_F(ConfigTest, unknown_arguments_are_refused_with_the_nearest_name) {
  const Status typo = read("RDMACOLL_CHUNKSIZE=1M");
  EXPECT_EQ(typo.code(), Code::invalid);
  EXPECT_THAT(typo.message(), HasSubstr("did you mean RDMACOLL_CHUNK_SIZE?"));
  EXPECT_THAT(read("nonsense").message(), HasSubstr("not NAME=value"));
}

TEST_F(ConfigTest, unknown_variables_of_the_environment_are_noted) {
  ::setenv("RDMACOLL_TRANSPROT", "tcp", 1);
  ::setenv("RDMACOLL_NOTHING_OF_THE_KIND", "1", 1);
  ::setenv("RDMACOLL_TEST_DEVICES", "rxe1", 1);
  ::setenv("TF_RDMA_CHUNKSIZE", "1", 1);
  ::setenv("TF_RDMA_OF_ANOTHER_SYSTEM_ALTOGETHER", "1", 1);
  ::setenv("RDMA_QP_TIMEOUTT", "1", 1);
  ::setenv("RDMA_QP_RNR", "1", 1);
  const Status status = read_config("", &environment, config, values);
  ::unsetenv("RDMACOLL_TRANSPROT");
  ::unsetenv("RDMACOLL_NOTHING_OF_THE_KIND");
  ::unsetenv("RDMACOLL_TEST_DEVICES");
  ::unsetenv("TF_RDMA_CHUNKSIZE");
  ::unsetenv("TF_RDMA_OF_ANOTHER_SYSTEM_ALTOGETHER");
  ::unsetenv("RDMA_QP_TIMEOUTT");
  ::unsetenv("RDMA_QP_RNR");
  ASSERT_TRUE(status.ok()) << status.message();
  const std::string typo =
      "RDMACOLL_TRANSPROT is no setting of this version; did you mean RDMACOLL_TRANSPORT?";
  EXPECT_EQ(value("RDMACOLL_TRANSPORT").warning, typo);
  EXPECT_THAT(settings_json(values),
              AllOf(HasSubstr(json_quote(typo)), Not(HasSubstr("RDMACOLL_TEST_DEVICES"))));
  EXPECT_THAT(settings_json(values),
              HasSubstr("RDMACOLL_NOTHING_OF_THE_KIND is no setting of this version; `rdmacoll "
                        "config` lists them"));
  EXPECT_THAT(value("RDMACOLL_CHUNK_SIZE").warning, HasSubstr("did you mean TF_RDMA_CHUNK_SIZE?"));
  EXPECT_THAT(value("RDMACOLL_TIMEOUT").warning, HasSubstr("did you mean RDMA_QP_TIMEOUT?"));
  const bool warns = std::ranges::any_of(values, [](const SettingValue& value) {
    return value.warning.find("OF_ANOTHER_SYSTEM") != std::string::npos ||
           value.warning.find("RDMA_QP_RNR") != std::string::npos;
  });
  EXPECT_FALSE(warns) << "it may be meant for that one";
  EXPECT_THAT(settings_json(values), HasSubstr("TF_RDMA_OF_ANOTHER_SYSTEM_ALTOGETHER is no"));
}

TEST_F(ConfigTest, algorithms_are_forced_by_size) {
  variables() = {{"RDMACOLL_ALLREDUCE_ALGORITHM", "Recursive_Doubling:32k:direct:1MiB:auto"}};
  ASSERT_TRUE(read().ok());
  const std::vector<AlgorithmRange> expected = {
      {"recursive_doubling", 32 << 10}, {"direct", 1 << 20}, {"auto", UINT64_MAX}};
  EXPECT_EQ(config.allreduce_algorithms, expected);
  const auto told = value("RDMACOLL_ALLREDUCE_ALGORITHM");
  EXPECT_EQ(told.value + "|" + told.note, "recursive_doubling:32768:direct:1048576:auto|");
  variables() = {{"RDMACOLL_ALLREDUCE_ALGORITHM", "pscpu:32k:xring"}};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(value("RDMACOLL_ALLREDUCE_ALGORITHM").note,
            "pscpu:32k:xring is taken as direct:32768:ring, sizes in bytes");
}

TEST_F(ConfigTest, a_wrong_algorithm_is_told_what_is_allowed) {
  variables() = {{"RDMACOLL_ALLREDUCE_ALGORITHM", "ring:32k:tree"}};
  const Status status = read();
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(),
              HasSubstr("RDMACOLL_ALLREDUCE_ALGORITHM=ring:32k:tree is not allowed: it takes auto, "
                        "recursive_doubling, one_shot, leaders, two_level, direct, write_back, "
                        "halving_doubling or ring, or "));
}

TEST_F(ConfigTest, canonical_order_excludes_the_ring) {
  variables() = {{"RDMACOLL_ORDER", "canonical"}, {"RDMACOLL_ALLREDUCE_ALGORITHM", "ring"}};
  const Status status = read();
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(), HasSubstr("ring"));
  EXPECT_THAT(status.message(), HasSubstr("RDMACOLL_ALLREDUCE_ALGORITHM=ring"));
  variables()["RDMACOLL_ALLREDUCE_ALGORITHM"] = "direct:1m:ring";
  EXPECT_EQ(read().code(), Code::invalid);
  variables()["RDMACOLL_ALLREDUCE_ALGORITHM"] = "direct";
  ASSERT_TRUE(read().ok());
  EXPECT_TRUE(config.canonical);
}

TEST_F(ConfigTest, servers_are_ranks_of_their_own_where_there_are_any) {
  variables() = {{"RDMACOLL_NUM_SERVERS", "3"}};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.dedicated_servers(), 0);
  EXPECT_THAT(value("RDMACOLL_NUM_SERVERS").note, HasSubstr("without RDMACOLL_MODE=ps"));
  variables()["RDMACOLL_MODE"] = "ps";
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.dedicated_servers(), 3);
  variables()["RDMACOLL_SERVER_PLACEMENT"] = "colocated";
  ASSERT_TRUE(read().ok());
  EXPECT_THAT(value("RDMACOLL_NUM_SERVERS").note, HasSubstr("every worker serves"));
  variables()["RDMACOLL_ALLREDUCE_ALGORITHM"] = "ring";
  EXPECT_THAT(read().message(), HasSubstr("exclude each other: the servers make the sums"));
}

TEST_F(ConfigTest, the_fingerprint_holds_world_settings_in_one_spelling) {
  variables() = {
      {"RDMACOLL_CHUNK_SIZE", "1M"}, {"RDMACOLL_LOG", "debug"}, {"RDMACOLL_PEER_TIMEOUT_S", "5.0"}};
  ASSERT_TRUE(read().ok());
  const auto world = world_settings(values);
  EXPECT_EQ(world.at("RDMACOLL_CHUNK_SIZE"), "1048576");
  EXPECT_EQ(world.at("RDMACOLL_PEER_TIMEOUT_S"), "5");
  EXPECT_EQ(world.at("RDMACOLL_SEGMENT_BYTES"), "auto");
  for (const char* local : {"RDMACOLL_LOG", "RDMACOLL_RANK", "RDMACOLL_DEVICE", "RDMACOLL_PORT",
                            "RDMACOLL_INTERFACE", "RDMACOLL_SECRET_FILE"}) {
    EXPECT_FALSE(world.contains(local)) << local;
  }
}

TEST_F(ConfigTest, json_has_a_row_per_setting) {
  variables() = {{"RDMACOLL_INTERFACE", "eth\"0"}};
  ASSERT_TRUE(read().ok());
  const std::string json = settings_json(values);
  for (const Setting& setting : settings_table())
    EXPECT_THAT(json, HasSubstr("{\"name\": \"" + std::string(setting.name) + "\""));
  EXPECT_THAT(json, HasSubstr("\"value\": \"eth\\\"0\", \"source\": \"environment\""));
  EXPECT_THAT(json, HasSubstr("\"given\": \"RDMACOLL_INTERFACE=eth\\\"0\""));
  EXPECT_TRUE(json.front() == '[' && json.back() == ']');
}

}  // namespace
}  // namespace rdmacoll
