// This machine, and this process's share of it, according to the kernel's files. Nothing here is
// measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rdmacoll::probe {

struct MachineFacts {
  std::string processor;      // "AMD EPYC, family 26, model 2"; "unknown"
  std::string kernel;         // "6.18.44"
  std::vector<int> cpus;      // those that the ranks may use; empty: unknown
  int online = 1;             // the machine's CPUs
  double quota = 0;           // cores of processor time that the control group grants; 0: all
  uint64_t memory_limit = 0;  // bytes, of the control group or the machine; 0: unknown
  uint64_t l2_bytes = 0;      // caches of one CPU; 0: unknown
  uint64_t l3_bytes = 0;      // 0: unknown, or none
  std::vector<int> l3_cpus;   // CPUs that share this L3; empty: unknown
  std::vector<int> siblings;  // CPUs that share its core: hyper-threads
  std::string shared_huge;    // huge pages of shared memory: "never", "advise"; "": unknown

  // Text that is equal where measurements may be shared: processor, kernel, cores and quota.
  std::string key() const;
};

// `cpus`: the CPUs of all ranks of the node; empty: those that the control group permits, also if
// this process is bound to one of them. `root`: the folder of /proc and /sys, for tests. Never
// fails: unreadable facts are unknown. The caches and siblings are those of the first CPU.
MachineFacts read_machine(std::vector<int> cpus = {}, const std::string& root = "");

}  // namespace rdmacoll::probe
