// Memory of simulated GPUs, as NICs and kernels see it.
#include "verbs_sim/gpus.h"

#include "verbs_sim/fixture.h"

namespace rdmacoll::verbs_sim {
namespace {

constexpr Gpu kGpu = 0;
constexpr std::size_t kBytes = 1000;

// A host with two NICs and a GPU. Each NIC has a queue pair that is connected to itself.
class VerbsSimGpus : public testing::Test {
 protected:
  struct Nic {
    std::unique_ptr<rdma::Device> device;
    std::vector<std::byte> host = std::vector<std::byte>(kBytes);
    std::unique_ptr<rdma::Registration> of_host;
    std::unique_ptr<rdma::Registration> of_gpu;
    std::unique_ptr<rdma::QueuePair> loop;
  };

  void SetUp() override {
    SimVerbs& verbs = fabric_.add_host({ethernet(0), ethernet(0, 1)}, &gpus_);
    memory_ = gpus_.allocate(kGpu, kBytes);
    ASSERT_TRUE(gpus_.set_sync_memops({.begin = memory_}).ok());
    for (int i = 0; i < 2; ++i) {
      Nic& nic = nics_[i];
      ASSERT_TRUE(verbs.open({ethernet(0, i).facts.name, 64}, nic.device).ok());
      ASSERT_TRUE(nic.device->register_memory(nic.host.data(), kBytes, nic.of_host).ok());
      const rdma::QueuePairLimits limits{.sends = 8, .receives = 8, .allows_reads = true};
      ASSERT_TRUE(nic.device->create_queue_pair(limits, 1, 3, 0, nic.loop).ok());
      rdma::PathSettings path{.gid_index = 3, .mtu = 1024};
      ASSERT_TRUE(nic.loop->connect(nic.loop->local(), path).ok());
    }
  }
  void register_plainly(Nic& nic) {
    const Status status = nic.device->register_gpu_memory(memory_, kBytes, nic.of_gpu);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  int post(Nic& nic, SendKind kind, std::size_t bytes) {
    const rdma::Sge piece{nic.host.data(), static_cast<uint32_t>(bytes), nic.of_host->keys().local};
    const rdma::SendRequest request{.kind = kind,
                                    .is_signalled = true,
                                    .remote_key = nic.of_gpu->keys().remote,
                                    .remote_address = reinterpret_cast<uint64_t>(memory_),
                                    .pieces = {&piece, 1}};
    Status status;
    EXPECT_EQ(nic.loop->post_sends({&request, 1}, status), 1u) << status.message();
    EXPECT_TRUE(fabric_.run());
    std::vector<Completion> done(8);
    EXPECT_EQ(nic.device->poll(done, status), 1u);
    return done[0].status;
  }
  std::byte seen() const { return gpus_.read(memory_, 1)[0]; }

  SimGpus gpus_{{{.bar1_bytes = 256 << 10}}};
  SimFabric fabric_{{.seed = 5, .step_on_poll = 0}};
  std::byte* memory_ = nullptr;
  Nic nics_[2];
};

TEST_F(VerbsSimGpus, a_write_is_visible_when_a_read_of_the_same_nic_has_passed) {
  for (Nic& nic : nics_) register_plainly(nic);
  nics_[0].host[0] = std::byte{7};
  EXPECT_EQ(post(nics_[0], SendKind::write, 100), 0);
  EXPECT_EQ(seen(), std::byte{0});
  EXPECT_EQ(post(nics_[1], SendKind::read, 4), 0);
  EXPECT_EQ(seen(), std::byte{0}) << "the other NIC's read";
  EXPECT_EQ(post(nics_[0], SendKind::read, 4), 0);
  EXPECT_EQ(seen(), std::byte{7});
  EXPECT_EQ(nics_[1].host[0], std::byte{7}) << "a NIC reads bytes that no kernel sees";
}

TEST_F(VerbsSimGpus, a_call_or_the_gpu_itself_shows_writes) {
  register_plainly(nics_[0]);
  gpus_.model(kGpu).write_flush = WriteFlush::call;
  nics_[0].host[0] = std::byte{7};
  EXPECT_EQ(post(nics_[0], SendKind::write, 100), 0);
  EXPECT_EQ(seen(), std::byte{0});
  EXPECT_TRUE(gpus_.flush(kGpu).ok());
  EXPECT_EQ(seen(), std::byte{7});
  gpus_.model(kGpu).write_flush = WriteFlush::none;
  nics_[0].host[0] = std::byte{8};
  EXPECT_EQ(post(nics_[0], SendKind::write, 100), 0);
  EXPECT_EQ(seen(), std::byte{8});
}

TEST_F(VerbsSimGpus, a_registration_of_freed_memory_reaches_other_memory_and_is_counted) {
  Fd descriptor;
  std::byte* page = memory_ - reinterpret_cast<uintptr_t>(memory_) % 4096;
  ASSERT_TRUE(gpus_.dma_buf(kGpu, {page, 4096}, descriptor).ok());
  const rdma::DmaBufPart part{.descriptor = descriptor.get(),
                              .offset = static_cast<uint64_t>(memory_ - page),
                              .memory = memory_,
                              .bytes = kBytes};
  ASSERT_TRUE(nics_[0].device->register_dma_buf(part, nics_[0].of_gpu).ok());
  descriptor = {};
  EXPECT_EQ(post(nics_[0], SendKind::write, 100), 0);
  EXPECT_EQ(gpus_.counters().stale_accesses, 0u);
  std::byte* freed = memory_;
  gpus_.free(memory_);
  EXPECT_EQ(gpus_.bytes_alive(), kBytes) << "the registration keeps it";
  memory_ = gpus_.allocate(kGpu, 2 * kBytes);
  EXPECT_EQ(memory_, freed);
  nics_[0].host[0] = std::byte{7};
  EXPECT_EQ(post(nics_[0], SendKind::write, 100), 0);
  EXPECT_EQ(post(nics_[0], SendKind::read, 100), 0);
  EXPECT_EQ(seen(), std::byte{0});
  EXPECT_GT(gpus_.counters().stale_accesses, 0u);
  nics_[0].of_gpu.reset();
  EXPECT_EQ(gpus_.bytes_alive(), 2 * kBytes);
}

TEST_F(VerbsSimGpus, remapped_memory_is_other_memory) {
  GpuAllocation before, after;
  ASSERT_TRUE(gpus_.find(memory_ + 10, before));
  gpus_.remap(memory_);
  ASSERT_TRUE(gpus_.find(memory_ + 10, after));
  EXPECT_EQ(before.begin, after.begin);
  EXPECT_NE(before.buffer_id, after.buffer_id);
}

TEST_F(VerbsSimGpus, bar1_bounds_the_pages_of_all_registrations) {
  std::unique_ptr<rdma::Registration> many[5];
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(nics_[i % 2].device->register_gpu_memory(memory_, kBytes, many[i]).ok());
  }
  EXPECT_EQ(gpus_.bar1_used(kGpu), 256u << 10);
  EXPECT_FALSE(nics_[0].device->register_gpu_memory(memory_, kBytes, many[4]).ok());
  EXPECT_EQ(gpus_.counters().bar1_refusals, 1u);
  many[2].reset();
  EXPECT_TRUE(nics_[0].device->register_gpu_memory(memory_, kBytes, many[4]).ok());
}

TEST_F(VerbsSimGpus, plain_registration_refuses_gpu_memory_and_the_module_may_be_missing) {
  std::unique_ptr<rdma::Registration> registration;
  EXPECT_FALSE(nics_[0].device->register_memory(memory_, kBytes, registration).ok());
  verbs_sim::AdapterModel without = ethernet(1);
  without.has_peer_memory = false;
  SimVerbs& verbs = fabric_.add_host({without}, &gpus_);
  std::unique_ptr<rdma::Device> device;
  ASSERT_TRUE(verbs.open({without.facts.name, 4}, device).ok());
  const Status status = device->register_gpu_memory(memory_, kBytes, registration);
  EXPECT_NE(status.message().find("modprobe nvidia_peermem"), std::string::npos)
      << status.message();
}

TEST_F(VerbsSimGpus, a_read_needs_leave_of_the_other_end) {
  register_plainly(nics_[0]);
  rdma::QueuePairLimits limits{.sends = 8, .receives = 8};
  ASSERT_TRUE(nics_[0].device->create_queue_pair(limits, 1, 3, 0, nics_[0].loop).ok());
  rdma::PathSettings path{.gid_index = 3, .mtu = 1024};
  ASSERT_TRUE(nics_[0].loop->connect(nics_[0].loop->local(), path).ok());
  EXPECT_NE(post(nics_[0], SendKind::read, 4), 0);
}

using VerbsSimGpusDeathTest = VerbsSimGpus;

TEST_F(VerbsSimGpusDeathTest, the_processor_cannot_read_the_memory) {
  EXPECT_DEATH(
      {
        if (*static_cast<volatile std::byte*>(memory_) == std::byte{0}) ::_exit(0);
      },
      "");
}

}  // namespace
}  // namespace rdmacoll::verbs_sim
