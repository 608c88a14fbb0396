// The end of a connection, and the conditions for sleeping.
#include <algorithm>
#include <utility>

#include "base/small_range.h"
#include "base/text.h"
#include "transport/rdma/rdma_peer.h"

namespace rdmacoll::rdma {

bool RdmaPeer::end(Nanoseconds now, Sink& sink) {
  if (has_failed() || !has_ended()) return false;
  const bool moved = report(sink);
  if (now < claim_until()) return moved;
  fail(sink, end_);
  return true;
}

void RdmaPeer::fail(Sink& sink, const std::string& cause) {
  if (has_failed()) return;
  const std::string reason = cause;  // close() may clear the string that `cause` refers to
  close();
  sink.peer_failed(rank_, reason);
}

void RdmaPeer::give_up(Sink& sink, const std::string& cause) {
  if (has_failed()) return;
  socket_.send_last(cause);
  fail(sink, cause);
}

// Called when no cause of the echo has appeared. Names a lost device, which reports nothing more.
std::string RdmaPeer::cause_of_echo() const {
  for (std::size_t rail = 0; rail < ports_.rails.size(); ++rail) {
    if (ports_.devices[rail]->is_there()) continue;
    return cat("the RDMA device of rank ", world_.number(world_.rank), ", ",
               ports_.rails[rail].text(),
               ", does not answer any more: it was removed from the machine, its driver was "
               "unloaded, or it has failed; ",
               echo_);
  }
  return echo_;
}

void RdmaPeer::close() {
  state_ = State::failed;
  for (Pair& pair : pairs_) {
    pair.close([this](const Sent& sent) {
      if (sent.stage != 0) rank_state_.send_stages.free(static_cast<uint16_t>(sent.stage - 1));
    });
  }
  link_.pairs = {};
  link_.outbox.clear();
  link_.ahead.clear();
  link_.fault.clear();
  echo_.clear();
  outbound_.clear();
  inbound_.clear();
  socket_.close();
  registered_ = {};
  pool_.free(std::exchange(memory_, nullptr));
}

bool RdmaPeer::may_sleep() const {
  if (has_ended()) return !outbound_.has_report() && !inbound_.has_report();
  const bool all = are_all_of(link_.pairs, [](const Pair& pair) { return pair.is_flushed(); });
  return all && echo_.empty() && socket_.is_flushed() && !outbound_.has_report() &&
         !inbound_.has_report() && link_.fault.empty();
}

bool RdmaPeer::has_more() const {
  return !has_ended() && (!link_.outbox.is_empty() || outbound_.has_work() ||
                          outbound_.awaits_grants() || inbound_.has_work());
}

// A send without a grant cannot leave and does not count.
bool RdmaPeer::is_flushed() const {
  if (has_failed() || has_ended()) return true;
  const bool all = are_all_of(link_.pairs, [](const Pair& pair) { return pair.in_flight() == 0; });
  return all && may_sleep() && link_.outbox.is_empty() && !outbound_.has_work();
}

}  // namespace rdmacoll::rdma
