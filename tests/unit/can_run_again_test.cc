// Which operations may run for nothing, before the log decides them again.
#include "operation/can_run_again.h"

#include <gtest/gtest.h>

#include <array>

namespace rdmacoll {
namespace {

class PlansRunAgain : public testing::Test {
 protected:
  // An operation on two tensors, of 3 and of `elements` numbers. The second one is in place.
  OperationRef in_place(Kind kind, int64_t elements = 3) {
    Request request;
    request.kind = kind;
    request.root = SetRank(1);
    request.tensors = {{memory_.data(), memory_.data() + 64, {3}, ""},
                       {memory_.data() + 32, memory_.data() + 32, {elements}, ""}};
    return std::make_shared<Operation>(std::move(request));
  }

  std::array<std::byte, 128> memory_{};
};

TEST_F(PlansRunAgain, operations_whose_input_is_kept) {
  const OperationRef sum = in_place(Kind::allreduce);
  EXPECT_FALSE(can_run_again(*sum, SetRank(0)));
  sum->request.tensors.pop_back();
  EXPECT_TRUE(can_run_again(*sum, SetRank(0)));
  EXPECT_TRUE(can_run_again(*in_place(Kind::broadcast), SetRank(0)));
}

TEST_F(PlansRunAgain, sums_in_place_of_nothing) {
  EXPECT_TRUE(can_run_again(*in_place(Kind::allreduce, 0), SetRank(0)));
}

TEST_F(PlansRunAgain, reduces_on_ranks_without_the_result) {
  EXPECT_TRUE(can_run_again(*in_place(Kind::reduce), SetRank(0)));
  EXPECT_FALSE(can_run_again(*in_place(Kind::reduce), SetRank(1)));
}

TEST_F(PlansRunAgain, no_sums_whose_results_ranks_share) {
  const OperationRef sum = in_place(Kind::allreduce, 0);
  sum->request.shares_results = true;
  EXPECT_FALSE(can_run_again(*sum, SetRank(0)));
}

}  // namespace
}  // namespace rdmacoll
