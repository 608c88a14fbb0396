#include "verbs_sim/fabric.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "verbs_sim/queue_pair.h"

namespace rdmacoll::verbs_sim {
namespace {

const rdma::GidFacts* gid_at(const rdma::PortFacts& port, int index) {
  for (const rdma::GidFacts& gid : port.gids) {
    if (gid.index == index) return &gid;
  }
  return nullptr;
}

bool same_subnet(const rdma::PortFacts& a, const rdma::PortFacts& b) {
  constexpr std::size_t kPrefixBytes = 8;
  return std::equal(a.gids[0].gid.raw.begin(), a.gids[0].gid.raw.begin() + kPrefixBytes,
                    b.gids[0].gid.raw.begin());
}

bool same_partition(uint16_t a, uint16_t b) {
  constexpr uint16_t kFullMember = 0x8000;
  return ((a ^ b) & ~kFullMember & 0xffff) == 0 && ((a | b) & kFullMember) != 0;
}

std::pair<int, int> link(int a, int b) { return {std::min(a, b), std::max(a, b)}; }

}  // namespace

// ---- one host's library ----

rdma::DeviceFacts SimVerbs::seen(const Adapter& adapter) const {
  rdma::DeviceFacts facts = adapter.model.facts;
  for (rdma::PortFacts& port : facts.ports) {
    if (!adapter.is_port_up(port.number)) port.state = rdma::PortState::down;
    if (!hides_gid_types_) continue;
    for (rdma::GidFacts& gid : port.gids) gid.type = rdma::GidType::unknown;
  }
  return facts;
}

Status SimVerbs::list(std::vector<rdma::DeviceFacts>& devices) {
  RC_RETURN_IF_ERROR(refusal_);
  devices.clear();
  for (const auto& adapter : fabric_.adapters_) {
    if (adapter->host == host_) devices.push_back(seen(*adapter));
  }
  return {};
}

Status SimVerbs::open(const rdma::OpenOptions& options, std::unique_ptr<rdma::Device>& device) {
  RC_RETURN_IF_ERROR(refusal_);
  for (const auto& adapter : fabric_.adapters_) {
    if (adapter->host != host_ || adapter->model.facts.name != options.device) continue;
    const auto max = static_cast<uint32_t>(adapter->model.facts.completions_max);
    if (options.completions == 0 || options.completions > max) {
      return {Code::failed,
              cat("a completion queue of ", options.completions, " entries on ", options.device,
                  ", which has from 1 to ", max, ": ", std::strerror(EINVAL))};
    }
    device = std::make_unique<SimDevice>(fabric_, *adapter, seen(*adapter), options.completions);
    return {};
  }
  return {Code::invalid, cat("there is no RDMA device ", options.device, " on host ", host_)};
}

// ---- the fabric ----

SimFabric::SimFabric(const FabricPolicy& policy, const Clock* clock)
    : policy_(policy), clock_(clock), random_(policy.seed) {}

SimFabric::~SimFabric() {
  RC_ASSERT(devices_.empty(), cat(devices_.size(), " devices outlive their fabric"));
}

SimVerbs& SimFabric::add_host(const std::vector<AdapterModel>& adapters, GpusOfHost* gpus) {
  const int host = static_cast<int>(verbs_.size());
  for (const AdapterModel& model : adapters) {
    auto adapter = std::make_unique<Adapter>();
    adapter->model = model;
    adapter->host = host;
    adapter->gpus = gpus;
    for (const rdma::PortFacts& port : model.facts.ports) {
      adapter->is_up.push_back(port.state == rdma::PortState::active);
    }
    adapters_.push_back(std::move(adapter));
  }
  verbs_.push_back(std::make_unique<SimVerbs>(*this, host));
  return *verbs_.back();
}

uint64_t SimFabric::delay() {
  const uint64_t steps = 1 + below(static_cast<uint64_t>(std::max(policy_.delay_max, 1)));
  return chance(policy_.stall) ? 30 * steps : steps;
}

bool SimFabric::step() {
  ++step_;
  ++counters_.steps;
  using Turn = std::pair<SimQueuePair*, SimQueuePair::Direction>;
  std::vector<Turn> turns;
  bool is_under_way = false;
  for (SimDevice* device : devices_) {
    if (dead_.contains(device->adapter_.host) || device->adapter_.is_broken) continue;
    for (SimQueuePair* queue_pair : device->queue_pairs_) {
      for (int i = 0; i < SimQueuePair::kDirections; ++i) {
        const auto direction = static_cast<SimQueuePair::Direction>(i);
        if (!queue_pair->has_work(direction)) continue;
        is_under_way = true;
        if (queue_pair->is_due(direction)) turns.emplace_back(queue_pair, direction);
      }
    }
  }
  for (std::size_t i = turns.size(); i > 1; --i) std::swap(turns[i - 1], turns[below(i)]);
  for (const auto& [queue_pair, direction] : turns) {
    // An earlier turn may have broken the queue pair.
    if (queue_pair->has_work(direction)) queue_pair->act(direction);
  }
  return is_under_way;
}

bool SimFabric::run(int steps_max) {
  for (int i = 0; i < steps_max; ++i) {
    if (!step()) return true;
  }
  return false;
}

SimQueuePair* SimFabric::answering(const SimQueuePair& from) const {
  for (const SimDevice* device : devices_) {
    SimQueuePair* to = device->find_queue_pair(from.remote_.queue_pair);
    if (to == nullptr || to->state_ != SimQueuePair::State::ready) continue;
    const bool means_each_other = to->remote_.queue_pair == from.local_.queue_pair &&
                                  to->remote_.first_packet == from.local_.first_packet &&
                                  from.remote_.first_packet == to->local_.first_packet;
    if (means_each_other && reaches(from, *to) && reaches(*to, from)) return to;
  }
  return nullptr;
}

bool SimFabric::reaches(const SimQueuePair& from, const SimQueuePair& to) const {
  const Adapter& here = from.device_.adapter_;
  const Adapter& there = to.device_.adapter_;
  if (dead_.contains(there.host) || there.is_broken || !there.is_port_up(to.port_)) return false;
  if (!here.is_port_up(from.port_) || cut_.contains(link(here.host, there.host))) return false;
  const rdma::PortFacts& near = *here.port(from.port_);
  const rdma::PortFacts& far = *there.port(to.port_);
  if (near.link != far.link) return false;
  if (!same_partition(near.pkeys[static_cast<std::size_t>(from.pkey_index_)],
                      far.pkeys[static_cast<std::size_t>(to.pkey_index_)]))
    return false;
  if (!from.path_.needs_grh) {
    return same_subnet(near, far) && from.remote_.lid != 0 && from.remote_.lid == far.lid;
  }
  // The far end accepts packets of one kind only (RoCE v1 is not v2), and only from the source that
  // it was connected to.
  const rdma::GidFacts* source = gid_at(near, from.path_.gid_index);
  const rdma::GidFacts* target = gid_at(far, to.path_.gid_index);
  return target->type == source->type && target->gid == from.remote_.gid &&
         source->gid == to.remote_.gid;
}

// ---- faults ----

void SimFabric::kill(int host) { dead_.insert(host); }
void SimFabric::cut(int a, int b) { cut_.insert(link(a, b)); }
void SimFabric::heal(int a, int b) { cut_.erase(link(a, b)); }

void SimFabric::lower_port(int host, const std::string& device, int port) {
  set_port(host, device, port, false);
}
void SimFabric::raise_port(int host, const std::string& device, int port) {
  set_port(host, device, port, true);
}

Adapter& SimFabric::adapter(int host, const std::string& name) {
  for (const auto& adapter : adapters_) {
    if (adapter->host == host && adapter->model.facts.name == name) return *adapter;
  }
  assertion_failed("adapter", __FILE__, __LINE__, cat("no ", name, " on host ", host));
}

void SimFabric::tell(const Adapter& adapter, const rdma::AsyncEvent& event) {
  for (SimDevice* device : devices_) {
    if (&device->adapter_ == &adapter) device->tell(event);
  }
}

void SimFabric::set_port(int host, const std::string& name, int port, bool is_up) {
  Adapter& changed = adapter(host, name);
  const auto& ports = changed.model.facts.ports;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    if (ports[i].number == port) changed.is_up[i] = is_up;
  }
  tell(changed, {.kind = is_up ? rdma::EventKind::port_up : rdma::EventKind::port_down,
                 .port = port,
                 .text = is_up ? "port active" : "port error"});
}

void SimFabric::break_device(int host, const std::string& name) {
  adapter(host, name).is_broken = true;
  tell(adapter(host, name),
       {.kind = rdma::EventKind::device_fatal, .text = "local catastrophic error"});
}

void SimFabric::take_away(int host, const std::string& name) {
  Adapter& taken = adapter(host, name);
  taken.is_gone = true;
  for (SimDevice* device : devices_) {
    if (&device->adapter_ != &taken) continue;
    for (SimQueuePair* queue_pair : device->queue_pairs_) queue_pair->fail();
  }
}

void SimFabric::break_completion_queue(rdma::Device& device) {
  auto& broken = static_cast<SimDevice&>(device);
  broken.is_queue_broken_ = true;
  broken.tell({.kind = rdma::EventKind::completion_queue_fatal, .text = "CQ error"});
}

void SimFabric::break_queue_pair(rdma::QueuePair& queue_pair) {
  auto& broken = static_cast<SimQueuePair&>(queue_pair);
  broken.fail();
  broken.device_.tell({.kind = rdma::EventKind::queue_pair_fatal,
                       .queue_pair = broken.local_.queue_pair,
                       .text = "local work queue catastrophic error"});
}

}  // namespace rdmacoll::verbs_sim
