// The iterations of nested loops, by which ranks tell the runs of one collective apart. TensorFlow
// gives a kernel the iteration of the innermost loop and the number of its frame: a hash of the
// loops' names, whose counters differ between ranks, and of the outer loops' iterations. Here these
// iterations are found again, by trying which ones give that number.
#pragma once

#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

namespace rdmacoll::tensorflow {

class Frames {
 public:
  // node: of a kernel, whose name has the names of the loops around it.
  explicit Frames(std::string_view node);

  // A number for the iterations of the outer loops, the same on all ranks. If none of the tried
  // numbers gives `frame`, it is `frame` itself, which is the same where the loops' names are.
  uint64_t outer_iterations(uint64_t frame);

 private:
  bool find(std::size_t depth, uint64_t outer, uint64_t frame);

  std::vector<uint64_t> loops_;  // hashes of their names, the outermost first
  std::mutex mutex_;
  std::vector<uint64_t> latest_;  // iterations that were found last, of the outer loops
  std::vector<uint64_t> tried_;
};

}  // namespace rdmacoll::tensorflow
