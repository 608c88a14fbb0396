// Where in the program a node stands. A function is traced once, and TensorFlow copies its nodes
// into every caller: copies of one collective have one tensor_name, become ready in any order, and
// must not be taken for each other by ranks that see another order.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace rdmacoll::tensorflow {

// TensorFlow's "no frame" (eager) and its root frame (a graph outside loops).
inline constexpr uint64_t kNoFrame = ~uint64_t{0};
inline constexpr uint64_t kRootFrame = 0;

struct Place {
  // The calls and loops that the node was copied through, the same on all ranks that have traced
  // the same program: "PartitionedCall_1", "map/while/body/PartitionedCall". "" in the function
  // that is run itself.
  std::string calls;
  // The iteration of the innermost loop alone does not tell its runs apart.
  bool is_in_nested_loops = false;
};

// Of a kernel, by the name of its node.
Place place_of(std::string_view node);

// What all kernels of one tensor_name at one place have seen.
class Visits {
 public:
  // Notes one run of the collective. False when it cannot be told from another one of this step.
  bool note(int64_t step, uint64_t frame, bool is_in_nested_loops);

 private:
  std::mutex mutex_;
  int64_t step_ = 0;
  uint64_t frame_ = 0;
};

// All places of one tensor_name in this process. Only a name with several needs them in its key:
// the counters in names of calls may differ between ranks that differ elsewhere.
class Places {
 public:
  // Lives as long as the process.
  static Places& of(const std::string& tensor_name);

  // While kernels are made, which TensorFlow does for a whole graph before it runs any of them.
  Visits* add(const std::string& calls);
  // That kernel was made to optimize a graph, not to run in it.
  void withdraw(const std::string& calls);

  bool are_several() const { return are_several_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    int kernels = 0;  // that were made
    Visits visits;
  };
  void count();

  std::mutex mutex_;
  std::map<std::string, Entry> entries_;  // by place
  std::atomic<bool> are_several_{false};
};

}  // namespace rdmacoll::tensorflow
