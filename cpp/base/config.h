// Every setting is one row of a table. config.cc is the only C++ file that reads the environment.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/algorithm_ranges.h"
#include "base/log.h"
#include "base/status.h"

namespace rdmacoll {

enum class Unit : uint8_t { flag, text, choice, bytes, count, seconds, ratio };
enum class Scope : uint8_t { world, rank };  // world: must be equal on all ranks (fingerprint)

struct Config;

// A parsed value. The field of the setting's unit is filled. `text` is the canonical form ("4M" ->
// "4194304"), so that ranks can compare settings as text.
struct ParsedValue {
  std::string text;
  bool automatic = false;  // "auto": as if unset
  bool flag = false;
  uint64_t integer = 0;  // bytes and count
  double seconds = 0;    // in the unit of the name (_S or _US), or the value of a ratio
  std::vector<AlgorithmRange> algorithms;
  std::vector<std::vector<int>> ranks;
  std::string note;  // how text of another system is understood
};

struct Setting {
  std::string_view name;
  std::string_view alias;  // names that users of other systems have in their scripts: "" or "A B"
  std::string_view default_value;  // as documented; "" = none
  Unit unit;
  Scope scope;
  std::string_view allowed;  // the accepted values, for error messages: "run or canonical"
  std::string_view help;
  double least = 0;  // all numbers: the smallest and the largest value
  double most = 0;
  void (*store)(Config& config, const ParsedValue& value) = nullptr;  // null: Python reads it
};
std::span<const Setting> settings_table();
// All names of a setting, its own name first.
std::vector<std::string_view> names_of(const Setting& setting);

// The values that code reads, parsed and checked. An empty optional means automatic.
struct Config {
  std::vector<std::string> transports;  // RDMACOLL_TRANSPORT; empty = auto
  bool allows(std::string_view transport) const;
  std::vector<AlgorithmRange> allreduce_algorithms;  // empty = auto
  bool canonical = false;                            // RDMACOLL_ORDER
  uint64_t bucket_bytes = 26'214'400;
  bool check_names = true;  // compare the order of variables by name
  std::string interface;    // "" = automatic
  uint16_t port = 0;        // 0: chosen by the system
  double start_timeout_s = 60;
  double peer_timeout_s = 5;
  double stall_warning_s = 10;
  double stall_error_s = 600;
  uint64_t plan_repeats = 3;
  std::vector<std::vector<int>> process_sets;  // sets that exist from the start, beside the world
  bool has_servers = false;                    // RDMACOLL_MODE=ps
  int servers = 1;                             // RDMACOLL_NUM_SERVERS
  bool is_colocated = false;                   // RDMACOLL_SERVER_PLACEMENT
  bool ps_sync = true;                         // RDMACOLL_PS_SYNC
  std::optional<uint64_t> ps_staleness;        // RDMACOLL_PS_STALENESS; any when unset
  // The number of ranks that are servers only.
  int dedicated_servers() const { return has_servers && !is_colocated ? servers : 0; }
  bool rdma_enabled = true;
  std::string rdma_device;
  std::string rdma_device_by = "RDMACOLL_DEVICE";  // the name of the variable that gave it
  // Attributes of the queue pairs; chosen automatically when unset.
  std::optional<int> rdma_gid_index;
  std::optional<int> rdma_port;
  std::optional<int> rdma_pkey_index;
  std::optional<uint32_t> rdma_queue_depth;
  std::optional<uint8_t> rdma_timeout;
  std::optional<uint8_t> rdma_retries;
  std::optional<uint8_t> rdma_service_level;
  std::optional<uint32_t> rdma_mtu;  // bytes
  std::optional<uint8_t> rdma_traffic_class;
  // The settings that request RDMA: "TF_RDMA_ENABLED=1 TF_RDMA_DEV_NAME=mlx5_0". If RDMA is then
  // unusable, that is an error. "": none does.
  std::string rdma_request;
  int tcp_streams = 1;                         // RDMACOLL_TCP_STREAMS
  std::string tcp_congestion;                  // RDMACOLL_TCP_CONGESTION; empty: the system's
  uint64_t chunk_bytes = 4'194'304;            // TF_RDMA_CHUNK_SIZE
  std::optional<uint64_t> accumulation_bytes;  // TF_RDMA_ACC_SIZE; measured when unset
  uint64_t pool_bytes = 1'073'741'824;         // TF_RDMA_BUF_SIZE
  bool pool_is_given = false;                  // set by the user: never made smaller
  std::optional<uint64_t> segment_bytes;       // RDMACOLL_SEGMENT_BYTES; automatic when unset
  std::optional<uint64_t> link_gbit;   // RDMACOLL_LINK_GBIT; read from the kernel when unset
  bool share_results = true;           // RDMACOLL_SHARE_RESULTS
  std::optional<bool> one_copy;        // RDMACOLL_ONE_COPY: process_vm_readv; automatic
  std::optional<int> compute_workers;  // RDMACOLL_COMPUTE_WORKERS; automatic
  std::optional<double> spin_us;       // RDMACOLL_SPIN_US; automatic
  LogLevel log_level = LogLevel::warning;
};

struct SettingValue {
  const Setting* setting;
  std::string value;   // effective, as text
  std::string source;  // default, automatic, environment, argument
  std::string note;    // "there are no servers without RDMACOLL_MODE=ps"
  // Logged at the start: "TF_RDMA_CHUNK_SIZE says 1048576; RDMACOLL_CHUNK_SIZE=65536 is obeyed",
  // "RDMACOLL_TRANSPROT is no setting of this version; did you mean RDMACOLL_TRANSPORT?"
  std::string warning;
  std::string given;  // as it was set: "TF_RDMA_DEV_NAME=mlx5_0"; "": not set
  void add_note(std::string_view more);
};
// The last part of read_config: relations between settings. Refuses settings that exclude each
// other.
Status check_relations(Config& config, std::vector<SettingValue>& values);

// Reads all settings. `lookup` reads one variable: from the environment in the product, from a map
// in tests. `arguments` is "NAME=value\n..." and overrides variables. An empty value counts as
// unset.
//
// With `environment`, unknown variables that look like settings are reported at the setting with
// the nearest name. Our own names and typing errors become a `warning`, names of other systems a
// `note`. If it fails, `values` has defaults for unreadable settings: some are needed to report to
// other ranks.
using Lookup = std::optional<std::string> (*)(std::string_view name);
std::optional<std::string> environment(std::string_view name);
Status read_config(std::string_view arguments, Lookup lookup, Config& config,
                   std::vector<SettingValue>& values);
std::string settings_json(const std::vector<SettingValue>& values);

// World-wide settings as "NAME=value" lines, for the fingerprint.
std::map<std::string, std::string> world_settings(const std::vector<SettingValue>& values);

}  // namespace rdmacoll
