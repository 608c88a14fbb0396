// The place of a node in the program. A function is traced once, and TensorFlow copies its nodes
// into every caller: copies of one collective have one tensor_name, become ready in any order, and
// must not be taken for each other by ranks that see another order.
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

struct Place {
  // The calls and loops that the node was copied through: "PartitionedCall_1",
  // "map/while/body/PartitionedCall". "" in the function that is run itself. TensorFlow's counters
  // in it differ between ranks that differ elsewhere in their graphs; the order of places does not.
  std::string calls;
  // The iteration of the innermost loop alone does not tell its runs apart.
  bool is_in_nested_loops = false;
};

// The place of a kernel, by the name of its node.
Place place_of(std::string_view node);

// The names of the loops that the node was copied through, as TensorFlow's frames have them, the
// outermost first.
std::vector<std::string_view> loops_around(std::string_view node);

// The order in which TensorFlow has numbered what they consist of: "while_9/body" comes before
// "while_10/body".
bool comes_before(std::string_view calls, std::string_view other);

// The runs that all kernels of one name have seen.
class Visits {
 public:
  // Notes one run of the collective. False when it cannot be told from another one of this step.
  bool note(int64_t step, uint64_t frame, bool is_in_nested_loops);

 private:
  std::mutex mutex_;
  int64_t step_ = 0;
  uint64_t frame_ = 0;
};

// The copies of one collective in one graph. TensorFlow makes the kernels of a whole graph before
// it runs any of them; so the copies that are made until one runs belong together.
class Copies {
 public:
  explicit Copies(std::string tensor_name) : tensor_name_(std::move(tensor_name)) {}

  // False: one with this node's name is there, or one has run. Then the node is in another graph.
  bool add(const std::string& node, const std::string& calls);
  // It was made to optimize a graph, not to run in it, or it is gone.
  void withdraw(const std::string& node);
  // The name that ranks have for the copy at `calls`: the tensor's name, with the number of its
  // place if there are several. From the first call on no copy is added.
  std::string name_at(const std::string& calls);

 private:
  const std::string tensor_name_;
  std::mutex mutex_;
  std::map<std::string, std::string> calls_;  // by the node's name
  std::vector<std::string> places_;           // in their order, once one has run
  bool has_run_ = false;
};

// All copies of one tensor_name in one process set of this process.
class Places {
 public:
  // Lives as long as the process.
  static Places& of(const std::string& tensor_name, int32_t process_set);

  explicit Places(std::string tensor_name) : tensor_name_(std::move(tensor_name)) {}

  // While kernels are made.
  std::shared_ptr<Copies> add(const std::string& node, const std::string& calls);
  // The visits of the collective that runs under this name.
  Visits& visits(const std::string& name);

 private:
  const std::string tensor_name_;
  std::mutex mutex_;
  std::shared_ptr<Copies> latest_;
  std::map<std::string, Visits> visits_;
};

}  // namespace rdmacoll::tensorflow
