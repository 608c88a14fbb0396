// The process sets and the timeline of a Session, and the memory that it registers with devices.
#include <chrono>
#include <thread>

#include "api/device_requests.h"
#include "api/session.h"

namespace rdmacoll {
namespace {

// Smaller tensors are copied in each run, since each registration takes entries of the devices'
// tables.
constexpr std::size_t kPinnedBytesMin = 32 << 10;

// How often to check whether peers still need a set that is removed.
constexpr Nanoseconds kDrainSleep = kMillisecond;

}  // namespace

Status Session::add_set(const std::vector<JobRank>& ranks, uint32_t& number) {
  return driver_->inspect([&](Engine& engine) { return engine.add_set(ranks, number); });
}

Status Session::remove_set(uint32_t number, Nanoseconds timeout) {
  const Nanoseconds deadline = timeout == kNever ? kNever : clock_.now() + timeout;
  while (true) {
    const Status status =
        driver_->inspect([&](Engine& engine) { return engine.remove_set(number); });
    if (!status.is_busy() || clock_.now() >= deadline) return status;
    driver_->wake();
    std::this_thread::sleep_for(std::chrono::nanoseconds(kDrainSleep));
  }
}

std::size_t Session::in_flight(uint32_t set) {
  return driver_->inspect([&](Engine& engine) { return engine.in_flight(set); });
}

Status Session::set_timeline(const std::string& path) {
  if (path == timeline_path_) return {};
  std::unique_ptr<Timeline> timeline;
  if (!path.empty()) RC_RETURN_IF_ERROR(Timeline::open(path, clock_, log_, timeline));
  timeline_path_ = path;
  if (driver_ == nullptr) {
    first_timeline_ = std::move(timeline);
    return {};
  }
  // The earlier file is completed here, while the engine goes on.
  timeline =
      driver_->inspect([&](Engine& engine) { return engine.record_to(std::move(timeline)); });
  return {};
}

std::vector<Piece> Session::pin(const Request& request) {
  std::vector<Piece> pinned;
  if (!fabric_->via_nic()) return pinned;
  driver_->inspect([&](Engine&) {
    for (const TensorRef& tensor : request.tensors) {
      if (!may_be_pinned(request, tensor)) continue;
      const std::size_t bytes = tensor.bytes(request.dtype);
      for (std::byte* data : {const_cast<std::byte*>(tensor.input), tensor.output}) {
        if (bytes < kPinnedBytesMin || pool_->contains(data, bytes)) continue;
        if (fabric_->pin({data, bytes})) pinned.push_back({data, bytes});
      }
    }
  });
  return pinned;
}

void Session::unpin(const std::vector<Piece>& pinned) {
  if (pinned.empty() || is_forked_child()) return;
  driver_->inspect([&](Engine&) {
    for (const Piece& piece : pinned) fabric_->unpin(piece);
  });
}

}  // namespace rdmacoll
