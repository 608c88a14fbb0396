// How the movement of a decision, and the times that trials of movements took, are encoded in
// messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "agreement/messages.h"
#include "base/wire.h"
#include "collectives/algorithms.h"

namespace rdmacoll {

inline void put(Writer& writer, const Movement& movement) {
  writer.put(movement.algorithm).put(movement.segment_bytes).put(movement.in_place);
}
inline Movement get_movement(Reader& reader) {
  Movement movement;
  movement.algorithm = reader.get<Algorithm>();
  movement.segment_bytes = reader.get<uint64_t>();
  movement.in_place = reader.get<uint8_t>() != 0;
  if (!is_known(movement.algorithm)) reader.fail();
  return movement;
}

inline void put(Writer& writer, const std::vector<TrialTime>& times) {
  writer.put(static_cast<uint32_t>(times.size()));
  for (const TrialTime& time : times) {
    writer.put(time.sequence).put(time.time).put(time.ranks);
  }
}
inline std::vector<TrialTime> get_times(Reader& reader, int ranks, std::size_t count_max) {
  const auto count = reader.get<uint32_t>();
  if (count > count_max) reader.fail();
  std::vector<TrialTime> times;
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    TrialTime& time = times.emplace_back();
    time.sequence = reader.get<uint64_t>();
    time.time = reader.get<Nanoseconds>();
    time.ranks = reader.get<uint32_t>();
    const bool is_possible = time.ranks > 0 && time.ranks <= static_cast<uint32_t>(ranks);
    if (time.time < 0 || !is_possible) reader.fail();
  }
  return times;
}

}  // namespace rdmacoll
