#include "settings/algorithm_ranges.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "base/text.h"
#include "collectives/algorithms.h"

namespace rdmacoll {
namespace {

constexpr std::string_view kAuto = "auto";
// Words of tf_cnn_benchmarks for libraries that choose for themselves, as "auto" does.
constexpr std::array<std::string_view, 2> kTheirAuto{"nccl", "collective"};

// The rows that a setting can name.
std::vector<const AlgorithmRow*> rows_to_name() {
  std::vector<const AlgorithmRow*> rows;
  for (const AlgorithmRow& row : algorithm_table()) {
    if (row.can_be_forced()) rows.push_back(&row);
  }
  return rows;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> items(1);
  for (const char letter : text) {
    if (letter == separator) {
      items.emplace_back();
    } else {
      items.back() += letter;
    }
  }
  return items;
}

struct Word {
  std::string ours;
  bool is_theirs = false;
  bool has_shards = false;
};

std::optional<Word> word_from(const std::string& text) {
  const std::size_t hash = text.find('#');
  const std::string name = text.substr(0, hash);
  if (hash != std::string::npos) {
    const std::string shards = text.substr(hash + 1);
    const bool is_number = !shards.empty() && std::all_of(shards.begin(), shards.end(), [](char c) {
      return c >= '0' && c <= '9';
    });
    if (!is_number) return std::nullopt;
  }
  const bool has_shards = hash != std::string::npos;
  if (name == kAuto) return Word{name, false, has_shards};
  if (std::ranges::count(kTheirAuto, name) > 0) return Word{std::string(kAuto), true, has_shards};
  for (const AlgorithmRow* row : rows_to_name()) {
    if (row->name == name) return Word{name, false, has_shards};
    const std::vector<std::string> others = split(std::string(row->other_names), ' ');
    if (std::ranges::count(others, name) > 0 && !name.empty()) {
      return Word{std::string(row->name), true, has_shards};
    }
  }
  return std::nullopt;
}

// "pscpu#2" or "nccl/xring". A spec of two levels has one word for each level in
// tf_cnn_benchmarks. Here one algorithm does both levels: the one that has a name there.
std::optional<Word> algorithm_from_words(std::string_view text) {
  const std::vector<std::string> levels = split(text, '/');
  if (levels.size() > 2) return std::nullopt;
  std::optional<Word> word = word_from(levels.front());
  if (!word || levels.size() == 1) return word;
  const std::optional<Word> second = word_from(levels.back());
  if (!second) return std::nullopt;
  for (const AlgorithmRow* row : rows_to_name()) {
    if (!row->by_node || row->other_names.empty()) continue;
    return Word{std::string(row->name), true, word->has_shards || second->has_shards};
  }
  return std::nullopt;
}

}  // namespace

std::string AlgorithmRanges::text() const {
  std::string text;
  for (const AlgorithmRange& range : ranges) {
    text += range.algorithm;
    if (range.bytes_max != UINT64_MAX) text += cat(":", range.bytes_max, ":");
  }
  return text;
}

std::string allowed_algorithm_ranges() {
  std::vector<std::string_view> names{kAuto};
  for (const AlgorithmRow* row : rows_to_name()) names.push_back(row->name);
  const std::string_view first = names[1], last = names.back();
  names.pop_back();
  return cat(join(names, ", "), " or ", last, ", or several with growing sizes between (", first,
             ":32k:", last, "), or an all_reduce_spec of tf_cnn_benchmarks (pscpu:32k:xring)");
}

std::optional<AlgorithmRanges> algorithm_ranges_from(std::string_view text) {
  const std::vector<std::string> items = split(lower(text), ':');
  if (items.size() % 2 == 0) return std::nullopt;
  AlgorithmRanges found;
  bool has_theirs = false, has_shards = false;
  for (std::size_t i = 0; i < items.size(); i += 2) {
    const std::optional<Word> word = algorithm_from_words(trim(items[i]));
    if (!word) return std::nullopt;
    has_theirs = has_theirs || word->is_theirs;
    has_shards = has_shards || word->has_shards;
    AlgorithmRange& range = found.ranges.emplace_back(AlgorithmRange{word->ours});
    if (i + 1 == items.size()) break;
    const std::optional<uint64_t> bytes = bytes_from(trim(items[i + 1]));
    const uint64_t before = i == 0 ? 0 : found.ranges[found.ranges.size() - 2].bytes_max;
    if (!bytes || *bytes <= before || *bytes == UINT64_MAX) return std::nullopt;
    range.bytes_max = *bytes;
  }
  if (!has_theirs && !has_shards) return found;
  found.note = cat(text, " is taken as ", found.text());
  if (has_theirs && items.size() > 1) found.note += ", sizes in bytes";
  if (has_shards) found.note += "; a number of shards (#) has no counterpart here";
  return found;
}

}  // namespace rdmacoll
