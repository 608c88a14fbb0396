// Memory of a peer's GPU that this rank reads over shared memory.
#include <array>
#include <string>
#include <vector>

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
  void close(std::byte*) override { calls.emplace_back("close"); }
  void forget(const GpuSlab&) override { calls.emplace_back("forget"); }
  void end_when_closed(Fd) override { calls.emplace_back("end"); }
  void await_end(Fd) override {}
  const GpuSlab* allocation_of(const Piece&, bool) override { return nullptr; }

  using Calls = std::vector<std::string>;
  Calls calls;

 private:
  const GpuSlab none_{};
  std::array<std::byte, 256> memory_{};
};

constexpr GpuSlab kSlab{.process = 9, .begin = 0x10000, .bytes = 256};

void offer_slab(Puppet& puppet) {
  RecordHeader offer = Puppet::record(RecordKind::gpu_offer);
  offer.bytes = sizeof kSlab;
  puppet.write(offer, std::as_bytes(std::span(&kSlab, 1)));
}

// Nothing keeps the memory of a peer's GPU when the peer ends, so its end must be seen at once.
TEST(ShmGpuViews, tell_the_end_of_their_peer_before_a_poll) {
  OpeningGpu gpu;  // outlives the transport
  Puppet puppet;
  puppet.connect();
  puppet.sink.work = &gpu;
  offer_slab(puppet);
  RecordHeader view = Puppet::record(RecordKind::publish);
  view.count = 1;
  view.traffic = Traffic::view;
  ASSERT_TRUE(puppet.transport->await(1, 0, 0, 7).ok());
  puppet.write_pieces(view, {{kSlab.begin + 16, 8 | shm::kOnGpu}});
  ASSERT_TRUE(puppet.sink.views.contains(7));
  EXPECT_EQ(puppet.sink.views.at(7).pieces.at(0).gpu, 0);

  EXPECT_EQ(puppet.transport->end_of(1, true), "");
  puppet.socket.reset();
  EXPECT_NE(puppet.transport->end_of(1, true), "");
  EXPECT_NE(puppet.transport->end_of(1, true), "") << "asked again";
  EXPECT_TRUE(puppet.sink.failures.empty());
  puppet.poll();
  EXPECT_EQ(puppet.sink.failures[1].size(), 1u);
  EXPECT_EQ(puppet.transport->end_of(1, true), puppet.sink.failures[1][0])
      << "a read may still end";
  // The peer frees its memory when this side of the connection ends. Steps read it until then.
  EXPECT_EQ(gpu.calls, OpeningGpu::Calls());
  puppet.transport->stop_views(1);
  EXPECT_EQ(gpu.calls, (OpeningGpu::Calls{"close", "end"}));
}

// A rank that ends by itself stops the views first.
TEST(ShmGpuViews, end_the_connection_once_they_are_stopped) {
  OpeningGpu gpu;
  Puppet puppet;
  puppet.connect();
  puppet.sink.work = &gpu;
  offer_slab(puppet);
  puppet.poll();
  puppet.transport->stop_views(1);
  EXPECT_EQ(gpu.calls, (OpeningGpu::Calls{"close"}));
  puppet.transport->fail(1);
  EXPECT_EQ(gpu.calls, (OpeningGpu::Calls{"close", "end"}));
  puppet.transport->stop_views(1);
  EXPECT_EQ(gpu.calls, (OpeningGpu::Calls{"close", "end"}));
}

}  // namespace
}  // namespace rdmacoll::conformance
