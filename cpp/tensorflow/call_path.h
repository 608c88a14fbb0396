// The calls through which a node has come into a graph. TensorFlow traces a function once and
// copies its nodes into every caller. Copies of one collective have one tensor_name and become
// ready in any order. Ranks that see different orders must not confuse them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rdmacoll::tensorflow {

// TensorFlow's "no frame" (eager) and its root frame (a graph outside loops).
inline constexpr uint64_t kNoFrame = ~uint64_t{0};
inline constexpr uint64_t kRootFrame = 0;

struct CallPath {
  // The calls and loops that the node was copied through: "PartitionedCall_1",
  // "map/while/body/PartitionedCall". "" in the function that is run itself. TensorFlow's counters
  // in it may differ between ranks whose graphs differ elsewhere. The order of call paths is equal.
  std::string calls;
  // True if the iteration of the innermost loop alone does not distinguish the node's runs.
  bool is_in_nested_loops = false;
};

// Returns the call path of a kernel by the name of its node.
CallPath call_path_of(std::string_view node);

// Returns the names of the loops that the node was copied through, the outermost first, as
// TensorFlow's frames have them.
std::vector<std::string_view> loops_around(std::string_view node);

// Compares call paths in the order of TensorFlow's counters: "while_9/body" comes before
// "while_10/body".
bool comes_before(std::string_view calls, std::string_view other);

// The runs that all kernels of one name have seen.
class Visits {
 public:
  // Notes one run of the collective. Returns false if another run of this step looks the same.
  bool note(int64_t step, uint64_t frame, bool is_in_nested_loops);

 private:
  std::mutex mutex_;
  int64_t step_ = 0;
  uint64_t frame_ = 0;
};

// The copies of one collective in one graph. TensorFlow makes all kernels of a graph before it runs
// any of them. So the copies that are made until one runs belong together.
class Copies {
 public:
  explicit Copies(std::string tensor_name) : tensor_name_(std::move(tensor_name)) {}

  // Returns false if a copy with this node's name exists or one has run. The node is in another
  // graph then.
  bool add(const std::string& node, const std::string& calls);
  // Call if the kernel is gone, or was only made to optimize a graph.
  void withdraw(const std::string& node);
  // Returns the name that ranks use for the copy at `calls`. It is the tensor's name, with the
  // number of its call path if there are several. After the first call no copy is added.
  std::string name_at(const std::string& calls);

 private:
  const std::string tensor_name_;
  std::mutex mutex_;
  std::map<std::string, std::string> calls_;  // by the node's name
  std::vector<std::string> paths_;            // in order, set at the first run
  bool has_run_ = false;
};

// All copies of one tensor_name in one process set of this process.
class CopiesOfName {
 public:
  // The object lives as long as the process.
  static CopiesOfName& of(const std::string& tensor_name, int32_t process_set);

  explicit CopiesOfName(std::string tensor_name) : tensor_name_(std::move(tensor_name)) {}

  // Call while kernels are made.
  std::shared_ptr<Copies> add(const std::string& node, const std::string& calls);
  // Returns the visits of the collective that runs under this name.
  Visits& visits(const std::string& name);

 private:
  const std::string tensor_name_;
  std::mutex mutex_;
  std::shared_ptr<Copies> latest_;
  std::map<std::string, Visits> visits_;
};

}  // namespace rdmacoll::tensorflow
