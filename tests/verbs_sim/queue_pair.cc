#include "verbs_sim/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/text.h"

namespace rdmacoll::verbs_sim {
namespace {

constexpr uint32_t kPacketNumbers = 1 << 24;
constexpr uint32_t kInlineBytesOfSoftRoce = 16;  // granted to users that request less

bool is_mtu(uint32_t bytes) { return bytes >= 256 && bytes <= 4096 && (bytes & (bytes - 1)) == 0; }

}  // namespace

SimQueuePair::SimQueuePair(SimDevice& device, const rdma::QueuePairLimits& limits, int port,
                           int gid_index, int pkey_index)
    : device_(device),
      fabric_(device.fabric_),
      port_(port),
      gid_index_(gid_index),
      pkey_index_(pkey_index),
      limits_(limits) {
  if (is_soft()) limits_.inline_bytes = std::max(limits_.inline_bytes, kInlineBytesOfSoftRoce);
  const rdma::PortFacts& facts = *device_.adapter_.port(port);
  local_.queue_pair = device_.adapter_.next_queue_pair++;
  local_.first_packet = static_cast<uint32_t>(fabric_.below(kPacketNumbers));
  local_.lid = facts.lid;
  local_.mtu = facts.active_mtu;
  for (const rdma::GidFacts& gid : facts.gids) {
    if (gid.index == gid_index) local_.gid = gid.gid;
  }
}

SimQueuePair::~SimQueuePair() { device_.remove(*this); }

Status SimQueuePair::connect(const rdma::End& remote, const rdma::PathSettings& path) {
  RC_RETURN_IF_ERROR(device_.gone());
  RC_ASSERT(state_ == State::init, cat("queue pair ", local_.queue_pair, " is connected again"));
  RC_ASSERT(path.pkey_index == pkey_index_ && path.gid_index == gid_index_,
            cat("made with GID ", gid_index_, " and PKEY ", pkey_index_, ", connected with GID ",
                path.gid_index, " and PKEY ", path.pkey_index));
  RC_ASSERT(path.retries <= 7 && path.rnr_retries <= 7 && path.timeout <= 31 &&
                path.rnr_timer <= 31 && path.service_level <= 15,
            cat("retries ", int{path.retries}, ", ", int{path.rnr_retries}, ", timers ",
                int{path.timeout}, ", ", int{path.rnr_timer}, ", service level ",
                int{path.service_level}));
  const rdma::PortFacts& facts = *device_.adapter_.port(port_);
  const bool is_ethernet = facts.link == rdma::LinkLayer::ethernet;
  const bool is_known =
      std::any_of(fabric_.adapters_.begin(), fabric_.adapters_.end(), [&](const auto& adapter) {
        const auto& ports = adapter->model.facts.ports;
        return std::any_of(ports.begin(), ports.end(), [&](const rdma::PortFacts& port) {
          return std::any_of(port.gids.begin(), port.gids.end(),
                             [&](const rdma::GidFacts& gid) { return gid.gid == remote.gid; });
        });
      });
  int error = 0;
  if (!is_mtu(path.mtu) || path.mtu > facts.active_mtu || (is_ethernet && !path.needs_grh) ||
      remote.first_packet >= kPacketNumbers) {
    error = EINVAL;
  } else if (is_ethernet && !is_known) {
    error = ENETUNREACH;  // the neighbour's hardware address is resolved here
  }
  if (error != 0) {
    return {Code::failed, cat("connecting queue pair ", local_.queue_pair, " of ",
                              device_.facts_.name, ": ", std::strerror(error))};
  }
  remote_ = remote;
  path_ = path;
  fabric_.connected_.push_back({device_.facts_.name, port_, limits_, path});
  state_ = State::ready;
  return {};
}

void SimQueuePair::fail() {
  if (state_ == State::error) return;  // acknowledged may exceed delivered: those are flushed
  // Delivered but unacknowledged sends may have either result.
  break_at(sends_acknowledged_ + fabric_.below(sends_delivered_ - sends_acknowledged_ + 1),
           rdma::kFlushed);
}

// ---- posting ----

std::size_t SimQueuePair::post_receives(std::span<const rdma::ReceiveRequest> requests,
                                        Status& status) {
  status = device_.gone();
  if (!status.ok()) return 0;
  std::size_t room = limits_.receives - receives_.size();
  if (fabric_.chance(fabric_.policy_.full)) room = fabric_.below(room + 1);
  const std::size_t count = std::min(room, requests.size());
  if (count < requests.size()) ++fabric_.counters_.fulls;
  const bool was_idle = !has_work(kArrivals);
  for (const rdma::ReceiveRequest& request : requests.first(count)) {
    device_.check_local(request.piece);
    receives_.push_back(request);
  }
  if (was_idle && has_work(kArrivals)) wake(kArrivals);  // broken: the receives are flushed
  return count;
}

void SimQueuePair::check_send(const rdma::SendRequest& request) const {
  RC_ASSERT(request.pieces.size() <= limits_.send_pieces,
            cat(request.pieces.size(), " pieces, granted were ", limits_.send_pieces));
  uint64_t bytes = 0;
  for (const rdma::Sge& piece : request.pieces) {
    if (!request.is_inline) device_.check_local(piece);
    bytes += piece.bytes;
  }
  const uint64_t max =
      request.is_inline ? limits_.inline_bytes : device_.adapter_.port(port_)->message_bytes_max;
  RC_ASSERT(bytes <= max, cat(bytes, " bytes in a message, at most ", max, " can be",
                              request.is_inline ? " inline" : ""));
}

std::size_t SimQueuePair::post_sends(std::span<const rdma::SendRequest> requests, Status& status) {
  status = device_.gone();
  if (!status.ok()) return 0;
  RC_ASSERT(state_ != State::init || break_,
            cat("queue pair ", local_.queue_pair, " sends before it is connected"));
  std::size_t room = limits_.sends - sends_.size();
  const bool can_drain = room > 0 || state_ == State::error ||
                         std::any_of(sends_.begin(), sends_.end(),
                                     [](const Send& s) { return s.request.is_signalled; });
  RC_ASSERT(can_drain, cat("all ", limits_.sends, " entries of queue pair ", local_.queue_pair,
                           " hold sends without a signal: none is ever given back"));
  if (fabric_.chance(fabric_.policy_.full)) room = fabric_.below(room + 1);
  const std::size_t count = std::min(room, requests.size());
  if (count < requests.size()) ++fabric_.counters_.fulls;
  const Direction direction = state_ == State::error ? kAcknowledgements : kWire;
  const bool was_idle = !has_work(direction);
  for (const rdma::SendRequest& request : requests.first(count)) {
    check_send(request);
    Send send{.request = request, .pieces = {request.pieces.begin(), request.pieces.end()}};
    send.request.pieces = {};
    for (const rdma::Sge& piece : send.pieces) send.bytes += piece.bytes;
    if (request.is_inline) {
      std::vector<std::byte> copy(send.bytes);
      gather(send, 0, copy);
      send.inlined = std::move(copy);
    }
    send.hash = hash_of(send);
    sends_.push_back(std::move(send));
  }
  if (was_idle && has_work(direction)) wake(direction);
  return count;
}

// ---- what the posted requests hold ----

void SimQueuePair::give_back(const QueuedCompletion& completion) {
  if (completion.is_send) {
    for (; sends_given_back_ <= completion.request; ++sends_given_back_) sends_.pop_front();
  } else {
    for (; receives_given_back_ <= completion.request; ++receives_given_back_)
      receives_.pop_front();
  }
}

bool SimQueuePair::uses(uint32_t local_key) const {
  const auto is_in = [&](const rdma::Sge& piece) {
    return piece.bytes > 0 && piece.local_key == local_key;
  };
  return std::any_of(sends_.begin(), sends_.end(),
                     [&](const Send& send) {
                       return !send.request.is_inline &&
                              std::any_of(send.pieces.begin(), send.pieces.end(), is_in);
                     }) ||
         std::any_of(receives_.begin(), receives_.end(),
                     [&](const rdma::ReceiveRequest& receive) { return is_in(receive.piece); });
}

void SimQueuePair::read(const rdma::Sge& piece, uint64_t at, std::span<std::byte> into) const {
  const SimRegistration* registration = device_.find_local(piece.local_key);
  if (registration != nullptr) return registration->read(piece.address + at, into);
  std::memmove(into.data(), piece.address + at, into.size());
}

void SimQueuePair::gather(const Send& send, uint64_t at, std::span<std::byte> into) const {
  if (into.empty()) return;
  if (!send.inlined.empty()) {
    std::memmove(into.data(), send.inlined.data() + at, into.size());
    return;
  }
  for (const rdma::Sge& piece : send.pieces) {
    if (at >= piece.bytes) {
      at -= piece.bytes;
      continue;
    }
    const std::size_t part = std::min<std::size_t>(piece.bytes - at, into.size());
    read(piece, at, into.first(part));
    into = into.subspan(part);
    at = 0;
    if (into.empty()) return;
  }
}

void SimQueuePair::scatter(const Send& send, std::span<const std::byte> from) const {
  for (const rdma::Sge& piece : send.pieces) {
    const SimRegistration* registration = device_.find_local(piece.local_key);
    registration->write(const_cast<std::byte*>(piece.address), from.first(piece.bytes));
    from = from.subspan(piece.bytes);
  }
}

std::size_t SimQueuePair::hash_of(const Send& send) const {
  std::size_t hash = 0;
  std::vector<std::byte> bytes;
  if (send.request.is_inline) return hash;  // the user may have freed the memory
  if (send.request.kind == rdma::SendKind::read) return hash;
  for (const rdma::Sge& piece : send.pieces) {
    if (piece.bytes == 0) continue;
    bytes.resize(piece.bytes);
    read(piece, 0, bytes);
    const std::string_view view(reinterpret_cast<const char*>(bytes.data()), piece.bytes);
    hash = hash * 31 + std::hash<std::string_view>{}(view);
  }
  return hash;
}

}  // namespace rdmacoll::verbs_sim
