// A schedule says which rank does what with which part, but not where that part lies or how long it
// is. There is one for each operation, algorithm, world and root. It runs once for each segment,
// with several segments in flight. Pure: no clock, no socket, no memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace rdmacoll {

// Segments of one batch in flight. A segment that is staged for a GPU keeps three resources busy,
// one after the other: the copies from the GPU, the processor or the wire, and the copies to the
// GPU. If none of them takes longer than t for a segment, it is through after 3 t. So three
// segments keep the slowest resource busy (Little's law), on every machine. The fourth fills the
// times in which a segment is between two of them. More segments would only take more memory.
inline constexpr int kSegmentsInFlight = 4;

// send, receive, reduce and copy come from the algorithms; the others from lower().
//   send     to.peer gets the bytes of `to`; done when they may be overwritten
//   receive  the next bytes from the peer land in `to`
//   reduce   to = sources combined, in the order given (rank order)
//   copy     to = the sources, one after the other
//   publish  like send, but the peer reads our memory itself; done when it has finished reading.
//            A peer to which the memory is lent also writes its answer there
//   await    like receive, but we only learn where to read: Space::view, slot = this step
//   pack     copy of a piece of the caller's memory into work
//   unpack   copy from work back into the caller's memory
enum class Verb : uint8_t { send, receive, reduce, copy, publish, await, pack, unpack };

// input and output are the caller's tensors. They may be the same memory, so the search for hazards
// counts them as one. Space::work is a contiguous image of the segment in memory that peers can
// view. A scratch slot holds one slice. A view is the memory that an await has learned. Space::sums
// is an image of the segment like work, for wide slices.
enum class Space : uint8_t { input, output, work, scratch, view, sums };
inline constexpr int kSpaces = 6;

// Parts [first_part, first_part + parts) of the segment. `slot`: which scratch slot or which await.
struct Slice {
  Space space = Space::input;
  uint16_t slot = 0;
  uint16_t first_part = 0;
  uint16_t parts = 1;
  // A partial sum of 16-bit floats stays in float32, so that it is rounded only once.
  bool wide = false;

  bool operator==(const Slice&) const = default;
};
inline constexpr int kWide = 2;  // a wide slice has this many times the bytes
inline int width(const Slice& slice) { return slice.wide ? kWide : 1; }
// Whether the slice is one of the caller's tensors.
inline bool is_callers(const Slice& slice) {
  return slice.space == Space::input || slice.space == Space::output;
}

struct Step {
  Verb verb = Verb::copy;
  bool final = false;     // the last step of a sum: it divides, scales and rounds
  bool prescale = false;  // a copy of the raw input, scaled
  bool lends = false;     // publish: the peer also writes to `to`, until it releases it
  int32_t peer = -1;      // send, receive, publish, await
  uint16_t ordinal = 0;   // the number of earlier steps in the same direction with this peer
  Slice to;               // written by receive, reduce, copy, pack, unpack; read by send, publish
  uint16_t first_source = 0, sources = 0;  // into Schedule::sources
  uint32_t first_after = 0;                // into Schedule::afters: steps that must be done first
  uint16_t afters = 0;
};

inline bool sends(Verb verb) { return verb == Verb::send || verb == Verb::publish; }
inline bool receives(Verb verb) { return verb == Verb::receive || verb == Verb::await; }
inline bool computes(Verb verb) { return !sends(verb) && !receives(verb); }
inline bool writes(const Step& step) { return !sends(step.verb) || step.lends; }

struct Schedule {
  int ranks = 0;  // ranks with data, without servers
  int rank = 0;
  uint16_t parts = 1;             // a segment is cut into this many
  std::vector<uint16_t> scratch;  // by slot: its room in parts; a wide part counts twice
  bool uses_work = false;
  bool uses_sums = false;
  bool wide_sums = false;  // no sum may be rounded before it is whole
  std::vector<Step> steps;
  std::vector<Slice> sources;
  std::vector<uint16_t> afters;

  std::span<const Slice> sources_of(const Step& step) const {
    return std::span(sources).subspan(step.first_source, step.sources);
  }
  // Visits the await of each view that a step reads or writes.
  template <typename Visit>
  void each_view(const Step& step, Visit visit) const {
    for (const Slice& source : sources_of(step)) {
      if (source.space == Space::view) visit(source.slot);
    }
    if (computes(step.verb) && step.to.space == Space::view) visit(step.to.slot);
  }
  std::span<const uint16_t> afters_of(const Step& step) const {
    return std::span(afters).subspan(step.first_after, step.afters);
  }
};

// " 4 reduce output[2] <- input[2], scratch0[2] after 1, 3 (final)": one line per step.
std::string to_text(const Schedule& schedule);

}  // namespace rdmacoll
