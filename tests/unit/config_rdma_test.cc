// Settings of RDMA, under their names of other systems, too.
#include "base/text.h"
#include "unit/config_fixture.h"

namespace rdmacoll {
namespace {

using config_test::variables;
using ::testing::HasSubstr;

class ConfigRdmaTest : public config_test::ConfigTest {};

TEST_F(ConfigRdmaTest, rdma_is_requested_by_name_only) {
  const std::map<std::string, std::string> kRequests = {{"TF_RDMA_ENABLED", "true"},
                                                        {"TF_RDMA_DEV_NAME", "mlx5_1"},
                                                        {"RDMACOLL_TRANSPORT", "rdma,tcp"}};
  for (const auto& [name, text] : kRequests) {
    variables() = {{name, text}};
    ASSERT_TRUE(read().ok());
    EXPECT_EQ(config.rdma_request, cat(name, "=", text));
    EXPECT_EQ(config.rdma_device_by,
              name == "TF_RDMA_DEV_NAME" ? "TF_RDMA_DEV_NAME" : "RDMACOLL_DEVICE");
  }
  variables() = {{"TF_RDMA_ENABLED", "false"}, {"TF_RDMA_DEV_NAME", "mlx5_1"}};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.rdma_request, "");
  EXPECT_FALSE(config.rdma_enabled);
  variables() = {{"TF_RDMA_DEV_NAME", "mlx5_1"}, {"RDMACOLL_TRANSPORT", "shm,tcp"}};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.rdma_request, "") << "it is left out of what is allowed";
  variables() = {{"TF_RDMA_ENABLED", "0"}, {"RDMACOLL_TRANSPORT", "rdma"}};
  EXPECT_EQ(read().code(), Code::invalid);
}

TEST_F(ConfigRdmaTest, a_buffer_that_is_no_multiple_of_a_gibibyte_is_a_note) {
  variables() = {{"TF_RDMA_BUF_SIZE", "16M"}};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.pool_bytes, 16U << 20);
  EXPECT_TRUE(config.pool_is_given);
  EXPECT_THAT(value("RDMACOLL_BUF_SIZE").note, HasSubstr("not a multiple of 1 GiB"));
  variables() = {{"TF_RDMA_BUF_SIZE", "2G"}};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.pool_bytes, uint64_t{2} << 30);
  EXPECT_EQ(value("RDMACOLL_BUF_SIZE").note, "");
}

TEST_F(ConfigRdmaTest, names_of_other_systems_set_the_queue_pairs) {
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.rdma_port, std::nullopt);
  EXPECT_EQ(config.rdma_retries, std::nullopt);
  variables() = {{"RDMA_DEVICE", "mlx4_0"}, {"RDMA_DEVICE_PORT", "2"},
                 {"RDMA_PKEY", "3"},        {"RDMA_QUEUE_DEPTH", "1024"},
                 {"RDMA_TIMEOUT", "14"},    {"RDMA_RETRY_CNT", "7"},
                 {"RDMA_SL", "5"},          {"RDMA_MTU", "2048"},
                 {"RDMA_GID_INDEX", "1"},   {"RDMA_TRAFFIC_CLASS", "106"}};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.rdma_device, "mlx4_0");
  EXPECT_NE(config.rdma_request, "");
  EXPECT_EQ(config.rdma_port, 2);
  EXPECT_EQ(config.rdma_pkey_index, 3);
  EXPECT_EQ(config.rdma_queue_depth, 1024U);
  EXPECT_EQ(config.rdma_timeout, 14);
  EXPECT_EQ(config.rdma_retries, 7);
  EXPECT_EQ(config.rdma_service_level, 5);
  EXPECT_EQ(config.rdma_mtu, 2048U);
  EXPECT_EQ(config.rdma_gid_index, 1);
  EXPECT_EQ(config.rdma_traffic_class, 106);
  EXPECT_EQ(value("RDMACOLL_RETRY_CNT").source, "environment");
  // As its documentation spells them.
  variables() = {{"RDMA_QP_PKEY_INDEX", "2"}, {"RDMA_QP_QUEUE_DEPTH", "64"},
                 {"RDMA_QP_TIMEOUT", "13"},   {"RDMA_QP_RETRY_COUNT", "5"},
                 {"RDMA_QP_SL", "4"},         {"RDMA_QP_MTU", "512"}};
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.rdma_pkey_index, 2);
  EXPECT_EQ(config.rdma_queue_depth, 64U);
  EXPECT_EQ(config.rdma_timeout, 13);
  EXPECT_EQ(config.rdma_retries, 5);
  EXPECT_EQ(config.rdma_service_level, 4);
  EXPECT_EQ(config.rdma_mtu, 512U);
  variables() = {{"RDMA_DEVICE", "mlx4_0"}};
  // Each of three names beats the next one.
  variables()["TF_RDMA_DEV_NAME"] = "mlx5_1";
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(config.rdma_device, "mlx5_1");
  EXPECT_THAT(value("RDMACOLL_DEVICE").warning, HasSubstr("RDMA_DEVICE says mlx4_0"));
  EXPECT_THAT(settings_json(values),
              HasSubstr(R"("aliases": ["TF_RDMA_DEV_NAME", "RDMA_DEVICE"])"));
}

TEST_F(ConfigRdmaTest, what_a_queue_pair_cannot_have_is_refused) {
  expect_refused("RDMA_DEVICE_PORT", "0");
  expect_refused("RDMA_PKEY", "65536");
  expect_refused("RDMA_QUEUE_DEPTH", "31");
  expect_refused("RDMA_TIMEOUT", "0");  // for ever
  expect_refused("RDMA_TIMEOUT", "32");
  expect_refused("RDMA_RETRY_CNT", "8");
  expect_refused("RDMA_SL", "16");
  expect_refused("RDMA_MTU", "1500");
  expect_refused("RDMA_TRAFFIC_CLASS", "256");
  for (const char* port : {"0", "65536", "http"}) expect_refused("RDMACOLL_PORT", port);
}

}  // namespace
}  // namespace rdmacoll
