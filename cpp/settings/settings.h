// Every setting is one row of a table. read_config.cc is the only C++ file that reads the
// environment.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/algorithm_range.h"
#include "base/config.h"
#include "base/gpudirect.h"
#include "base/status.h"

namespace rdmacoll {

enum class Unit : uint8_t { flag, text, choice, bytes, count, seconds, microseconds, ratio };
enum class Scope : uint8_t { world, rank };  // world: must be equal on all ranks (fingerprint)

// A parsed value. The field of the setting's unit is filled. `text` is the canonical form ("4M" ->
// "4194304"), so that ranks can compare settings as text.
struct ParsedValue {
  std::string text;
  bool automatic = false;  // "auto": as if unset
  bool flag = false;
  uint64_t integer = 0;  // bytes and count
  double number = 0;     // seconds, microseconds or a ratio
  std::vector<AlgorithmRange> algorithms;
  std::vector<std::vector<int>> ranks;
  GpuDirectSetting gpudirect;
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
