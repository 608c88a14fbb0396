// What workers ask of servers and what these answer: control messages, with the data beside them as
// transfers whose number and sizes follow from the request at both ends.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "ps/store.h"
#include "transport/transport.h"

namespace rdmacoll::ps {

enum class Ask : uint8_t {
  declare,    // variables, and the rule in `text`; the answer says whether there are values already
  init,       // data: values
  push,       // data: gradients
  pull,       // data back: values
  push_pull,  // both
  push_rows,  // data: rows and their gradients
  pull_rows,  // data: rows; back: their values
  updates,    // the answer's text is how many the variable that has had the most of them has had
  save,       // to the file that `text` begins the name of
  saved,      // the answer's text is the number of the save that this file is of
  restore,    // from it, into the variables that are declared
  stats,      // the answer's text is JSON
  leave,      // this worker needs nothing any more; with a text: since a server is lost
};

// Of a variable: its share on the server, or so many rows of it.
struct Item {
  uint32_t variable = 0;
  uint32_t rows = 0;
};

struct Request {
  uint64_t id = 0;  // counts at each worker and server
  Ask ask = Ask::leave;
  // Updates that this worker has made before; of init: that were made; of save: its number, the
  // same at all servers; of leave with a text: the lost server, as the world numbers it.
  uint64_t step = 0;
  uint32_t slot = 0;         // init, pull: 0: of the values; else of the optimizer's slot slot - 1
  uint32_t chunk_bytes = 0;  // of the largest transfer
  std::optional<double> learning_rate;  // of a push; none: the rule's
  std::vector<Item> items;
  std::string text;
  uint32_t first_spec = 0;  // the number of the first of `specs`
  std::vector<StoredSpec> specs;
};

struct Answer {
  enum class Kind : uint8_t {
    accepted,  // data follows, if any was asked for
    done,
    refused,
    leaving,  // of no request: the server ends before its workers, and `text` is why
  };
  uint64_t id = 0;
  Kind kind = Kind::done;
  Code code = Code::ok;  // refused
  std::string text;      // refused: the sentence
};

// One transfer there, back, or both; never of two items.
struct Chunk {
  std::size_t item = 0;
  uint64_t first = 0;  // element of the share; of rows: the number of the first in the request
  uint64_t elements = 0;
  std::size_t bytes_there = 0;
  std::size_t bytes_back = 0;
};

inline constexpr std::size_t kItemsMax = 65'536;
inline constexpr std::size_t kAnswerBytesMax = 65'536;
inline constexpr std::size_t kChunkBytesLeast = 4096;
// Transfers of a request's data, and of what comes back.
inline constexpr Lane kLaneThere = 0;
inline constexpr Lane kLaneBack = 1;

std::vector<std::byte> encode(const Request& request);
std::vector<std::byte> encode(const Answer& answer);
// Whether the bytes are one; its numbers are in range, though not what they refer to.
bool decode(std::span<const std::byte> bytes, Request& request);
bool decode(std::span<const std::byte> bytes, Answer& answer);

// So many fit into a message, however long their names are.
inline constexpr std::size_t kSpecsMax = 512;

bool goes_by_rows(Ask ask);
bool makes_update(Ask ask);
// How many rows of a variable fit into one transfer, with their numbers; 0: not even one.
uint64_t rows_in_a_chunk(const StoredSpec& spec, std::size_t chunk_bytes);
// Whether a chunk goes there as a view: packed by the worker into its pool, which the server reads.
// Smaller ones are copied in less time than a view is given back.
inline bool goes_as_view(const Reach& reach, const Chunk& chunk) {
  constexpr std::size_t kBytesLeast = 4096;
  return reach.views && chunk.bytes_there >= kBytesLeast;
}
// The transfers of an item of a request, in order.
void append_chunks(const Request& request, std::size_t item, const StoredSpec& spec,
                   std::vector<Chunk>& chunks);

}  // namespace rdmacoll::ps
