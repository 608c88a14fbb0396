#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <locale>
#include <sstream>

#include "base/rank_lists.h"
#include "base/text.h"
#include "base/utf8.h"
#include "bootstrap/transports.h"
#include "settings/algorithm_ranges.h"
#include "settings/horovod_values.h"
#include "settings/settings.h"

namespace rdmacoll {
namespace {

// The words of "auto, ring or direct": a setting's text for error messages also defines its
// choices.
std::vector<std::string> words_of(std::string_view allowed) {
  std::string text(allowed);
  std::replace(text.begin(), text.end(), ',', ' ');
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) {
    if (word != "or") words.push_back(word);
  }
  return words;
}

bool is_in_range(const Setting& setting, double number) {
  return number >= setting.least && number <= setting.most;
}

bool parse_flag(std::string_view text, ParsedValue& value) {
  const std::string word = lower(text);
  const auto is_one_of = [&](std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  value.flag = is_one_of({"true", "1", "yes", "on"});
  value.text = value.flag ? "true" : "false";
  return value.flag || is_one_of({"false", "0", "no", "off"});
}

bool parse_integer(const Setting& setting, std::string_view text, ParsedValue& value) {
  const bool is_plain =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  const std::optional<uint64_t> integer = bytes_from(text);
  if (!integer || (setting.unit != Unit::bytes && !is_plain)) return false;
  value.integer = *integer;
  value.text = cat(value.integer);
  return is_in_range(setting, static_cast<double>(value.integer));
}

bool parse_number(const Setting& setting, std::string_view text, ParsedValue& value) {
  std::istringstream stream{std::string(text)};
  stream.imbue(std::locale::classic());  // the decimal point, in any locale
  if (!(stream >> value.number) || !stream.eof()) return false;
  std::array<char, 64> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value.number).ptr;
  value.text.assign(digits.data(), end);
  return is_in_range(setting, value.number);
}

bool parse_transports(std::string_view text, ParsedValue& value) {
  std::vector<std::string> found;
  std::istringstream stream(lower(text));
  for (std::string item; std::getline(stream, item, ',');) {
    const std::string name(trim(item));
    const auto& rows = transport_table();
    const bool is_known = std::any_of(rows.begin(), rows.end(),
                                      [&](const TransportRow& row) { return row.name == name; });
    if (!is_known) return false;
    if (std::find(found.begin(), found.end(), name) == found.end()) found.push_back(name);
  }
  value.text = join(found, ",");
  return !found.empty() && text.back() != ',';
}

bool parse_algorithms(std::string_view text, ParsedValue& value) {
  std::optional<AlgorithmRanges> found = algorithm_ranges_from(text);
  if (!found) return false;
  value.text = found->text();
  value.note = std::move(found->note);
  value.algorithms = std::move(found->ranges);
  return true;
}

// Parses one of the words, or a number of updates.
bool parse_check(const Setting& setting, std::string_view text, ParsedValue& value) {
  if (std::isdigit(static_cast<unsigned char>(text.front())) != 0) {
    return parse_integer(setting, text, value);
  }
  value.text = lower(text);
  return value.text == "first" || value.text == "epoch" || value.text == "off";
}

bool parse_gpudirect(std::string_view text, ParsedValue& value) {
  const std::optional<GpuDirectSetting> found = gpudirect_from(text);
  if (!found) return false;
  value.gpudirect = *found;
  value.text = found->text();
  return true;
}

bool parse_choice(const Setting& setting, std::string_view text, ParsedValue& value) {
  if (setting.name == "RDMACOLL_CHECK_WEIGHTS") return parse_check(setting, text, value);
  if (setting.name == "RDMACOLL_TRANSPORT") return parse_transports(text, value);
  if (setting.name == "RDMACOLL_ALLREDUCE_ALGORITHM") return parse_algorithms(text, value);
  if (setting.name == "RDMACOLL_GPUDIRECT") return parse_gpudirect(text, value);
  if (setting.name == "RDMACOLL_PROCESS_SETS")
    return parse_process_sets(text, value.ranks, value.text);
  const std::vector<std::string> words = words_of(setting.allowed);
  value.text = lower(text);
  return std::find(words.begin(), words.end(), value.text) != words.end();
}

bool parse_text(const Setting& setting, std::string_view text, ParsedValue& value) {
  if (!is_utf8(text)) return false;  // Python would read another text
  value.text = text;
  if (setting.name != "RDMACOLL_RENDEZVOUS") return true;
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  unsigned port = 0;
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data() + colon + 1, end, port);
  return problem == std::errc() && rest == end && port >= 1 && port <= 65'535;
}

bool is_automatic(const Setting& setting) {
  // Settings without a default come from the launcher.
  return setting.default_value.empty() || setting.default_value == "auto" ||
         setting.default_value == "automatic";
}

bool parse(const Setting& setting, std::string_view text, ParsedValue& value) {
  const std::string word = lower(text);
  if (is_automatic(setting) && (word == "auto" || word == "automatic")) {
    value.automatic = true;
    value.text = "auto";
    return true;
  }
  switch (setting.unit) {
    case Unit::flag:
      return parse_flag(text, value);
    case Unit::bytes:
    case Unit::count:
      return parse_integer(setting, text, value);
    case Unit::seconds:
    case Unit::microseconds:
    case Unit::ratio:
      return parse_number(setting, text, value);
    case Unit::choice:
      return parse_choice(setting, text, value);
    case Unit::text:
      return parse_text(setting, text, value);
  }
  return false;
}

// Longer values are cut, since nobody reads a sentence with a value of many lines.
constexpr std::size_t kShownMax = 120;

std::string shown(std::string_view text) {
  if (text.size() <= kShownMax) return std::string(text);
  return cat(text.substr(0, kShownMax), "... (", text.size(), " bytes)");
}

Status wrong_value(const Setting& setting, std::string_view name, std::string_view text) {
  std::string units;
  if (setting.unit == Unit::bytes) units = "; a number, with K, M, G, KiB, MiB or GiB if you like";
  if (setting.unit == Unit::text) units = "; in UTF-8";
  std::string_view allowed = allowed_by_horovod(name);
  if (allowed.empty()) allowed = setting.allowed;
  return Status(Code::invalid,
                cat(name, "=", shown(text), " is not allowed: it takes ", allowed, units, "."));
}

struct Nearest {
  std::size_t index = 0;  // into settings_table()
  std::string_view name;
  std::size_t distance = std::numeric_limits<std::size_t>::max();
};

Nearest nearest_setting(std::string_view name) {
  Nearest best;
  const auto table = settings_table();
  for (std::size_t i = 0; i < table.size(); ++i) {
    for (std::string_view known : names_of(table[i])) {
      const std::size_t distance = edit_distance(name, known);
      if (distance < best.distance) best = {i, known, distance};
    }
  }
  return best;
}

// Beyond this many changed letters a suggestion would be a guess.
constexpr std::size_t kTypingErrorsMax = 3;

std::string unknown_text(std::string_view name, const Nearest& nearest) {
  std::string text = cat(name, " is no setting of this version");
  if (nearest.distance > kTypingErrorsMax) return text + "; `rdmacoll config` lists them";
  return cat(text, "; did you mean ", nearest.name, "?");
}

void add(std::string& text, std::string_view more) {
  if (!text.empty() && !more.empty()) text += text.ends_with('?') ? " " : ". ";
  text += more;
}

void tell_unknown_variables(std::vector<SettingValue>& values) {
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const bool is_ours = name.starts_with("RDMACOLL_");
    if (name == "RDMACOLL_CACHE" || name.starts_with("RDMACOLL_TEST_")) continue;  // for tests
    if (!is_ours && !name.starts_with("TF_RDMA_") && !name.starts_with("RDMA_QP_")) continue;
    const Nearest nearest = nearest_setting(name);
    if (nearest.distance == 0) continue;
    SettingValue& value = values[nearest.index];
    // A short name with more changed letters is another name, not a typing error.
    const bool is_typing_error = nearest.distance <= std::min(kTypingErrorsMax, name.size() / 6);
    add(is_ours || is_typing_error ? value.warning : value.note, unknown_text(name, nearest));
  }
}

// One value that a setting was given, and its source.
struct Given {
  std::string name;
  std::string said;  // as it was given
  std::string text;  // in the words of the setting
  std::string source;
};

Status parse_arguments(std::string_view arguments, std::map<std::string, std::string>& named) {
  std::istringstream stream{std::string(arguments)};
  for (std::string line; std::getline(stream, line);) {
    if (trim(line).empty()) continue;
    const auto equals = line.find('=');
    const std::string name(trim(std::string_view(line).substr(0, equals)));
    const Nearest nearest = nearest_setting(name);
    if (equals == std::string::npos) {
      return Status(Code::invalid, cat("the argument \"", line, "\" is not NAME=value."));
    }
    if (nearest.distance > 0) {
      return Status(Code::invalid, cat(unknown_text(name, nearest), " (given as an argument)"));
    }
    named[name] = trim(std::string_view(line).substr(equals + 1));
  }
  return {};
}

std::vector<Given> given_values(const Setting& setting,
                                const std::map<std::string, std::string>& named, Lookup lookup) {
  std::vector<Given> given;
  const std::vector<std::string_view> names = names_of(setting);
  for (std::string_view name : names) {
    const auto found = named.find(std::string(name));
    if (found != named.end() && !found->second.empty()) {
      given.push_back({std::string(name), found->second, found->second, "argument"});
    }
  }
  for (std::string_view name : names) {
    const std::optional<std::string> text = lookup(name);
    if (!text || trim(*text).empty()) continue;
    const std::string said(trim(*text));
    const std::optional<std::string> value = value_from_horovod(name, said);
    if (value) given.push_back({std::string(name), said, *value, "environment"});
  }
  return given;
}

Status read_setting(const Setting& setting, const std::vector<Given>& given, Config& config,
                    SettingValue& value) {
  ParsedValue parsed;
  const bool is_readable = !given.empty() && parse(setting, given[0].text, parsed);
  if (!is_readable) {
    value.source = is_automatic(setting) ? "automatic" : "default";
    if (value.source == "default") value.value = setting.default_value;
    return given.empty() ? Status() : wrong_value(setting, given[0].name, given[0].said);
  }
  value.value = parsed.automatic ? "" : parsed.text;
  value.source = parsed.automatic ? "automatic" : given[0].source;
  value.given = cat(given[0].name, "=", given[0].said);
  if (!parsed.automatic && setting.store != nullptr) setting.store(config, parsed);
  value.add_note(parsed.note);
  for (std::size_t i = 1; i < given.size(); ++i) {
    ParsedValue other;
    if (given[i].name == given[0].name) continue;  // an argument may override its own variable
    if (parse(setting, given[i].text, other) && other.text == parsed.text) continue;
    add(value.warning,
        cat(given[i].name, " says ", given[i].said, "; ", value.given, " is obeyed"));
  }
  return {};
}

std::string_view name_of(Unit unit) {
  constexpr std::array<std::string_view, 8> kNames = {"flag",  "text",    "choice",       "bytes",
                                                      "count", "seconds", "microseconds", "ratio"};
  return kNames[static_cast<std::size_t>(unit)];
}

}  // namespace

void SettingValue::add_note(std::string_view more) { add(note, more); }

std::vector<std::string_view> names_of(const Setting& setting) {
  std::vector<std::string_view> names = {setting.name};
  for (std::string_view rest = setting.alias; !rest.empty();) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    names.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return names;
}

std::optional<std::string> environment(std::string_view name) {
  const char* text = std::getenv(std::string(name).c_str());
  if (text == nullptr) return std::nullopt;
  return text;
}

namespace {

// As the XDG base directory specification has it: relative paths do not count.
std::string cache_folder(Lookup lookup) {
  const std::string own = lookup("XDG_CACHE_HOME").value_or("");
  if (own.starts_with("/")) return own + "/rdmacoll";
  const std::string home = lookup("HOME").value_or("");
  return home.starts_with("/") ? home + "/.cache/rdmacoll" : "";
}

}  // namespace

Status read_config(std::string_view arguments, Lookup lookup, Config& config,
                   std::vector<SettingValue>& values) {
  Config fresh;
  fresh.cache_folder = cache_folder(lookup);
  values.clear();
  std::map<std::string, std::string> named;
  Status status = parse_arguments(arguments, named);
  for (const Setting& setting : settings_table()) {
    SettingValue& value = values.emplace_back(SettingValue{&setting, "", "", ""});
    Status readable = read_setting(setting, given_values(setting, named, lookup), fresh, value);
    if (status.ok()) status = std::move(readable);
  }
  RC_RETURN_IF_ERROR(status);
  if (lookup == &environment) tell_unknown_variables(values);
  RC_RETURN_IF_ERROR(check_relations(fresh, values));
  config = std::move(fresh);
  return {};
}

std::string settings_json(const std::vector<SettingValue>& values) {
  std::vector<std::string> rows;
  for (const SettingValue& value : values) {
    const Setting& setting = *value.setting;
    const std::vector<std::string_view> names = names_of(setting);
    std::vector<std::string> aliases;
    for (std::size_t i = 1; i < names.size(); ++i) aliases.push_back(json_quote(names[i]));
    std::string note = value.warning;
    add(note, value.note);
    rows.push_back(cat(
        "{\"name\": ", json_quote(setting.name),
        ", \"alias\": ", json_quote(names.size() > 1 ? names[1] : ""), ", \"aliases\": [",
        join(aliases, ", "), "]", ", \"default\": ", json_quote(setting.default_value),
        ", \"value\": ", json_quote(value.value), ", \"source\": ", json_quote(value.source),
        ", \"given\": ", json_quote(value.given), ", \"unit\": ", json_quote(name_of(setting.unit)),
        ", \"scope\": ", json_quote(setting.scope == Scope::world ? "world" : "rank"),
        ", \"help\": ", json_quote(setting.help), ", \"allowed\": ", json_quote(setting.allowed),
        ", \"note\": ", json_quote(note), "}"));
  }
  return cat("[", join(rows, ",\n "), "]");
}

std::map<std::string, std::string> world_settings(const std::vector<SettingValue>& values) {
  std::map<std::string, std::string> world;
  for (const SettingValue& value : values) {
    if (value.setting->scope != Scope::world) continue;
    world[std::string(value.setting->name)] = value.value.empty() ? "auto" : value.value;
  }
  return world;
}

}  // namespace rdmacoll
