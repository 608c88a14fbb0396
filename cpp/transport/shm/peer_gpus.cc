// Memory on GPUs that two ranks of a node offer each other, for views.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "transport/shm/shm_peer.h"

namespace rdmacoll::shm {
namespace {

Status nonsense() { return Status(Code::failed, "it sent nonsense about its memory on a GPU"); }

}  // namespace

GpuViews ShmPeer::gpu_views(const GpuSlab& slab) const {
  const auto found = offers_.find(slab.begin);
  return found == offers_.end() ? GpuViews::not_offered : found->second;
}

void ShmPeer::offer(const GpuSlab& slab, GpuWork& work) {
  open_offers(work);
  if (!offers_.try_emplace(slab.begin, GpuViews::asked).second) return;
  owner_ = &work;
  work.count_readers(1);
  ++readers_;
  outgoing_.note(RecordKind::gpu_offer, 0, 0, std::as_bytes(std::span(&slab, 1)));
}

// An offer that is not open yet stays until a GPU of this rank is ready.
Status ShmPeer::offered(const RecordHeader& header, const std::byte* payload, Sink& sink) {
  GpuSlab slab;
  const bool is_known =
      header.bytes == sizeof slab && offered_.size() + remote_.gpu_slabs() < kGpuSlabsMax;
  if (!is_known) return nonsense();
  std::memcpy(&slab, payload, sizeof slab);
  slab.uuid.back() = 0;
  GpuWork* const work = sink.gpu_work();
  if (work == nullptr || !open_offered(slab, *work)) {
    offered_.push_back(slab);
    answer(slab, GpuAnswer::later, "");
  }
  return {};
}

void ShmPeer::open_offers(GpuWork& work) {
  std::erase_if(offered_, [&](const GpuSlab& slab) { return open_offered(slab, work); });
}

// Opens the slab, and tells the peer so or the reason why not. False: it is too early for both.
bool ShmPeer::open_offered(const GpuSlab& slab, GpuWork& work) {
  RemoteMemory::OnGpu memory{slab.begin, slab.bytes, nullptr, kHost};
  const Status opened = work.open(slab, memory.mapped, memory.gpu);
  if (opened.is_busy()) return false;
  if (opened.ok()) {
    opener_ = &work;
    remote_.add(memory);
    answer(slab, GpuAnswer::yes, "");
  } else {
    answer(slab, GpuAnswer::no, opened.message());
  }
  return true;
}

void ShmPeer::answer(const GpuSlab& slab, GpuAnswer answer, std::string_view refusal) {
  const std::string_view text = refusal.substr(0, kRefusalBytesMax);
  outgoing_.note(RecordKind::gpu_answer, static_cast<uint32_t>(answer), slab.begin,
                 std::as_bytes(std::span(text)));
}

Status ShmPeer::answered(const RecordHeader& header, const std::byte* payload, Sink& sink) {
  const auto found = offers_.find(header.extra);
  if (found == offers_.end() || header.bytes > kRefusalBytesMax) return nonsense();
  const auto answer = static_cast<GpuAnswer>(header.count);
  found->second = answer == GpuAnswer::yes ? GpuViews::yes : GpuViews::no;
  if (answer == GpuAnswer::no) {
    owner_->count_readers(-1);
    --readers_;
  }
  sink.answered(rank_, std::string(reinterpret_cast<const char*>(payload), header.bytes));
  return {};
}

void ShmPeer::stop_views() {
  const std::vector<RemoteMemory::OnGpu> memory = remote_.take_gpu_memory();
  for (const RemoteMemory::OnGpu& one : memory) opener_->close(one.mapped);
  const std::size_t count = memory.size() + std::exchange(offered_, {}).size();
  if (count > 0 && connected()) {
    outgoing_.note(RecordKind::gpu_closed, static_cast<uint32_t>(count), 0, {});
  }
}

Status ShmPeer::closed(const RecordHeader& header) {
  if (owner_ == nullptr || header.count > static_cast<uint32_t>(readers_)) return nonsense();
  for (auto& [begin, views] : offers_) views = GpuViews::no;
  owner_->count_readers(-static_cast<int>(header.count));
  readers_ -= static_cast<int>(header.count);
  return {};
}

}  // namespace rdmacoll::shm
