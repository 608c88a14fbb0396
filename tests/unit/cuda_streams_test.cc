// The order between callers' streams and the engine, and the wake-up of a sleeping engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cuda/stream_order.h"
#include "unit/scripted_cuda.h"

namespace rdmacoll::cuda_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

uint64_t number_of(StreamHandle stream) { return reinterpret_cast<uint64_t>(stream); }

class CudaStreamOrder : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(gpus->use(0, gpu).ok());
    ScriptedCuda::current() = {&cuda.contexts[1]};  // the caller's
  }
  void TearDown() override {
    EXPECT_THAT(ScriptedCuda::current(), ElementsAre(&cuda.contexts[1]));
    EXPECT_THAT(cuda.misuse, IsEmpty());
  }
  std::shared_ptr<StreamOrder> record(uint64_t stream) {
    std::shared_ptr<StreamOrder> order;
    const Status status = orders->record(stream, gpu, order);
    EXPECT_TRUE(status.ok()) << status.message();
    return order;
  }
  static bool is_reached(StreamOrder& order) {
    bool is_reached = false;
    const Status status = order.reached(is_reached);
    EXPECT_TRUE(status.ok()) << status.message();
    return is_reached;
  }

  ScriptedCuda cuda{2};
  std::shared_ptr<Gpus> gpus = std::make_shared<Gpus>(cuda.driver());
  std::shared_ptr<EventPool> events = std::make_shared<EventPool>(cuda.driver());
  int wakes = 0;
  std::shared_ptr<Sleeper> sleeper =
      std::make_shared<Sleeper>([this] { ++wakes; }, Log(LogLevel::warning, 0));
  std::unique_ptr<StreamOrders> orders = std::make_unique<StreamOrders>(gpus, events, sleeper);
  Gpu gpu = kHost;
};

TEST_F(CudaStreamOrder, is_reached_when_the_earlier_work_of_the_stream_is_done) {
  Stream& legacy = cuda.default_stream(kLegacyStream);
  legacy.queue.push_back({"kernel", [] { return true; }});
  const auto order = record(kLegacyStream);
  legacy.queue.push_back({"later kernel", [] { return true; }});
  EXPECT_FALSE(is_reached(*order));
  cuda.step(legacy);
  EXPECT_FALSE(is_reached(*order));
  cuda.step(legacy);  // the event
  EXPECT_TRUE(is_reached(*order));
  EXPECT_EQ(legacy.queue.size(), 1u);
}

TEST_F(CudaStreamOrder, waits_for_the_given_stream_alone) {
  const StreamHandle own = cuda.stream_of_caller();
  const auto legacy = record(kLegacyStream);
  const auto thread = record(kPerThreadStream);
  const auto handle = record(number_of(own));
  cuda.step(*cuda.stream(own));
  EXPECT_TRUE(is_reached(*handle));
  EXPECT_FALSE(is_reached(*legacy));
  EXPECT_FALSE(is_reached(*thread));
  cuda.step(cuda.default_stream(kPerThreadStream));
  EXPECT_TRUE(is_reached(*thread));
  EXPECT_FALSE(is_reached(*legacy));
}

TEST_F(CudaStreamOrder, may_be_that_of_a_stream_on_another_gpu) {
  const StreamHandle other = cuda.stream_of_caller(1);
  const auto order = record(number_of(other));
  EXPECT_FALSE(is_reached(*order));
  cuda.run();
  EXPECT_TRUE(is_reached(*order));
}

TEST_F(CudaStreamOrder, of_stream_0_is_refused) {
  std::shared_ptr<StreamOrder> order;
  const Status status = orders->record(0, gpu, order);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(), HasSubstr("pass 1 for the legacy one"));
}

TEST_F(CudaStreamOrder, of_a_captured_stream_is_refused) {
  const StreamHandle own = cuda.stream_of_caller();
  std::shared_ptr<StreamOrder> order;
  cuda.stream(own)->is_capturing = true;
  Status status = orders->record(number_of(own), gpu, order);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("the stream 0x"), HasSubstr("CUDA graph")));
  cuda.fails["cuStreamIsCapturing"] = kStreamCaptureImplicit;
  status = orders->record(kLegacyStream, gpu, order);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("a stream is being captured"),
                                      HasSubstr("the legacy default stream waits")));
  EXPECT_EQ(cuda.count("cuEventRecord"), 0);
}

TEST_F(CudaStreamOrder, does_not_spoil_a_graph_that_another_thread_captures) {
  cuda.is_captured = true;
  const auto order = record(kPerThreadStream);
  EXPECT_FALSE(is_reached(*order));
  EXPECT_TRUE(order->arm());
  cuda.run();
  EXPECT_TRUE(is_reached(*order));
  EXPECT_EQ(ScriptedCuda::capture_mode(), 0);
}

TEST_F(CudaStreamOrder, that_the_driver_does_not_announce_is_said_once_and_looked_at) {
  testing::internal::CaptureStderr();
  for (const char* call : {"cuLaunchHostFunc", "cuStreamWaitEvent"}) {
    cuda.fails = {{call, kOutOfMemory}};
    const auto order = record(kLegacyStream);
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(order->arm()) << "nobody would wake the engine";
    cuda.run();
    EXPECT_TRUE(is_reached(*order));
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, AllOf(HasSubstr("cuLaunchHostFunc failed"),
                          HasSubstr("So nothing wakes rdmacoll when work on GPUs ends")));
  EXPECT_EQ(said.find("nothing wakes"), said.rfind("nothing wakes"));
}

TEST_F(CudaStreamOrder, passes_on_a_fault_of_the_caller_s_work) {
  const auto order = record(kLegacyStream);
  cuda.fails["cuEventQuery"] = kIllegalAddress;
  bool is_reached = true;
  EXPECT_THAT(order->reached(is_reached).message(),
              AllOf(HasSubstr("work on the legacy default stream of the GPU cuda:0 (Tesla K80"),
                    HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS")));
  EXPECT_FALSE(is_reached);
}

TEST_F(CudaStreamOrder, uses_its_events_again) {
  for (int step = 0; step < 100; ++step) {
    const auto first = record(kLegacyStream);
    const auto second = record(kLegacyStream);
    EXPECT_FALSE(is_reached(*first));  // its event passed in the step before
    cuda.run();
    EXPECT_TRUE(is_reached(*first));
    EXPECT_TRUE(is_reached(*second));
  }
  EXPECT_EQ(cuda.live_events, 2);
}

TEST_F(CudaStreamOrder, wakes_the_engine_once_when_it_is_reached) {
  const auto order = record(kLegacyStream);
  EXPECT_TRUE(order->arm());
  EXPECT_TRUE(order->arm());  // woken by another event, it sleeps again
  EXPECT_EQ(wakes, 0);
  cuda.run();
  EXPECT_EQ(wakes, 1);
  EXPECT_TRUE(is_reached(*order));
  EXPECT_EQ(cuda.count("cuLaunchHostFunc"), 1);
}

TEST_F(CudaStreamOrder, wakes_the_engine_beside_streams_that_are_still_busy) {
  constexpr int kStreams = 12;
  std::vector<StreamHandle> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(cuda.stream_of_caller());
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<StreamOrder>> stream_orders;
    for (const StreamHandle stream : streams) {
      cuda.stream(stream)->queue.push_back({"long kernel", [] { return false; }});
      stream_orders.push_back(record(number_of(stream)));
      EXPECT_TRUE(stream_orders.back()->arm());
    }
    cuda.run();
    EXPECT_EQ(wakes, 0);
    for (int i = kStreams; i-- > 0;) {
      for (const auto& order : stream_orders) order->arm();
      cuda.stream(streams[i])->queue.pop_front();
      cuda.run();
      EXPECT_EQ(wakes, 1) << i;
      EXPECT_TRUE(is_reached(*stream_orders[i]));
      wakes = 0;
    }
  }
  EXPECT_EQ(cuda.count("cuStreamCreate"), kStreams) << "wake streams are used again";
}

// An operation may fail while its stream is busy. Its wake stream waits on.
TEST_F(CudaStreamOrder, wakes_the_engine_beside_a_stream_that_is_not_needed_any_more) {
  const StreamHandle busy = cuda.stream_of_caller(), other = cuda.stream_of_caller();
  cuda.stream(busy)->queue.push_back({"long kernel", [] { return false; }});
  auto given_up = record(number_of(busy));
  EXPECT_TRUE(given_up->arm());
  const auto order = record(number_of(other));  // before the other event is used again
  given_up.reset();
  EXPECT_TRUE(order->arm());
  cuda.run();
  EXPECT_EQ(wakes, 1);
  EXPECT_TRUE(is_reached(*order));
}

TEST_F(CudaStreamOrder, wakes_the_engine_if_it_is_reached_after_the_last_look) {
  const auto order = record(kLegacyStream);
  cuda.after_query = [this] { cuda.run(); };
  EXPECT_TRUE(order->arm());
  EXPECT_EQ(wakes, 1);
}

TEST_F(CudaStreamOrder, does_not_let_the_engine_sleep_once_it_is_reached) {
  const auto order = record(kLegacyStream);
  cuda.run();
  EXPECT_FALSE(order->arm());
  // An event that passes before the sleeper is armed calls nobody.
  const auto next = record(kLegacyStream);
  EXPECT_TRUE(next->arm());
  cuda.run();
  EXPECT_FALSE(next->arm());
}

TEST_F(CudaStreamOrder, calls_nobody_after_the_end) {
  const auto order = record(kLegacyStream);
  EXPECT_TRUE(order->arm());
  sleeper->close();
  sleeper.reset();
  orders.reset();
  cuda.run();
  EXPECT_EQ(wakes, 0);
}

TEST_F(CudaStreamOrder, leaves_nothing_behind) {
  record(kLegacyStream)->arm();
  record(kPerThreadStream)->arm();
  cuda.run();
  orders.reset();
  events.reset();
  gpus.reset();
  EXPECT_EQ(cuda.live_events, 0);
  EXPECT_EQ(cuda.live_streams, 0);
  EXPECT_EQ(cuda.contexts[0].retained, 0);
}

TEST_F(CudaStreamOrder, finds_the_gpu_of_a_stream) {
  Gpu found = kHost;
  ASSERT_TRUE(orders->find_gpu(kLegacyStream, found).ok());
  EXPECT_EQ(gpus->facts(found).ordinal, 1);  // current in this thread
  ASSERT_TRUE(orders->find_gpu(number_of(cuda.stream_of_caller(0)), found).ok());
  EXPECT_EQ(gpus->facts(found).ordinal, 0);
  ScriptedCuda::current().clear();
  ASSERT_TRUE(orders->find_gpu(kPerThreadStream, found).ok());
  EXPECT_EQ(gpus->facts(found).ordinal, 0);
  ScriptedCuda::current() = {&cuda.contexts[1]};
}

}  // namespace
}  // namespace rdmacoll::cuda_test
