#include "bootstrap/numa.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "base/text.h"

namespace rdmacoll {
namespace {

constexpr int kCpusMax = 1 << 16;

// Takes a number from the beginning of `rest`; -1: there is none.
int take_number(std::string_view& rest) {
  int value = -1;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (error != std::errc() || value < 0 || value >= kCpusMax) return -1;
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  return value;
}

bool take_mark(std::string_view& rest, char mark) {
  if (!rest.starts_with(mark)) return false;
  rest.remove_prefix(1);
  return true;
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  do {
    const int first = take_number(text);
    const int last = take_mark(text, '-') ? take_number(text) : first;
    const bool ascends = cpus.empty() || first > cpus.back();
    if (first < 0 || last < first || !ascends) return {};
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  } while (take_mark(text, ','));
  return text.empty() ? cpus : std::vector<int>();
}

std::string cpu_list_text(const std::vector<int>& cpus) {
  std::vector<std::string> runs;
  for (std::size_t begin = 0, end; begin < cpus.size(); begin = end) {
    for (end = begin + 1; end < cpus.size() && cpus[end] == cpus[end - 1] + 1;) ++end;
    runs.push_back(end - begin == 1 ? cat(cpus[begin]) : cat(cpus[begin], "-", cpus[end - 1]));
  }
  return join(runs, ",");
}

NumaTable read_numa_table(const std::string& root) {
  NumaTable table;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root, error)) {
    const std::string name = entry.path().filename();
    std::string_view number = name;
    if (!number.starts_with("node")) continue;
    number.remove_prefix(4);
    const int node = take_number(number);
    if (node < 0 || !number.empty()) continue;
    std::string list;
    std::ifstream(entry.path() / "cpulist") >> list;
    std::vector<int> cpus = parse_cpu_list(list);
    if (!cpus.empty()) table.emplace(node, std::move(cpus));
  }
  return table;
}

int numa_node_of(const NumaTable& table, const std::vector<int>& allowed) {
  if (allowed.empty()) return -1;
  for (const auto& [node, cpus] : table) {
    if (std::includes(cpus.begin(), cpus.end(), allowed.begin(), allowed.end())) return node;
  }
  return -1;
}

std::vector<int> allowed_cpus() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return {};
  std::vector<int> allowed;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) allowed.push_back(cpu);
  }
  return allowed;
}

}  // namespace rdmacoll
