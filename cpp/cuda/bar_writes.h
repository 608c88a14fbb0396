// Small results that the processor writes to memory of GPUs itself, through GDRCopy. A copy costs
// calls of the driver and a start on the GPU. Such a write costs neither.
//
// Memory is mapped beside the calls, at its first use, which is still copied. A mapping is of one
// allocation, by its buffer id: memory that was freed is never written.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "compute/compute.h"
#include "cuda/driver_thread.h"
#include "cuda/gdrcopy.h"
#include "cuda/gpus.h"

namespace rdmacoll::cuda {

// The shortest times of both ways for one size, in nanoseconds, each until the data is on the GPU.
struct WriteTimes {
  std::size_t bytes = 0;
  int64_t copy = 0, write = 0;
};

// Pure. The largest size up to which all writes are faster. `times`: by size.
std::size_t bytes_written_at_most(std::span<const WriteTimes> times);

class BarWrites {
 public:
  static constexpr std::size_t kBytesMax = 4 << 10;
  // They take up to two pages each, so 8 MiB of BAR1, which has 256 MiB on the smallest boards.
  static constexpr std::size_t kMappingsMax = 64;
  // More pieces are copied by one kernel.
  static constexpr std::size_t kPiecesMax = 8;
  // A mapping that has served none of so many results gives its place to another one.
  static constexpr uint64_t kTurnsKept = 16 * kMappingsMax;

  // `thread` outlives all calls. `library`: as Gdrcopy::open takes it, or "" for none.
  BarWrites(std::shared_ptr<Gpus> gpus, DriverThread& thread, const std::string& library, Log log);
  ~BarWrites();
  BarWrites(const BarWrites&) = delete;
  BarWrites& operator=(const BarWrites&) = delete;

  // Opens the library at its first use, and measures writes to a GPU beside copies: each size once,
  // and more often until `limit`. The function outlives this object. The driver's thread calls it.
  std::function<void(Gpu gpu, const Clock& clock, Nanoseconds limit)> probe() const;

  // Writes the result of a copy from host memory, if that is the faster way and all of its memory
  // is mapped. The memory must be free: nothing that was submitted to a GPU uses it any more.
  // False: nothing was done, or a part that a copy may overwrite. Only the holder of the baton
  // calls it.
  bool write(const ComputeJob& job, std::size_t bytes);

 private:
  struct Shared;
  struct Entry;
  // A piece of the result, and its mapping.
  struct Target {
    Piece piece;
    Entry* entry;
  };

  bool find_all(std::span<const Piece> to, std::size_t bytes);
  Entry* find(const Piece& piece);
  void map(const Piece& piece);
  void drop(std::size_t index);
  void drop_freed();

  const std::shared_ptr<Shared> shared_;
  DriverThread& thread_;
  std::vector<std::shared_ptr<Entry>> entries_;
  std::vector<Target> targets_;  // the pieces of the job that is written
  uint64_t turn_ = 0;
};

}  // namespace rdmacoll::cuda
