// Which calls run an earlier operation again.
#include "api/repeated_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace rdmacoll {
namespace {

// A call of one tensor, and the operation that the session would make of it.
struct Call {
  std::string name = "step";
  std::array<float, 8> input{}, output{};
  rc_tensor tensor{};
  rc_request request{};

  Call() {
    tensor.input = input.data();
    tensor.output = output.data();
    tensor.ndim = 2;
    tensor.dims[0] = 2;
    tensor.dims[1] = 4;
    request.kind = RC_BROADCAST;
    request.dtype = static_cast<int32_t>(Dtype::float32);
    request.root = 3;
    request.prescale = request.postscale = 1.0;
    request.name = name.c_str();
    request.process_set = 2;
    request.n_tensors = 1;
    request.tensors = &tensor;
  }
  Call(const Call&) = delete;

  void keep_in(RepeatedCalls& calls, OperationRef operation) const {
    calls.keep(request.root, request.stream, std::move(operation));
  }

  OperationRef operation() const {
    Request made;
    made.set = 2;
    made.kind = Kind::broadcast;
    made.root = SetRank(1);  // its rank in the set
    made.name = name;
    made.tensors = {{reinterpret_cast<const std::byte*>(input.data()),
                     reinterpret_cast<std::byte*>(const_cast<float*>(output.data())),
                     {2, 4},
                     ""}};
    auto ended = std::make_shared<Operation>(std::move(made));
    ended->complete({});
    return ended;
  }
};

TEST(RepeatedCalls, run_the_operation_of_an_equal_call_again_once) {
  RepeatedCalls calls;
  const Call call;
  ASSERT_TRUE(RepeatedCalls::can_repeat(call.request));
  EXPECT_EQ(calls.take(call.request), nullptr);
  const OperationRef operation = call.operation();
  call.keep_in(calls, operation);
  EXPECT_EQ(calls.take(call.request), operation);
  EXPECT_FALSE(operation->done());
  EXPECT_EQ(calls.take(call.request), nullptr) << "it runs already, for another thread";
}

TEST(RepeatedCalls, are_equal_in_every_property_and_address) {
  const std::vector<std::pair<std::string, std::function<void(Call&)>>> changes{
      {"kind", [](Call& call) { call.request.kind = RC_ALLREDUCE; }},
      {"dtype", [](Call& call) { call.request.dtype = static_cast<int32_t>(Dtype::int32); }},
      {"operator", [](Call& call) { call.request.op = static_cast<int32_t>(ReduceOp::max); }},
      {"root", [](Call& call) { call.request.root = 1; }},
      {"first factor", [](Call& call) { call.request.prescale = 0.5; }},
      {"second factor", [](Call& call) { call.request.postscale = 0.5; }},
      {"name", [](Call& call) { call.request.name = "stop"; }},
      {"no name", [](Call& call) { call.request.name = nullptr; }},
      {"set", [](Call& call) { call.request.process_set = 0; }},
      {"stream", [](Call& call) { call.request.stream = 1; }},
      {"no tensor", [](Call& call) { call.request.n_tensors = 0; }},
      {"input", [](Call& call) { call.tensor.input = call.output.data(); }},
      {"output", [](Call& call) { call.tensor.output = call.input.data(); }},
      {"shape", [](Call& call) { std::swap(call.tensor.dims[0], call.tensor.dims[1]); }},
      {"dimensions", [](Call& call) { call.tensor.ndim = 1; }},
      {"label", [](Call& call) { call.tensor.label = "kernel"; }},
  };
  Call call;
  for (const auto& [what, change] : changes) {
    RepeatedCalls calls;
    call.keep_in(calls, call.operation());
    const rc_tensor tensor = call.tensor;
    const rc_request request = call.request;
    change(call);
    EXPECT_EQ(calls.take(call.request), nullptr) << what;
    call.tensor = tensor;
    call.request = request;
    EXPECT_NE(calls.take(call.request), nullptr) << what;
  }
}

// Later runs write to the memory of the results.
TEST(RepeatedCalls, keep_small_results_that_no_caller_holds) {
  constexpr uint64_t kSmall = 64 << 10;
  for (const auto& [bytes, is_held, is_kept] :
       {std::tuple(kSmall, false, true), {kSmall + 1, false, false}, {kSmall, true, false}}) {
    RepeatedCalls calls;
    const Call call;
    const OperationRef operation = call.operation();
    operation->results = {{{2}, bytes, nullptr}};
    operation->results[0].memory = std::shared_ptr<std::byte[]>(new std::byte[8]);
    const auto caller = is_held ? operation->results[0].memory : nullptr;
    call.keep_in(calls, operation);
    EXPECT_EQ(calls.take(call.request) != nullptr, is_kept) << bytes << is_held;
  }
}

TEST(RepeatedCalls, are_those_without_callbacks_of_their_own) {
  const std::vector<std::pair<std::string, std::function<void(rc_request&)>>> refused{
      {"an unknown kind", [](rc_request& request) { request.kind = 99; }},
      {"a join", [](rc_request& request) { request.kind = RC_JOIN; }},
      {"two tensors", [](rc_request& request) { request.n_tensors = 2; }},
      {"a negative number of tensors", [](rc_request& request) { request.n_tensors = -1; }},
      {"a loop", [](rc_request& request) { request.iteration = 1; }},
      {"a manifest", [](rc_request& request) { request.manifest = "2 gradients"; }},
      {"a group", [](rc_request& request) { request.group = "int32, int64"; }},
      {"done", [](rc_request& request) { request.done = [](void*, const char*) {}; }},
      {"allocate",
       [](rc_request& request) {
         request.allocate = [](void*, int32_t, const int64_t*) -> void* { return nullptr; };
       }},
  };
  for (const auto& [what, change] : refused) {
    Call call;
    change(call.request);
    EXPECT_FALSE(RepeatedCalls::can_repeat(call.request)) << what;
  }
  Call call;
  call.tensor.ndim = 9;
  EXPECT_FALSE(RepeatedCalls::can_repeat(call.request));
  call.request.n_tensors = 0;
  call.request.kind = RC_BARRIER;
  EXPECT_TRUE(RepeatedCalls::can_repeat(call.request));
}

TEST(RepeatedCalls, keep_a_bounded_number_of_operations) {
  RepeatedCalls calls;
  Call call;
  std::vector<std::weak_ptr<Operation>> kept;
  for (int i = 0; i < 10'000; ++i) {
    call.name = std::to_string(i);
    call.request.name = call.name.c_str();
    OperationRef operation = call.operation();
    kept.push_back(operation);
    call.keep_in(calls, std::move(operation));
  }
  int alive = 0;
  for (const auto& operation : kept) alive += operation.expired() ? 0 : 1;
  EXPECT_GT(alive, 32);
  EXPECT_LE(alive, 64);
}

}  // namespace
}  // namespace rdmacoll
