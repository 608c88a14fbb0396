// The iterations of nested loops, which distinguish the runs of one collective. TensorFlow gives a
// kernel the iteration of the innermost loop and the number of its frame. This number is a hash of
// the loops' names, whose counters differ between ranks, and of the outer iterations. This class
// finds the outer iterations by trying which ones give that number.
#pragma once

#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

namespace rdmacoll::tensorflow {

class Frames {
 public:
  // `node`: the name of a kernel's node, which contains the names of the loops around it.
  explicit Frames(std::string_view node);

  // Finds the iterations of the outer loops whose hash is `frame`, and returns a number for them
  // that is equal on all ranks. Returns `frame` if it finds none: ranks with equal loop names have
  // equal frames.
  uint64_t outer_iterations(uint64_t frame);

 private:
  bool find(std::size_t depth, uint64_t outer, uint64_t frame);

  std::vector<uint64_t> loops_;  // hashes of their names, the outermost first
  std::mutex mutex_;
  std::vector<uint64_t> latest_;  // the latest found iterations of the outer loops
  std::vector<uint64_t> tried_;
};

}  // namespace rdmacoll::tensorflow
