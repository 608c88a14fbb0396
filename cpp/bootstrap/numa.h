// The CPUs that a rank may run on, since ranks that share CPUs yield to each other. And the NUMA
// node that a rank is bound to, since its neighbours in a ring are on the same node if possible.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace rdmacoll {

// By number: the CPUs near the node's memory, ascending.
using NumaTable = std::map<int, std::vector<int>>;

inline constexpr const char* kNumaFolder = "/sys/devices/system/node";

// Parses an ascending list in the kernel's form: "0-3,8,10-11". Empty if `text` is something else.
std::vector<int> parse_cpu_list(std::string_view text);
// Writes ascending numbers in the kernel's form.
std::string cpu_list_text(const std::vector<int>& cpus);
// Reads the nodes and their CPUs. `root` is kNumaFolder, or in tests a folder like it.
// Nodes without CPUs are left out. Empty: the kernel says nothing.
NumaTable read_numa_table(const std::string& root);
// The node that has all CPUs that a process may run on; -1: there is none.
int numa_node_of(const NumaTable& table, const std::vector<int>& allowed);
// The CPUs that this process may run on, ascending; empty: the kernel does not say.
std::vector<int> allowed_cpus();

}  // namespace rdmacoll
