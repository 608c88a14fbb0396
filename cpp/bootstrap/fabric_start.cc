// How a Fabric starts: listen, compare cards, find the node, take up the world.
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <string_view>

#include "base/system_error.h"
#include "base/text.h"
#include "bootstrap/fabric.h"
#include "bootstrap/fingerprint.h"
#include "bootstrap/numa.h"
#include "bootstrap/transports.h"

namespace rdmacoll {
namespace {

// A listener whose queue is full is busy with many callers, not absent, so the probe tries again.
// It does so for this long at most.
constexpr Nanoseconds kProbeTimeout = 5 * kSecond;

Status watch_nested(int epoll, int nested) {
  return watch(epoll, nested, {.events = EPOLLIN, .data = {}});
}

// The descriptors that a start opens at most, beside those of listeners, peers and devices. The
// engine needs epoll sets (two here, one for each of two transports, two of the driver) and their
// bells, with a page. It also needs the listener's spare descriptor, and one to read a file.
constexpr int kDescriptorsOfEngine = 13;

}  // namespace

Fabric::Fabric(FabricOptions options, MemoryPool& pool, const Clock& clock)
    : options_(std::move(options)),
      pool_(pool),
      clock_(clock),
      start_timeout_(from_seconds(options_.config.start_timeout_s)),
      credentials_{options_.job,  options_.epoch,  options_.rank,
                   options_.size, options_.secret, options_.config.tcp_streams},
      choice_(options_.transports.empty() ? transport_table() : options_.transports,
              options_.config) {}

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
  return check_descriptors(kDescriptorsOfEngine + choice_.descriptors(peers));
}

Status Fabric::listen() {
  RC_RETURN_IF_ERROR(check_room());
  const std::string& congestion = options_.config.tcp_congestion;
  if (!congestion.empty()) RC_RETURN_IF_ERROR(try_congestion_control(congestion));
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  connect_epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_ || !connect_epoll_) {
    return system_error("epoll_create1", errno);
  }
  RC_RETURN_IF_ERROR(watch_nested(epoll_.get(), connect_epoll_.get()));
  listener_ = std::make_unique<Listener>(connect_epoll_.get());
  // A world of one needs none of these. But a requested interface or device must exist, as in every
  // world.
  const bool has_peers = options_.size > 1;
  // A world of one does not listen. A secondary world beside it therefore has its own listener, at
  // any port.
  const bool shares_listener = options_.host != nullptr && !options_.host->card_.tcp.empty();
  if (shares_listener) {
    secondary_ = std::make_shared<SecondaryWorld>(credentials_);
    RC_RETURN_IF_ERROR(secondary_->opened());
    RC_RETURN_IF_ERROR(watch_nested(connect_epoll_.get(), secondary_->bell().get()));
    RC_RETURN_IF_ERROR(listener_->open({}));
    options_.host->listener_->add_world(secondary_);
  } else if (has_peers || !options_.config.interface.empty()) {
    std::vector<SocketAddress> addresses;
    RC_RETURN_IF_ERROR(
        choose_addresses(interface_addresses(), options_.config.interface, addresses));
    const int port = options_.host == nullptr ? options_.config.port : 0;
    for (SocketAddress& address : addresses) address.set_port(port);
    if (has_peers) RC_RETURN_IF_ERROR(listener_->open(addresses, congestion));
  }
  std::map<std::string, TransportCard> transports = choice_.probe(pool_, has_peers);
  // Listeners, and devices that are opened again, need further descriptors. A later step must not
  // lack them.
  RC_RETURN_IF_ERROR(check_room());
  const std::vector<int> cpus = allowed_cpus();
  card_ = {.abi = options_.abi,
           .host = this_host_name(),
           .pid = ::getpid(),
           .node_key = this_node_key(),
           .cpus = cpu_list_text(cpus),
           .numa_node = numa_node_of(read_numa_table(kNumaFolder), cpus),
           .uid = ::geteuid(),
           .unix_name = listener_->unix_name(),
           .tcp = shares_listener ? options_.host->card_.tcp : listener_->tcp(),
           .pool_bytes = pool_.size(),
           .transports = std::move(transports),
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
    if (!is_neighbour(card)) continue;
    if (node_socket_accepts(leader, deadline)) return {};
  }
  return {};
}

bool Fabric::is_neighbour(const Card& card) const {
  return card.node_key == card_.node_key && card.uid == card_.uid;
}

bool Fabric::has_neighbours() const {
  return std::ranges::count_if(cards_, [&](const Card& card) { return is_neighbour(card); }) > 1;
}

std::vector<int> Fabric::node_cpus() const {
  std::set<int> cpus;
  for (const Card& card : cards_) {
    if (!is_neighbour(card)) continue;
    const std::vector<int> own = parse_cpu_list(card.cpus);
    cpus.insert(own.begin(), own.end());
  }
  return {cpus.begin(), cpus.end()};
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
                             .number = JobRank(number(rank)),
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
  RC_RETURN_IF_ERROR(choice_.agree(cards_, world));
  if (world_.size() == 1) return {};
  // Rank 0 decides how large batches are, so all ranks use the size of the smallest pool.
  if (choice_.pool_bytes() < pool_.size()) pool_.shrink(choice_.pool_bytes());
  RC_RETURN_IF_ERROR(open_transports());
  note_choice();
  return {};
}

// Opens every transport that some pair of the world uses, also if this rank has no such peer.
Status Fabric::open_transports() {
  peers_.resize(world_.members.size());
  for (std::size_t i = 0; i < choice_.entries().size(); ++i) {
    const TransportChoice::Entry& entry = choice_.entries()[i];
    if (!entry.is_used) continue;
    TransportOptions options{world_, pool_, clock_, options_.config, {}};
    for (int peer = 0; peer < world_.size(); ++peer) {
      if (peer != world_.rank && choice_.between(world_.rank, peer) == i) {
        options.peers.push_back(peer);
      }
    }
    std::unique_ptr<SocketTransport> opened;
    RC_RETURN_IF_ERROR(entry.provider->open(options, opened));
    for (const int peer : options.peers) {
      peers_[peer].route = opened.get();
      peers_[peer].socket_kind = entry.provider->socket_kind();
    }
    RC_RETURN_IF_ERROR(watch_nested(epoll_.get(), opened->wait_handle()));
    transports_.push_back(std::move(opened));
  }
  return {};
}

}  // namespace rdmacoll
