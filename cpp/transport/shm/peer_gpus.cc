// Memory on GPUs that two ranks of a node offer each other, for views.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

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
  ++readers_;
  outbound_.note(RecordKind::gpu_offer, 0, 0, std::as_bytes(std::span(&slab, 1)));
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
  opener_ = &work;
  RemoteMemory::OnGpu memory{slab.begin, slab.bytes, nullptr, kHost};
  const Status opened = work.open(slab, memory.mapped, memory.gpu);
  if (opened.is_busy()) return false;
  if (opened.ok()) {
    remote_.add(memory);
    answer(slab, GpuAnswer::yes, "");
  } else {
    answer(slab, GpuAnswer::no, opened.message());
  }
  return true;
}

void ShmPeer::answer(const GpuSlab& slab, GpuAnswer answer, std::string_view refusal) {
  const std::string_view text = refusal.substr(0, kRefusalBytesMax);
  outbound_.note(RecordKind::gpu_answer, static_cast<uint32_t>(answer), slab.begin,
                 std::as_bytes(std::span(text)));
}

Status ShmPeer::answered(const RecordHeader& header, const std::byte* payload, Sink& sink) {
  const auto found = offers_.find(header.extra);
  if (found == offers_.end() || header.bytes > kRefusalBytesMax) return nonsense();
  const auto answer = static_cast<GpuAnswer>(header.count);
  found->second = answer == GpuAnswer::yes ? GpuViews::yes : GpuViews::no;
  if (answer == GpuAnswer::no) --readers_;
  sink.answered(rank_, std::string(reinterpret_cast<const char*>(payload), header.bytes));
  return {};
}

void ShmPeer::stop_views() {
  for (const RemoteMemory::OnGpu& one : remote_.take_gpu_memory()) opener_->close(one.mapped);
  for (const GpuSlab& slab : std::exchange(offered_, {})) {
    if (opener_ != nullptr) opener_->forget(slab);
  }
  if (to_peer_) opener_->end_when_closed(std::move(to_peer_));
}

// The end of the socket tells the peer that it may free the memory that this rank had open, and
// tells this rank the same of its own memory. If the peer ends first, steps of this rank read that
// memory until stop_views(). Then the driver may take long to close it. So a byte tells the peer at
// once that this rank has ended. shutdown() is needed since a forked child may hold a copy of the
// socket.
void ShmPeer::end_socket() {
  if (opener_ != nullptr) to_peer_ = Fd(::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0));
  if (to_peer_) {
    (void)::send(socket_.get(), &kEnded, sizeof kEnded, MSG_DONTWAIT | MSG_NOSIGNAL);
  } else {
    ::shutdown(socket_.get(), SHUT_WR);
  }
  if (readers_ == 0) ::shutdown(socket_.get(), SHUT_RD);
  if (to_peer_ && remote_.gpu_slabs() == 0 && offered_.empty()) stop_views();
  if (readers_ > 0) owner_->await_end(std::move(socket_));
  socket_.reset();
}

}  // namespace rdmacoll::shm
