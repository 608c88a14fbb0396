// Which CPUs a rank may run on: ranks that share them give way to each other. And which NUMA node
// it is bound to: its neighbours in a ring are of the same one, where they can.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace rdmacoll {

// By number: the CPUs that are near the node's memory, ascending.
using NumaTable = std::map<int, std::vector<int>>;

// As the kernel writes it, ascending: "0-3,8,10-11". Empty where it is something else.
std::vector<int> parse_cpu_list(std::string_view text);
// Of ascending numbers, as the kernel would write them.
std::string cpu_list_text(const std::vector<int>& cpus);
// `root` is /sys/devices/system/node, or in tests a folder like it. Nodes of memory alone are left
// out; empty: the kernel says nothing.
NumaTable read_numa_table(const std::string& root);
// The one node that has all the CPUs that a process may run on; -1: there is none.
int numa_node_of(const NumaTable& table, const std::vector<int>& allowed);
// Of this process, ascending; empty: the kernel does not say.
std::vector<int> allowed_cpus();

}  // namespace rdmacoll
