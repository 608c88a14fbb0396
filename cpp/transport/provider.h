// The choice among transports. Each rank finds out what it can use, and writes that on its card.
// All ranks then take the same decision, since it depends on nothing but the cards of all.
//
// A transport is a folder with a TransportProvider, and a row in cpp/bootstrap/transports.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/world.h"
#include "memory/pool.h"
#include "transport/socket_transport.h"

namespace rdmacoll {

// A rank's part of the card about one transport.
struct TransportCard {
  std::string obstacle;      // why this rank cannot use it, and the cure; "": it can
  bool is_off = false;       // settings turn it off, so that the obstacle needs no warning
  bool has_devices = false;  // the machine has devices for it
  std::string request;       // the settings that request it here; "": none
  uint64_t pool_bytes = 0;   // the largest pool that it can use; 0: a pool of any size
};

// A rank in the decision about one transport.
struct Candidate {
  TransportCard card;
  uint64_t pool_bytes = 0;  // the size of its buffer pool
  int node = 0;
};

// The decision of all ranks about one transport.
struct TransportAgreement {
  bool use = false;
  uint64_t pool_bytes = 0;         // all ranks shrink their pools to this size; 0: they need not
  std::string warning;             // for one rank to log
  std::vector<std::string> notes;  // for one rank to log
};

// Names a rank in sentences.
using Describe = std::function<std::string(int rank)>;
// The settings as a transport asks for them.
struct GivenSettings {
  bool is_named = false;   // RDMACOLL_TRANSPORT names the transport
  bool is_allowed = true;  // ... or does not exclude it
  // How the user has set one: "TF_RDMA_DEV_NAME=mlx5_0"; "": not at all.
  std::function<std::string(std::string_view setting)> text;
};

// The kind of socket on which two ranks meet.
enum class SocketKind : uint8_t { tcp, unix_domain };

// All arguments but `peers` outlive the transport.
struct TransportOptions {
  const World& world;
  MemoryPool& pool;
  const Clock& clock;
  const Config& config;
  std::vector<int> peers;  // ranks that this rank reaches by it
};

// One transport of one world. Its functions are called in the order in which they stand here.
class TransportProvider {
 public:
  virtual ~TransportProvider() = default;

  // ---- settings ----

  // Refuses settings that exclude each other, and stores what follows from several of them.
  virtual Status check_settings(Config&, const GivenSettings&) const { return {}; }
  // Settings turn this transport off.
  virtual bool is_off(const Config&) const { return false; }
  // The settings that request this transport; "": none. It is then an error if a rank cannot use
  // it, also in a world of one.
  virtual std::string request(const Config&) const { return ""; }
  // The devices of this machine, as JSON for a command; "": the transport has none.
  virtual std::string devices_json(const Config&) const { return ""; }
  // The descriptors that each peer takes at most.
  virtual int descriptors_per_peer(const Config&) const { return 1; }

  // ---- this rank ----

  // Finds out whether this rank can use the transport. An obstacle is no error here, but stands on
  // the card. The pool outlives the provider.
  virtual TransportCard probe(const Config&, MemoryPool&) { return {}; }
  // The descriptors that devices take, beside those of peers.
  virtual int descriptors_of_devices() const { return 0; }

  // ---- all ranks: pure functions of the cards ----

  // Checks that all ranks can use it together. No card names an obstacle.
  virtual Status agree(std::span<const Candidate>, const Config&, const Describe&,
                       TransportAgreement&) const {
    return {};
  }
  // The sentence by which users learn how to do without it and its warning; "": none.
  virtual std::string_view how_to_turn_off() const { return ""; }
  // Why two ranks do not reach each other by it: "they are on different nodes". "": they do.
  virtual std::string_view separation(const Candidate&, const Candidate&) const { return ""; }
  bool can_reach(const Candidate& a, const Candidate& b) const { return separation(a, b).empty(); }

  // ---- in use ----

  virtual SocketKind socket_kind() const { return SocketKind::tcp; }
  // The two ranks share memory: no network lies between them.
  virtual bool shares_memory() const { return false; }
  // A device accesses pinned memory only.
  virtual bool via_nic() const { return false; }
  virtual Status open(const TransportOptions& options,
                      std::unique_ptr<SocketTransport>& transport) = 0;
  // The ports of devices that carry the data, for display.
  virtual std::vector<std::string> ports() const { return {}; }
  // The names of these devices.
  virtual std::vector<std::string> nics() const { return {}; }
  // The rate of these ports in Gbit/s; 0: unknown. none: it uses the interface that TCP uses.
  virtual std::optional<double> port_gbit_per_s() const { return std::nullopt; }
  // Lines about the choice of ports, and about settings that it does not follow to the letter. One
  // rank logs them.
  virtual std::vector<std::string> choices() const { return {}; }
  virtual std::vector<std::string> notes() const { return {}; }
};

struct TransportRow {
  std::string_view name;   // in settings and reports; Reach::transport of the transport
  std::string_view title;  // in sentences
  std::function<std::unique_ptr<TransportProvider>()> make;
};

}  // namespace rdmacoll
