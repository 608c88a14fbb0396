// The end of a worker that has lost a server: its error, and the ranks that it informs.
#include <cstdlib>
#include <utility>

#include "base/text.h"
#include "ps/client.h"

namespace rdmacoll::ps {
namespace {

// The limit for the message about a lost server, which may come from the server itself.
constexpr std::size_t kWhyBytesMax = 2000;

}  // namespace

// The error if a server ends before its workers. If the server ends because of another rank, the
// error is the message about that rank.
Status Client::departure(int peer, const std::string& cause) const {
  constexpr std::string_view kHeard = "RankFailedError: ", kRank = "rank ";
  int blamed = peer;
  std::string sentence =
      cat(world_.describe(peer), " has left the job (", cause, ")", world_.loss(peer));
  const auto named = cause.find(kRank);
  if (cause.starts_with(kHeard) && named != std::string::npos) {
    const int rank = world_.rank_of(JobRank(std::atoi(cause.c_str() + named + kRank.size())));
    if (rank >= 0) {
      blamed = rank;
      sentence = cause.substr(kHeard.size());
    }
  }
  return world_.blaming(blamed, std::move(sentence), cat("left the job: ", cause));
}

void Client::peer_failed(int peer, const std::string& cause) {
  for (Server& server : servers_) {
    if (server.rank != peer || server.has_left) continue;
    server.is_lost = true;
    if (!stopped_.ok()) return fail(stopped_);
    lose(world_.failed(peer, cause));
  }
}

void Client::lose(Status failure) {
  is_sending_reason_ = is_sending_reason_ || failure_.ok();
  fail(std::move(failure));
}

// No call ends meanwhile, since the remaining servers may still access the callers' memory.
void Client::send_reason() {
  Request why = make(RequestKind::leave).request;
  why.step = static_cast<uint64_t>(failure_.detail().rank.value());
  why.text = failure_.message().substr(0, kWhyBytesMax);
  bool is_over = true;
  for (Server& server : servers_) {
    if (server.is_lost || server.has_left) continue;
    server.has_reason = server.has_reason || transport_.post_control(server.rank, encode(why)).ok();
    is_over = is_over && server.has_reason;
  }
  is_sending_reason_ = !is_over || !transport_.flushed();
}

void Client::fail(Status failure) {
  if (failure_.ok()) failure_ = std::move(failure);
}

// Closes all connections after a failure, so that no server accesses the callers' memory. Then ends
// all calls.
bool Client::end_all() {
  bool moved = !std::exchange(has_given_up_, true);
  for (Server& server : servers_) {
    if (moved) transport_.fail(server.rank);
  }
  for (Server& server : servers_) {
    for (Pending& pending : std::exchange(server.pending, {})) {
      if (pending.call->status.ok()) pending.call->status = failure_;
      end_one(pending.call);
      moved = true;
    }
  }
  return moved;
}

}  // namespace rdmacoll::ps
