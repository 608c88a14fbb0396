// How a Fabric starts: listen, compare cards, find the node, take up the world.
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string_view>

#include "base/system_error.h"
#include "base/text.h"
#include "bootstrap/fabric.h"
#include "bootstrap/fingerprint.h"
#include "bootstrap/numa.h"
#include "memory/room.h"
#include "transport/shm/handshake.h"

namespace rdmacoll {
namespace {

// A listener whose queue is full is busy with many callers, not absent, so the probe tries again.
// It does so for this long at most.
constexpr Nanoseconds kProbeTimeout = 5 * kSecond;

Status watch_nested(int epoll, int nested) {
  return watch(epoll, nested, {.events = EPOLLIN, .data = {}});
}

// The descriptors that a start opens at most, beside listeners. The engine needs epoll sets (two
// here, one for each of two transports, two of the driver) and their bells, with a page. It also
// needs the listener's spare descriptor, and one to read a file. A peer needs its socket, a channel
// and the descriptors that it passes; over TCP, its further streams. A device needs its commands,
// events and completions.
constexpr int kOfAnEngine = 13;
constexpr int kOfAPeer = 2 + static_cast<int>(shm::kPassedMax);
constexpr int kOfADevice = 3;

}  // namespace

Fabric::Fabric(FabricOptions options, MemoryPool& pool, const Clock& clock)
    : options_(std::move(options)),
      pool_(pool),
      clock_(clock),
      start_timeout_(from_seconds(options_.config.start_timeout_s)),
      credentials_{options_.job,  options_.epoch,  options_.rank,
                   options_.size, options_.secret, options_.config.tcp_streams} {}

Status Fabric::open(FabricOptions options, MemoryPool& pool, const Clock& clock,
                    std::unique_ptr<Fabric>& fabric) {
  RC_ASSERT(options.rank >= 0 && options.rank < options.size, cat(options.rank));
  std::unique_ptr<Fabric> opened(new Fabric(std::move(options), pool, clock));
  RC_RETURN_IF_ERROR(opened->listen());
  fabric = std::move(opened);
  return {};
}

Status Fabric::check_room() const {
  const int peers = std::min(options_.size - 1, kTreeRadix + 1);
  return check_descriptors(kOfAnEngine + peers * std::max(kOfAPeer, options_.config.tcp_streams) +
                           static_cast<int>(ability_.rails.size()) * kOfADevice);
}

Status Fabric::listen() {
  RC_RETURN_IF_ERROR(check_room());
  const std::string& congestion = options_.config.tcp_congestion;
  if (!congestion.empty()) RC_RETURN_IF_ERROR(try_congestion_control(congestion));
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  meeting_epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_ || !meeting_epoll_) {
    return system_error("epoll_create1", errno);
  }
  RC_RETURN_IF_ERROR(watch_nested(epoll_.get(), meeting_epoll_.get()));
  reception_ = std::make_unique<Reception>(meeting_epoll_.get());
  // A world of one needs none of these. But a requested interface or device must exist, as in every
  // world.
  const bool has_peers = options_.size > 1;
  // A world of one does not listen. A secondary world beside it therefore has its own listener, at
  // any port.
  const bool lodges = options_.host != nullptr && !options_.host->card_.tcp.empty();
  if (lodges) {
    lodger_ = std::make_shared<Lodger>(credentials_);
    RC_RETURN_IF_ERROR(lodger_->opened());
    RC_RETURN_IF_ERROR(watch_nested(meeting_epoll_.get(), lodger_->bell().get()));
    RC_RETURN_IF_ERROR(reception_->open({}));
    options_.host->reception_->take_in(lodger_);
  } else if (has_peers || !options_.config.interface.empty()) {
    std::vector<SocketAddress> addresses;
    RC_RETURN_IF_ERROR(
        choose_addresses(interface_addresses(), options_.config.interface, addresses));
    const int port = options_.host == nullptr ? options_.config.port : 0;
    for (SocketAddress& address : addresses) address.set_port(port);
    if (has_peers) RC_RETURN_IF_ERROR(reception_->open(addresses, congestion));
  }
  if (has_peers || !options_.config.rdma_request.empty()) {
    ability_ = find_rdma(options_.config, pool_, options_.verbs,
                         options_.memory_limit.value_or(rdma::memory_limit()));
  }
  // Listeners, and devices that are opened again, need further descriptors. A later step must not
  // lack them.
  RC_RETURN_IF_ERROR(check_room());
  const std::vector<int> cpus = allowed_cpus();
  card_ = {.abi = options_.abi,
           .host = this_host_name(),
           .pid = ::getpid(),
           .node_key = this_node_key(),
           .cpus = cpu_list_text(cpus),
           .numa_node = numa_node_of(read_numa_table("/sys/devices/system/node"), cpus),
           .uid = ::geteuid(),
           .unix_name = reception_->unix_name(),
           .tcp = lodges ? options_.host->card_.tcp : reception_->tcp(),
           .pool_bytes = pool_.size(),
           .rdma = ability_.card,
           .settings = options_.settings};
  card_text_ = to_json(card_);
  options_.host = nullptr;
  return {};
}

int Fabric::number(int rank) const {
  return options_.numbers.empty() ? rank : options_.numbers[static_cast<std::size_t>(rank)];
}

Status Fabric::probe_node(const std::vector<std::string>& cards, int& leader) {
  if (static_cast<int>(cards.size()) != options_.size) {
    return Status(Code::invalid, cat(cards.size(), " cards for ", options_.size, " ranks"));
  }
  cards_.resize(cards.size());
  for (int rank = 0; rank < options_.size; ++rank) {
    RC_RETURN_IF_ERROR(parse_card(cards[rank], number(rank), cards_[rank]));
  }
  RC_RETURN_IF_ERROR(compare_fingerprints(cards_, options_.numbers));
  const Nanoseconds deadline = clock_.now() + std::min(start_timeout_, kProbeTimeout);
  for (leader = 0; leader < options_.rank; ++leader) {
    const Card& card = cards_[leader];
    if (card.node_key != card_.node_key || card.uid != card_.uid) continue;
    if (node_socket_accepts(leader, deadline)) return {};
  }
  return {};
}

bool Fabric::node_socket_accepts(int peer, Nanoseconds deadline) const {
  while (true) {
    Fd socket;
    const int error = start_connect(unix_endpoint(cards_[peer].unix_name), socket);
    if (error == 0) return connect_error(socket.get()) == 0 && is_same_user(socket.get());
    if (error != EAGAIN || clock_.now() >= deadline) return false;
    ::poll(nullptr, 0, 10);
  }
}

Status Fabric::make_world(const std::vector<int>& leaders, World& world) const {
  RC_ASSERT(static_cast<int>(cards_.size()) == options_.size, "probe_node comes first");
  if (static_cast<int>(leaders.size()) != options_.size) {
    return Status(Code::invalid, cat(leaders.size(), " leaders for ", options_.size, " ranks"));
  }
  world = {.job = options_.job, .epoch = options_.epoch, .rank = options_.rank};
  int nodes = 0;
  std::map<std::string_view, int> machines;  // by key: the first rank of the machine
  for (int rank = 0; rank < options_.size; ++rank) {
    const int leader = leaders[rank];
    if (leader < 0 || leader > rank || leaders[leader] != leader) {
      return Status(Code::failed, cat("the ranks do not agree on their nodes: rank ", rank,
                                      " found rank ", leader, " on its node",
                                      leader >= 0 && leader < options_.size
                                          ? cat(", which found rank ", leaders[leader])
                                          : ""));
    }
    const int node = leader == rank ? nodes++ : world.members[leader].node;
    const Card& card = cards_[rank];
    const std::string_view key = machine_key(card);
    const int machine = key.empty() ? leader : machines.emplace(key, rank).first->second;
    world.members.push_back({.host = card.host,
                             .pid = card.pid,
                             .node = node,
                             .number = number(rank),
                             .numa_node = card.numa_node,
                             .machine = machine,
                             .cpus = parse_cpu_list(card.cpus)});
  }
  return {};
}

Status Fabric::begin(const World& world) {
  RC_ASSERT(world.size() == options_.size && world.rank == options_.rank);
  RC_ASSERT(static_cast<int>(cards_.size()) == options_.size, "probe_node comes first");
  RC_ASSERT(peers_.empty(), "begin() comes once");
  world_ = world;
  if (world_.size() > 1 || !options_.config.rdma_request.empty()) {
    RC_RETURN_IF_ERROR(agree_on_rdma(
        cards_, options_.config, [&](int rank) { return world.describe(rank); }, agreement_));
  }
  if (world_.size() == 1) {
    agreement_ = {};  // a world of one does not report what it does not use
    return {};
  }
  // Every rank looks at all pairs, so that all ranks report the same.
  for (int a = 0; a < world.size() && !options_.config.allows("tcp") && !agreement_.use; ++a) {
    for (int b = a + 1; b < world.size(); ++b) {
      if (uses_shm(a, b)) continue;
      return Status(Code::invalid,
                    cat("RDMACOLL_TRANSPORT=", join(options_.config.transports, ","),
                        " leaves no way between ", world.describe(a), " and ", world.describe(b),
                        world.same_node(a, b) ? "." : ": they are on different nodes.",
                        " Add tcp, or leave it unset."));
    }
  }
  RC_RETURN_IF_ERROR(begin_parts());
  for (const Transport* one : parts_) {
    RC_RETURN_IF_ERROR(watch_nested(epoll_.get(), one->wait_handle()));
  }
  peers_.resize(world_.members.size());
  return {};
}

Status Fabric::begin_parts() {
  // Rank 0 decides how large batches are, so all ranks use the size of the smallest pool.
  if (agreement_.pool_bytes < pool_.size()) pool_.shrink(agreement_.pool_bytes);
  const auto is_mapped = [this](int peer) {
    return peer != world_.rank && uses_shm(world_.rank, peer);
  };
  int mapped = 0;
  for (int peer = 0; peer < world_.size(); ++peer) mapped += is_mapped(peer) ? 1 : 0;
  RC_RETURN_IF_ERROR(check_mappings(pool_.size(), mapped, memory_room()));
  const std::string name = transport_name();
  const auto uses = [&](std::string_view part) { return name.find(part) != name.npos; };
  const Config& config = options_.config;
  const Nanoseconds peer_timeout = from_seconds(config.peer_timeout_s);
  if (uses("tcp")) {
    tcp_ = std::make_unique<TcpTransport>(
        world_, clock_, peer_timeout,
        TcpOptions{.chunk_bytes = config.chunk_bytes, .streams = {.count = config.tcp_streams}});
    RC_RETURN_IF_ERROR(tcp_->opened());
    parts_.push_back(tcp_.get());
  }
  if (uses("rdma")) {
    note_retries(config, ability_.rails, agreement_.notes);
    RC_RETURN_IF_ERROR(RdmaTransport::open(world_, pool_, clock_, *ability_.verbs, ability_.rails,
                                           peer_options(config, pool_.size(), world_.size()),
                                           rdma_));
    parts_.push_back(rdma_.get());
  }
  if (uses("shm")) {
    shm_ = std::make_unique<ShmTransport>(
        world_, pool_, clock_,
        ShmOptions{.one_copy = config.one_copy, .peer_timeout = peer_timeout});
    RC_RETURN_IF_ERROR(shm_->opened());
    parts_.push_back(shm_.get());
  }
  return {};
}

}  // namespace rdmacoll
