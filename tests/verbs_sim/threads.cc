#include "verbs_sim/threads.h"

#include <chrono>
#include <utility>

namespace rdmacoll::verbs_sim {
namespace {

// The thread looks for work this often although nobody posts: retries wait for the clock.
constexpr std::chrono::microseconds kIdle{500};
constexpr int kStepsAtOnce = 8;

}  // namespace

class ThreadedFabric::LockedRegistration final : public rdma::Registration {
 public:
  LockedRegistration(ThreadedFabric& all, std::unique_ptr<rdma::Registration> own)
      : all_(all), own_(std::move(own)), keys_(own_->keys()) {}
  ~LockedRegistration() override {
    const std::lock_guard lock(all_.mutex_);
    own_.reset();
  }
  rdma::MemoryKeys keys() const override { return keys_; }

 private:
  ThreadedFabric& all_;
  std::unique_ptr<rdma::Registration> own_;
  const rdma::MemoryKeys keys_;
};

class ThreadedFabric::LockedQueuePair final : public rdma::QueuePair {
 public:
  LockedQueuePair(ThreadedFabric& all, std::unique_ptr<rdma::QueuePair> own)
      : all_(all), own_(std::move(own)) {}
  ~LockedQueuePair() override {
    const std::lock_guard lock(all_.mutex_);
    own_.reset();
  }
  rdma::End local() const override {
    return all_.locked([&] { return own_->local(); });
  }
  rdma::QueuePairLimits granted() const override {
    return all_.locked([&] { return own_->granted(); });
  }
  Status connect(const rdma::End& remote, const rdma::PathSettings& path) override {
    return all_.locked([&] { return own_->connect(remote, path); });
  }
  std::size_t post_receives(std::span<const rdma::ReceiveRequest> requests,
                            Status& status) override {
    return all_.posting([&] { return own_->post_receives(requests, status); });
  }
  std::size_t post_sends(std::span<const rdma::SendRequest> requests, Status& status) override {
    return all_.posting([&] { return own_->post_sends(requests, status); });
  }
  void fail() override {
    const std::lock_guard lock(all_.mutex_);
    own_->fail();
    all_.posted_.notify_one();
  }

 private:
  ThreadedFabric& all_;
  std::unique_ptr<rdma::QueuePair> own_;
};

class ThreadedFabric::LockedDevice final : public rdma::Device {
 public:
  LockedDevice(ThreadedFabric& all, std::unique_ptr<rdma::Device> own)
      : all_(all), own_(std::move(own)) {}
  ~LockedDevice() override {
    const std::lock_guard lock(all_.mutex_);
    own_.reset();
  }
  const rdma::DeviceFacts& facts() const override { return own_->facts(); }
  bool is_there() const override {
    return all_.locked([&] { return own_->is_there(); });
  }
  Status register_memory(std::byte* memory, std::size_t bytes,
                         std::unique_ptr<rdma::Registration>& registration) override {
    return made(registration, [&](auto& own) { return own_->register_memory(memory, bytes, own); });
  }
  Status register_gpu_memory(std::byte* memory, std::size_t bytes,
                             std::unique_ptr<rdma::Registration>& registration) override {
    return made(registration,
                [&](auto& own) { return own_->register_gpu_memory(memory, bytes, own); });
  }
  bool takes_dma_bufs() override {
    return all_.locked([&] { return own_->takes_dma_bufs(); });
  }
  Status register_dma_buf(const rdma::DmaBufPart& part,
                          std::unique_ptr<rdma::Registration>& registration) override {
    return made(registration, [&](auto& own) { return own_->register_dma_buf(part, own); });
  }
  Status create_queue_pair(const rdma::QueuePairLimits& limits, int port, int gid_index,
                           int pkey_index, std::unique_ptr<rdma::QueuePair>& queue_pair) override {
    const std::lock_guard lock(all_.mutex_);
    std::unique_ptr<rdma::QueuePair> own;
    RC_RETURN_IF_ERROR(own_->create_queue_pair(limits, port, gid_index, pkey_index, own));
    queue_pair = std::make_unique<LockedQueuePair>(all_, std::move(own));
    return {};
  }
  std::size_t poll(std::span<rdma::Completion> into, Status& status) override {
    return all_.locked([&] { return own_->poll(into, status); });
  }
  Status arm() override {
    return all_.locked([&] { return own_->arm(); });
  }
  int completion_fd() const override { return own_->completion_fd(); }
  void take_completion_events() override {
    const std::lock_guard lock(all_.mutex_);
    own_->take_completion_events();
  }
  int async_fd() const override { return own_->async_fd(); }
  bool take_async_event(rdma::AsyncEvent& event) override {
    return all_.locked([&] { return own_->take_async_event(event); });
  }

 private:
  // Wraps the registration that `make` makes.
  template <typename Make>
  Status made(std::unique_ptr<rdma::Registration>& registration, Make make) {
    std::unique_ptr<rdma::Registration> own;
    RC_RETURN_IF_ERROR(all_.locked([&] { return make(own); }));
    registration = std::make_unique<LockedRegistration>(all_, std::move(own));
    return {};
  }

  ThreadedFabric& all_;
  std::unique_ptr<rdma::Device> own_;
};

class ThreadedFabric::LockedVerbs final : public rdma::Verbs {
 public:
  LockedVerbs(ThreadedFabric& all, SimVerbs& own) : all_(all), own_(own) {}
  Status list(std::vector<rdma::DeviceFacts>& devices) override {
    return all_.locked([&] { return own_.list(devices); });
  }
  Status open(const rdma::OpenOptions& options, std::unique_ptr<rdma::Device>& device) override {
    std::unique_ptr<rdma::Device> own;
    RC_RETURN_IF_ERROR(all_.locked([&] { return own_.open(options, own); }));
    device = std::make_unique<LockedDevice>(all_, std::move(own));
    return {};
  }

 private:
  ThreadedFabric& all_;
  SimVerbs& own_;
};

ThreadedFabric::ThreadedFabric(const FabricPolicy& policy)
    : fabric_(policy, &clock_), thread_([this] { run(); }) {}

ThreadedFabric::~ThreadedFabric() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  posted_.notify_one();
  thread_.join();
}

rdma::Verbs& ThreadedFabric::add_host(const std::vector<AdapterModel>& adapters, GpusOfHost* gpus) {
  const std::lock_guard lock(mutex_);
  verbs_.push_back(std::make_unique<LockedVerbs>(*this, fabric_.add_host(adapters, gpus)));
  return *verbs_.back();
}

FabricCounters ThreadedFabric::counters() {
  return locked([&] { return fabric_.counters(); });
}

void ThreadedFabric::with(const std::function<void(SimFabric&)>& function) {
  const std::lock_guard lock(mutex_);
  function(fabric_);
}

void ThreadedFabric::run() {
  std::unique_lock lock(mutex_);
  while (!is_ending_) {
    bool is_under_way = true;
    for (int i = 0; i < kStepsAtOnce && is_under_way; ++i) is_under_way = fabric_.step();
    if (!is_under_way) {
      posted_.wait_for(lock, kIdle);
      continue;
    }
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
}

}  // namespace rdmacoll::verbs_sim
