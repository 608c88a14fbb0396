#include "transport/rdma/gpu_flushes.h"

#include <algorithm>
#include <utility>

#include "base/small_range.h"
#include "base/text.h"

namespace rdmacoll::rdma {

GpuFlushes::GpuFlushes(GpuRegistrations& registrations, std::span<Device* const> devices,
                       std::span<const Rail> rails, const PathSettings& path,
                       Transport::Counters& counters)
    : registrations_(registrations),
      devices_(devices),
      rails_(rails),
      path_(path),
      counters_(counters) {}

GpuFlushes::~GpuFlushes() {
  for (Nic& nic : nics_) nic.queue_pair.reset();  // no NIC reads into the memory afterwards
}

Status GpuFlushes::open(std::size_t rail) {
  if (!is_registered_) {
    RC_RETURN_IF_ERROR(registered_.open(devices_, landing_.data(), landing_.size(), counters_));
    is_registered_ = true;
  }
  const Rail& port = rails_[rail];
  std::unique_ptr<QueuePair> made;
  RC_RETURN_IF_ERROR(
      devices_[rail]->create_queue_pair({.sends = 1, .receives = 1, .allows_reads = true},
                                        port.port, port.gid_index, port.pkey_index, made));
  PathSettings path = path_;
  path.gid_index = port.gid_index;
  path.pkey_index = port.pkey_index;
  path.needs_grh = port.link == LinkLayer::ethernet;
  path.mtu = port.mtu;
  if (port.is_software && path.retries == kRetriesForEver) --path.retries;
  RC_RETURN_IF_ERROR(made->connect(made->local(), path));
  nics_[rail].queue_pair = std::move(made);
  return {};
}

void GpuFlushes::ask(std::size_t rail, const std::byte* written, FlushWaiter& waiter,
                     uint32_t number) {
  Nic& nic = nics_[rail];
  const Piece memory{const_cast<std::byte*>(written), 1, registrations_.gpu(written)};
  registrations_.hold_again(memory);
  nic.waiting.push_back({&waiter, number, memory});
}

bool GpuFlushes::needs_push() const {
  return is_any_of(nics_, [](const Nic& nic) { return !nic.waiting.empty() && !nic.is_reading; });
}

void GpuFlushes::push() {
  for (std::size_t rail = 0; rail < devices_.size(); ++rail) push(rail);
}

void GpuFlushes::push(std::size_t rail) {
  Nic& nic = nics_[rail];
  if (nic.waiting.empty() || nic.is_reading) return;
  const Piece written = nic.waiting.front().written;
  if (nic.fault.empty()) {
    Status status;
    if (nic.queue_pair == nullptr) status = open(rail);
    if (status.ok()) status = read(rail, written.data, nic.is_reading);
    if (!status.ok()) nic.fault = status.message();
  }
  if (!nic.fault.empty()) return end(nic.waiting, nic.fault);
  if (!nic.is_reading) return;  // the queue was full
  const auto others = std::stable_partition(
      nic.waiting.begin(), nic.waiting.end(),
      [&](const Ticket& ticket) { return ticket.written.gpu != written.gpu; });
  nic.under_way.assign(others, nic.waiting.end());
  nic.waiting.erase(others, nic.waiting.end());
}

Status GpuFlushes::read(std::size_t rail, const std::byte* written, bool& is_posted) {
  const Sge piece{landing_.data() + rail, 1, registered_.keys()[rail].local};
  const SendRequest request{.kind = SendKind::read,
                            .is_signalled = true,
                            .remote_key = registrations_.keys(written)[rail].remote,
                            .remote_address = reinterpret_cast<uint64_t>(written),
                            .pieces = {&piece, 1}};
  Status status;
  is_posted = nics_[rail].queue_pair->post_sends({&request, 1}, status) == 1;
  return status;
}

bool GpuFlushes::owns(std::size_t rail, uint32_t queue_pair) const {
  const auto& own = nics_[rail].queue_pair;
  return own != nullptr && own->local().queue_pair == queue_pair;
}

void GpuFlushes::handle(std::size_t rail, const Completion& completion) {
  Nic& nic = nics_[rail];
  if (completion.status != 0 && nic.fault.empty()) {
    nic.fault = cat("a flush of GPU memory failed: ", completion_text(completion.status), ", on ",
                    rails_[rail].text());
  }
  nic.is_reading = false;
  end(nic.under_way, nic.fault);
}

void GpuFlushes::end(std::vector<Ticket>& tickets, const std::string& fault) {
  for (const Ticket& ticket : std::exchange(tickets, {})) {
    registrations_.release(ticket.written);
    if (ticket.waiter == nullptr) continue;
    if (fault.empty()) {
      ticket.waiter->flushed(ticket.number);
    } else {
      ticket.waiter->flush_failed(fault);
    }
  }
}

// The memory of a read under way stays held until its end.
void GpuFlushes::forget(const FlushWaiter& waiter) {
  for (Nic& nic : nics_) {
    for (std::vector<Ticket>* tickets : {&nic.waiting, &nic.under_way}) {
      for (Ticket& ticket : *tickets) {
        if (ticket.waiter == &waiter) ticket.waiter = nullptr;
      }
    }
  }
}

}  // namespace rdmacoll::rdma
