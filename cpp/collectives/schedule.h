// A schedule says who does what with which part, never where that part lies or how long it is.
// One per (operation, algorithm, world, root); instantiated per segment, several segments in flight.
// Pure: no clock, no socket, no memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rdmacoll {

// send/receive/reduce/copy come from algorithms; the others from lower().
enum class Verb : uint8_t { send, receive, reduce, copy, pack, unpack, publish, await };

// input and output are the caller's tensors (possibly the same memory, so they count as one when
// hazards are sought); work is a contiguous, viewable image of the segment; scratch is where
// receives land; view is what an await has shown.
enum class Space : uint8_t { input, output, work, scratch, view };

// Parts [first_part, first_part + parts) of the segment. In scratch, numbers are slots that each
// hold one part; in view, first_part is the index of the await step.
struct Slice {
  Space space = Space::input;
  uint16_t first_part = 0;
  uint16_t parts = 1;

  bool operator==(const Slice&) const = default;
};

struct Source {
  Slice slice;
  // The ranks whose contributions this operand holds, for verify() and for reading a schedule.
  uint16_t part = 0;  // which part of the segment the operand is (scratch and view do not say)
  uint16_t parts = 1;
};

struct Step {
  Verb verb = Verb::copy;
  uint8_t lane = 0;
  uint8_t level = 0;        // 0 within the node, 1 across nodes
  bool final = false;       // the last reduction of these elements: divide, scale and round here
  bool prescale = false;    // copy of the raw input, scaled
  int32_t peer = -1;        // send, receive, publish, await
  Slice to;                 // written (receive, reduce, copy, pack, unpack), or sent from (send, publish)
  uint16_t first_source = 0, sources = 0;  // into Schedule::sources, in rank order
  uint16_t first_after = 0, afters = 0;    // into Schedule::afters: steps that must be done before
};

struct Schedule {
  int ranks = 0;
  int rank = 0;
  uint16_t parts = 1;          // a segment is cut into this many
  uint16_t scratch_slots = 0;  // each as large as the largest part
  bool uses_work = false;
  std::vector<Step> steps;
  std::vector<Source> sources;
  std::vector<uint16_t> afters;
};

// "step 4: reduce output[2] <- input[2] + scratch[0] after 1, 3 (final)"
std::string to_text(const Schedule& schedule);

}  // namespace rdmacoll
