// Memory of GPUs in a script.
#include <array>

#include "sim/random_source.h"
#include "sim/script.h"

namespace rdmacoll {

void make_direct(uint64_t seed, SimScript& script) {
  RandomSource random(seed, 16);
  script.network.pool_alone = true;
  script.network.node_ranks = random.chance(0.7) ? 1 : 2;
  script.network.eager_bytes = random.chance(0.7) ? 0 : 24;
  const auto way = random.between(0, 5);
  script.direct.ways = {.sends = way != 0, .receives = way != 1};
  script.direct.flush =
      random.one_of(std::array{WriteFlush::none, WriteFlush::call, WriteFlush::read});
  // Small allocations take a page of 64 KiB each.
  const auto pages = random.one_of(std::array<int64_t, 3>{8, 16, 1000});
  script.direct.bar1_bytes = static_cast<uint64_t>(pages) << 16;
  script.direct.refused = random.chance(0.4) ? 0.2 : 0;
}

void make_ipc(uint64_t seed, SimScript& script) {
  RandomSource random(seed, 18);
  script.network.views = true;
  if (random.chance(0.7)) script.network.node_ranks = 0;
  script.ipc.is_on = true;
  script.ipc.shares_arrays = random.chance(0.5);
  script.ipc.slab_bytes =
      static_cast<uint64_t>(random.one_of(std::array<int64_t, 3>{1 << 10, 8 << 10, 64 << 10}));
  script.ipc.bytes_min = static_cast<uint64_t>(random.one_of(std::array<int64_t, 3>{0, 0, 200}));
  script.ipc.refused = random.chance(0.2) ? 0.3 : 0;
}

void make_delays(uint64_t seed, SimScript& script) {
  RandomSource random(seed, 19);
  if (random.chance(0.7)) return;
  script.gpu_delay_max = random.one_of(std::array<Nanoseconds, 3>{20, 300, 1000}) * kMillisecond;
}

bool SimScript::is_on_gpu(int rank, std::size_t index) const {
  switch (gpus) {
    case GpuUse::none:
      return false;
    case GpuUse::all:
      return true;
    case GpuUse::one_rank:
      return rank == ranks - 1;
    case GpuUse::some:
      return (static_cast<std::size_t>(rank) + index) % 2 == 0;
  }
  return false;
}

}  // namespace rdmacoll
