// Memory on GPUs that two ranks of a node offer each other, for views.
#include <algorithm>
#include <utility>

#include "base/text.h"
#include "transport/sim/sim_transport.h"

namespace rdmacoll {

GpuViews SimTransport::gpu_views(int peer, const GpuSlab& slab) const {
  const auto shared = shared_gpus_.find(peer);
  if (shared == shared_gpus_.end()) return GpuViews::not_offered;
  const auto found = shared->second.offers.find(slab.begin);
  return found == shared->second.offers.end() ? GpuViews::not_offered : found->second;
}

void SimTransport::offer(int peer, const GpuSlab& slab, GpuWork& work) {
  if (peers_[peer].dropped) return;
  open_offers(peer, work);
  if (!shared_gpus_[peer].offers.try_emplace(slab.begin, GpuViews::asked).second) return;
  network_.send(rank_, peer, kHeaderBytes, SimNetwork::Order::ordered, [this, peer, slab] {
    if (other(peer).peers_[rank_].dropped) return;
    other(peer).arrive({.kind = Arrival::Kind::offered, .peer = rank_, .slab = slab});
  });
}

void SimTransport::open_offers(GpuWork& work) {
  for (auto& [peer, shared] : shared_gpus_) {
    if (!peers_[peer].dropped) open_offers(peer, work);
  }
}

void SimTransport::open_offers(int peer, GpuWork& work) {
  std::erase_if(shared_gpus_[peer].offered,
                [&](const GpuSlab& slab) { return open_offered(peer, slab, work); });
}

void SimTransport::offered(int peer, const GpuSlab& slab, Sink& sink) {
  GpuWork* const work = sink.gpu_work();
  if (work != nullptr && open_offered(peer, slab, *work)) return;
  shared_gpus_[peer].offered.push_back(slab);
  answer(peer, slab, GpuViews::no, "");  // later
}

// False: it is too early.
bool SimTransport::open_offered(int peer, const GpuSlab& slab, GpuWork& work) {
  SharedGpus& shared = shared_gpus_[peer];
  shared.opener = &work;
  SharedGpus::Opened opened{.slab = slab};
  const Status status = work.open(slab, opened.memory, opened.gpu);
  if (status.is_busy()) return false;
  if (status.ok()) shared.opened.push_back(opened);
  answer(peer, slab, status.ok() ? GpuViews::yes : GpuViews::no, status.message());
  return true;
}

void SimTransport::answer(int peer, const GpuSlab& slab, GpuViews views,
                          const std::string& refusal) {
  network_.send(rank_, peer, kHeaderBytes, SimNetwork::Order::ordered,
                [this, peer, slab, views, refusal] {
                  if (other(peer).peers_[rank_].dropped) return;
                  other(peer).arrive({.kind = Arrival::Kind::answered,
                                      .peer = rank_,
                                      .cause = refusal,
                                      .slab = slab,
                                      .views = views});
                });
}

void SimTransport::answered(const Arrival& arrival, Sink& sink) {
  shared_gpus_[arrival.peer].offers[arrival.slab.begin] = arrival.views;
  sink.answered(arrival.peer, arrival.cause);
}

// The pieces of a view as this rank reaches them. Returns whether some are on a GPU.
bool SimTransport::locate_on_gpus(int peer, std::vector<RemotePiece>& pieces) const {
  bool any = false;
  for (RemotePiece& piece : pieces) {
    if (piece.gpu == kHost || piece.bytes == 0) continue;
    const auto& opened = shared_gpus_.at(peer).opened;
    const auto found = std::ranges::find_if(opened, [&](const SharedGpus::Opened& one) {
      const uint64_t offset = piece.address - one.slab.begin;
      return offset < one.slab.bytes && piece.bytes <= one.slab.bytes - offset;
    });
    RC_ASSERT(found != opened.end(),
              cat("rank ", rank_, " sees memory of rank ", peer, " that it has not opened"));
    piece.mapped = found->memory + (piece.address - found->slab.begin);
    piece.gpu = found->gpu;
    any = true;
  }
  return any;
}

void SimTransport::stop_views(int peer) {
  const auto found = shared_gpus_.find(peer);
  if (found == shared_gpus_.end() || found->second.opener == nullptr) return;
  SharedGpus& shared = found->second;
  for (const auto& one : std::exchange(shared.opened, {})) shared.opener->close(one.memory);
  for (const GpuSlab& slab : std::exchange(shared.offered, {})) shared.opener->forget(slab);
}

std::string SimTransport::end_of(int peer, bool on_gpu) {
  const bool has_ended = network_.is_dead(peer) ? on_gpu : other(peer).peers_[rank_].dropped;
  return has_ended ? "closed its connection (process ended)" : "";
}

}  // namespace rdmacoll
