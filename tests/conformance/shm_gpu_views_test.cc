// Memory of a peer's GPU that this rank reads over shared memory.
#include <array>

#include "conformance/shm_puppet.h"
#include "memory/gpu_work.h"

namespace rdmacoll::conformance {
namespace {

// A rank with a GPU that reaches the memory of peers.
class OpeningGpu final : public GpuWork {
 public:
  int prepare(Gpu, uint64_t) override { return 0; }
  uint64_t version() const override { return 0; }
  const GpuSlab& slab(Gpu, int) const override { return none_; }
  void enable(Gpu) override {}
  uint64_t bytes_min(Gpu) const override { return 0; }
  std::byte* allocate(Gpu, uint64_t) override { return nullptr; }
  void free(Gpu, std::byte*) override {}
  Status open(const GpuSlab&, std::byte*& memory, Gpu& gpu) override {
    memory = memory_.data();
    gpu = 0;
    return {};
  }
  void close(std::byte*) override { ++closed; }
  void forget(const GpuSlab&) override {}
  void end_when_closed(Fd) override {}
  void await_end(Fd) override {}
  const GpuSlab* allocation_of(const Piece&, bool) override { return nullptr; }

  int closed = 0;

 private:
  const GpuSlab none_;
  std::array<std::byte, 256> memory_{};
};

class ShmGpuViews : public testing::Test {
 protected:
  // The peer shows a piece of its memory, and this rank reads it.
  void view(uint64_t address, uint64_t flag) {
    RecordHeader header = Puppet::record(RecordKind::publish);
    header.count = 1;
    header.traffic = Traffic::view;
    ASSERT_TRUE(puppet_.transport->await(1, 0, 0, 7).ok());
    puppet_.write_pieces(header, {{address, 8 | flag}});
    ASSERT_TRUE(puppet_.sink.views.contains(7));
  }

  OpeningGpu gpu_;  // outlives the transport
  Puppet puppet_;
};

// The peer may have ended before this rank's GPU has read the memory, and nothing keeps it.
TEST_F(ShmGpuViews, a_peer_that_has_ended_is_reported_by_the_poll_behind_the_read) {
  puppet_.connect();
  puppet_.sink.work = &gpu_;
  const GpuSlab slab{.process = 9, .begin = 0x10000, .bytes = 256};
  RecordHeader offer = Puppet::record(RecordKind::gpu_offer);
  offer.bytes = sizeof slab;
  puppet_.write(offer, std::as_bytes(std::span(&slab, 1)));
  ASSERT_NO_FATAL_FAILURE(view(slab.begin + 16, shm::kOnGpu));
  EXPECT_EQ(puppet_.sink.views.at(7).pieces.at(0).gpu, 0);

  puppet_.transport->poll(puppet_.sink);
  puppet_.socket.reset();
  ASSERT_TRUE(puppet_.transport->release(1, 0, 0).ok());
  puppet_.transport->poll(puppet_.sink);  // at the time of the last poll
  EXPECT_EQ(puppet_.sink.failures[1].size(), 1u);
  puppet_.transport->stop_views(1);
  EXPECT_EQ(gpu_.closed, 1);
}

// Host memory stays, so its reads cost no look at the sockets.
TEST_F(ShmGpuViews, a_read_of_host_memory_leaves_that_to_later_polls) {
  puppet_.connect();
  ASSERT_NO_FATAL_FAILURE(view(0, shm::kInPool));
  puppet_.transport->poll(puppet_.sink);
  puppet_.socket.reset();
  ASSERT_TRUE(puppet_.transport->release(1, 0, 0).ok());
  puppet_.transport->poll(puppet_.sink);
  EXPECT_TRUE(puppet_.sink.failures.empty());
  puppet_.poll();
  EXPECT_EQ(puppet_.sink.failures[1].size(), 1u);
}

}  // namespace
}  // namespace rdmacoll::conformance
