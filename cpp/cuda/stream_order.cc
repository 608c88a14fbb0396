#include "cuda/stream_order.h"

#include <ios>
#include <thread>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "cuda/end_of_lanes.h"

namespace rdmacoll::cuda {
namespace {

bool is_default(uint64_t stream) { return stream <= kPerThreadStream; }

std::string title(uint64_t stream) {
  if (stream == kLegacyStream) return "the legacy default stream";
  if (stream == kPerThreadStream) return "the per-thread default stream";
  return cat("the stream ", std::showbase, std::hex, stream);
}

StreamHandle handle_of(uint64_t stream) { return reinterpret_cast<StreamHandle>(stream); }

// The legacy stream cannot be used while another stream is captured.
Status refuse_capture(uint64_t stream, Result result) {
  const std::string what = result == kStreamCaptureImplicit
                               ? cat("a stream is being captured into a CUDA graph, and ",
                                     title(stream), " waits for it")
                               : cat(title(stream), " is being captured into a CUDA graph");
  return {Code::invalid, cat(what,
                             ". A graph cannot hold an operation between ranks: call rdmacoll "
                             "outside of the capture.")};
}

Status check_not_captured(const Driver& driver, uint64_t stream) {
  int capture = kCaptureNone;
  const Result result = driver.call.cuStreamIsCapturing(handle_of(stream), &capture);
  if (result == kStreamCaptureImplicit || capture != kCaptureNone) {
    return refuse_capture(stream, result);
  }
  return driver.check(result, title(stream));
}

}  // namespace

class StreamOrders::Order final : public StreamOrder {
 public:
  Order(std::shared_ptr<Shared> shared, uint64_t stream, Gpu gpu, ContextHandle context,
        EventHandle event)
      : shared_(std::move(shared)),
        key_(stream, gpu,
             stream == kPerThreadStream ? std::this_thread::get_id() : std::thread::id()),
        stream_context_(context),
        event_(event) {}
  ~Order() override { drop_event(false); }

  Status reached(bool& is_reached) override {
    is_reached = event_ == nullptr;
    if (is_reached) return {};
    const Driver& driver = shared_->gpus->driver();
    const RelaxedCapture relaxed(driver);
    const Result result = driver.call.cuEventQuery(event_);
    is_reached = result == kSuccess;
    if (is_reached) drop_event(true);
    if (result == kSuccess || result == kNotReady) return {};
    return driver.error(result, cat("work on ", title(std::get<uint64_t>(key_)), " of ",
                                    shared_->gpus->facts(std::get<Gpu>(key_)).text()));
  }

  // The sleeper is armed before the last look at the event. Otherwise the event could pass between.
  bool arm() override {
    if (event_ == nullptr) return false;
    const RelaxedCapture relaxed(shared_->gpus->driver());
    shared_->sleeper->arm();
    if (!is_watched_) {
      const Status status =
          shared_->wake_streams.notify_after(key_, *shared_->gpus, event_, shared_->sleeper);
      if (!status.ok()) {
        shared_->sleeper->say_not_notified(status);
        return false;
      }
      is_watched_ = true;
    }
    return shared_->gpus->driver().call.cuEventQuery(event_) == kNotReady;
  }

  EventHandle event() const { return event_; }

  // A wait in a captured stream would become part of the graph.
  Status follow(const GpuEnd& end) override {
    const Driver& driver = shared_->gpus->driver();
    const ScopedContext scope(driver, stream_context_);
    RC_RETURN_IF_ERROR(scope.status());
    const uint64_t stream = std::get<uint64_t>(key_);
    RC_RETURN_IF_ERROR(check_not_captured(driver, stream));
    return static_cast<const EndOfLanes&>(end).hold(handle_of(stream));
  }

 private:
  // The object lives longer than the event is needed.
  void drop_event(bool has_passed) {
    if (event_ == nullptr) return;
    if (is_watched_) shared_->wake_streams.release(key_, has_passed);
    shared_->events->give_back(stream_context_, std::exchange(event_, nullptr));
  }

  const std::shared_ptr<Shared> shared_;
  const WakeStreams::Key key_;
  const ContextHandle stream_context_;
  EventHandle event_;  // null: it has passed
  bool is_watched_ = false;
};

StreamOrders::StreamOrders(std::shared_ptr<Gpus> gpus, std::shared_ptr<EventPool> events,
                           std::shared_ptr<Sleeper> sleeper)
    : shared_(std::make_shared<Shared>()) {
  shared_->gpus = std::move(gpus);
  shared_->events = std::move(events);
  shared_->sleeper = std::move(sleeper);
}

// A stream with a handle may belong to another context than the memory of the operation.
Status StreamOrders::find_context(uint64_t stream, Gpu gpu, ContextHandle& context) const {
  const Driver& driver = shared_->gpus->driver();
  if (stream == 0) {
    return {Code::invalid,
            "stream 0 does not say which default stream it is: pass 1 for the legacy one, or 2 for "
            "the one of the thread."};
  }
  if (is_default(stream)) {
    context = shared_->gpus->context(gpu);
    return {};
  }
  return driver.check(driver.call.cuStreamGetCtx(handle_of(stream), &context), title(stream));
}

Status StreamOrders::record(uint64_t stream, Gpu gpu, std::shared_ptr<StreamOrder>& order) {
  std::shared_ptr<Order> made;
  RC_RETURN_IF_ERROR(record(stream, gpu, made));
  order = std::move(made);
  return {};
}

Status StreamOrders::follow(Gpu gpu, uint64_t stream, uint64_t follower) {
  const Driver& driver = shared_->gpus->driver();
  std::shared_ptr<Order> order;
  RC_RETURN_IF_ERROR(record(stream, gpu, order));
  ContextHandle context = nullptr;
  RC_RETURN_IF_ERROR(find_context(follower, gpu, context));
  const ScopedContext scope(driver, context);
  RC_RETURN_IF_ERROR(scope.status());
  return driver.check(driver.call.cuStreamWaitEvent(handle_of(follower), order->event(), 0),
                      cat("cuStreamWaitEvent on ", title(follower)));
}

Status StreamOrders::record(uint64_t stream, Gpu gpu, std::shared_ptr<Order>& order) {
  const Driver& driver = shared_->gpus->driver();
  RC_RETURN_IF_ERROR(driver.usable());
  ContextHandle context = nullptr;
  RC_RETURN_IF_ERROR(find_context(stream, gpu, context));
  const ScopedContext scope(driver, context);
  RC_RETURN_IF_ERROR(scope.status());
  RC_RETURN_IF_ERROR(check_not_captured(driver, stream));
  EventHandle event = nullptr;
  RC_RETURN_IF_ERROR(shared_->events->take(context, event));
  auto made = std::make_shared<Order>(shared_, stream, gpu, context, event);
  RC_RETURN_IF_ERROR(driver.check(driver.call.cuEventRecord(event, handle_of(stream)),
                                  cat("cuEventRecord on ", title(stream))));
  order = std::move(made);
  return {};
}

Status StreamOrders::find_gpu(uint64_t stream, Gpu& gpu) {
  Gpus& gpus = *shared_->gpus;
  const Driver& driver = gpus.driver();
  RC_RETURN_IF_ERROR(driver.usable());
  ContextHandle context = nullptr;
  if (is_default(stream) && stream != 0) {
    RC_RETURN_IF_ERROR(driver.check(driver.call.cuCtxGetCurrent(&context), "cuCtxGetCurrent"));
    if (context == nullptr) return gpus.use(0, gpu);  // as CUDA's runtime does
  } else {
    RC_RETURN_IF_ERROR(find_context(stream, kHost, context));
  }
  const ScopedContext scope(driver, context);
  RC_RETURN_IF_ERROR(scope.status());
  DeviceNumber device = 0;
  RC_RETURN_IF_ERROR(driver.check(driver.call.cuCtxGetDevice(&device), "cuCtxGetDevice"));
  return gpus.use_device(device, gpu);
}

}  // namespace rdmacoll::cuda
