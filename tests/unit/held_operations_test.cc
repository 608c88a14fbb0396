#include "engine/held_operations.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace rdmacoll {
namespace {

struct FakeOrder final : StreamOrder {
  bool is_done = false;
  bool wakes = false;
  bool passes_when_armed = false;
  int asked = 0;
  Status status;

  Status reached(bool& is_reached) override {
    ++asked;
    is_reached = is_done;
    return status;
  }
  bool arm() override {
    is_done |= passes_when_armed;
    return wakes;
  }
};

struct Submitted {
  OperationRef operation;
  std::shared_ptr<FakeOrder> order;  // null: host memory
};

Submitted submitted(const std::string& name, bool is_on_gpu, uint32_t set = 0,
                    Kind kind = Kind::allreduce) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.set = set;
  Submitted made;
  if (is_on_gpu) made.order = std::make_shared<FakeOrder>();
  request.order = made.order;
  made.operation = std::make_shared<Operation>(std::move(request));
  return made;
}

bool holds(HeldOperations& held, const Submitted& one) {
  bool is_held = false;
  EXPECT_TRUE(held.hold(one.operation, is_held).ok());
  return is_held;
}

std::vector<OperationRef> released(HeldOperations& held) {
  std::vector<OperationRef> ready;
  EXPECT_TRUE(held.release(ready).ok());
  return ready;
}

TEST(HeldOperations, wait_until_their_streams_have_reached_them) {
  HeldOperations held;
  const Submitted one = submitted("one", true), other = submitted("other", true);
  EXPECT_TRUE(holds(held, one));
  EXPECT_TRUE(holds(held, other));
  EXPECT_TRUE(released(held).empty());
  other.order->is_done = true;
  EXPECT_EQ(released(held), std::vector{other.operation}) << "names may come in any order";
  one.order->is_done = true;
  EXPECT_EQ(released(held), std::vector{one.operation});
  EXPECT_TRUE(held.empty());
  EXPECT_EQ(one.operation->request.order, nullptr);
}

TEST(HeldOperations, do_not_wait_if_their_streams_have_passed) {
  HeldOperations held;
  const Submitted one = submitted("one", true);
  one.order->is_done = true;
  EXPECT_FALSE(holds(held, one));
  EXPECT_TRUE(held.empty());
}

TEST(HeldOperations, in_host_memory_pass_named_ones_only) {
  HeldOperations held;
  const Submitted named = submitted("named", true), unnamed = submitted("", true);
  EXPECT_TRUE(holds(held, named));
  EXPECT_FALSE(holds(held, submitted("", false)));
  EXPECT_TRUE(holds(held, unnamed));
  const Submitted host = submitted("", false);
  EXPECT_TRUE(holds(held, host)) << "unnamed operations are counted";
  EXPECT_FALSE(holds(held, submitted("", false, 1))) << "another set counts for itself";
  EXPECT_FALSE(holds(held, submitted("host", false)));
  unnamed.order->is_done = true;
  EXPECT_EQ(released(held), (std::vector{unnamed.operation, host.operation}));
}

TEST(HeldOperations, unnamed_ones_are_not_asked_before_their_turn) {
  HeldOperations held;
  const Submitted first = submitted("", true), second = submitted("", true);
  second.order->is_done = true;
  EXPECT_TRUE(holds(held, first));
  EXPECT_TRUE(holds(held, second));
  EXPECT_TRUE(released(held).empty());
  EXPECT_EQ(second.order->asked, 0);
  first.order->is_done = true;
  EXPECT_EQ(released(held), (std::vector{first.operation, second.operation}));
}

TEST(HeldOperations, are_followed_by_the_join_of_their_set) {
  HeldOperations held;
  const Submitted named = submitted("named", true), unnamed = submitted("", true);
  EXPECT_TRUE(holds(held, named));
  EXPECT_TRUE(holds(held, unnamed));
  const Submitted join = submitted("", false, 0, Kind::join);
  EXPECT_TRUE(holds(held, join));
  EXPECT_FALSE(holds(held, submitted("", false, 1, Kind::join)));
  unnamed.order->is_done = true;
  EXPECT_EQ(released(held), std::vector{unnamed.operation});
  named.order->is_done = true;
  EXPECT_EQ(released(held), (std::vector{named.operation, join.operation}));
}

TEST(HeldOperations, report_a_failed_stream_by_the_name_of_the_operation) {
  HeldOperations held;
  const Submitted one = submitted("one", true), other = submitted("other", true);
  EXPECT_TRUE(holds(held, one));
  EXPECT_TRUE(holds(held, other));
  one.order->status = {Code::failed, "illegal address (CUDA_ERROR_ILLEGAL_ADDRESS)."};
  other.order->is_done = true;
  std::vector<OperationRef> ready;
  const Status status = held.release(ready);
  EXPECT_EQ(status.code(), Code::failed);
  EXPECT_NE(status.message().find("allreduce 'one' has failed: illegal address"), std::string::npos)
      << status.message();
  EXPECT_TRUE(ready.empty());
  EXPECT_EQ(held.take_all(), (std::vector{one.operation, other.operation}));
}

TEST(HeldOperations, are_taken_by_their_set) {
  HeldOperations held;
  const Submitted first = submitted("first", true), of_set = submitted("of_set", true, 2);
  const Submitted last = submitted("last", true);
  for (const Submitted* one : {&first, &of_set, &last}) EXPECT_TRUE(holds(held, *one));
  EXPECT_EQ(held.count(0), 2u);
  EXPECT_EQ(held.count(2), 1u);
  EXPECT_EQ(held.take(2), std::vector{of_set.operation});
  EXPECT_EQ(held.count(2), 0u);
  EXPECT_EQ(held.take_all(), (std::vector{first.operation, last.operation}));
  EXPECT_TRUE(held.empty());
}

TEST(HeldOperations, are_asked_often_only_if_a_stream_wakes_nobody) {
  HeldOperations held;
  const Submitted one = submitted("one", true), other = submitted("other", true);
  EXPECT_TRUE(holds(held, one));
  EXPECT_TRUE(holds(held, other));
  one.order->wakes = true;
  EXPECT_TRUE(held.arm());
  EXPECT_EQ(held.wait_max(), HeldOperations::kPollInterval);
  other.order->wakes = true;
  EXPECT_TRUE(held.arm());
  EXPECT_EQ(held.wait_max(), HeldOperations::kFaultInterval);
}

TEST(HeldOperations, keep_the_engine_awake_if_a_stream_passes_or_fails_when_it_is_armed) {
  HeldOperations held;
  const Submitted one = submitted("one", true), other = submitted("other", true);
  EXPECT_TRUE(holds(held, one));
  EXPECT_TRUE(holds(held, other));
  one.order->wakes = true;
  other.order->passes_when_armed = true;
  EXPECT_FALSE(held.arm());
  EXPECT_EQ(released(held), std::vector{other.operation});
  one.order->wakes = false;
  one.order->status = {Code::failed, "illegal address (CUDA_ERROR_ILLEGAL_ADDRESS)."};
  EXPECT_FALSE(held.arm());
}

}  // namespace
}  // namespace rdmacoll
