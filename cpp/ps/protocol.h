// Requests of workers and answers of servers. They are control messages. Their data are separate
// transfers, whose number and sizes both ends derive from the request.
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

enum class RequestKind : uint8_t {
  declare,    // variables, and the rule in `text`; the answer shows whether values exist
  init,       // sends values
  push,       // sends gradients
  pull,       // receives values
  push_pull,  // sends gradients, receives values
  push_rows,  // sends row numbers and gradients
  pull_rows,  // sends row numbers, receives their values
  updates,    // the answer's text is the largest number of updates among the variables
  save,       // saves to a file; `text` is the prefix of its name
  saved,      // the answer's text is the number of the save that wrote the file
  restore,    // restores the declared variables from the file
  stats,      // the answer's text is JSON
  leave,      // the worker needs nothing more; with a text: a server is lost
};

// A variable: its share on the server, or some of its rows.
struct Item {
  uint32_t variable = 0;
  uint32_t rows = 0;
};

struct Request {
  uint64_t id = 0;  // counted for each worker and server
  RequestKind kind = RequestKind::leave;
  // The number of earlier updates of this worker. init: the number of updates of the values. save:
  // the number of the save, equal on all servers. leave with a text: the number of the lost server
  // in the world.
  uint64_t step = 0;
  uint32_t slot = 0;         // init, pull: 0 for the values, n for the optimizer's slot n - 1
  uint32_t chunk_bytes = 0;  // the largest transfer
  std::optional<double> learning_rate;  // for a push; none: the rule's
  std::vector<Item> items;
  std::string text;
  uint32_t first_spec = 0;  // number of the first of `specs`
  std::vector<StoredSpec> specs;
};

struct Answer {
  enum class Kind : uint8_t {
    accepted,  // data follows, if requested
    done,
    refused,
    leaving,  // answers no request: the server ends before its workers; `text` has the cause
  };
  uint64_t id = 0;
  Kind kind = Kind::done;
  Code code = Code::ok;  // if refused
  std::string text;      // refused: the message
};

// The transfers of one chunk: to the server, back, or both. A chunk belongs to one item.
struct Chunk {
  std::size_t item = 0;
  uint64_t first = 0;  // element of the share; by rows: index of the first row in the request
  uint64_t elements = 0;
  std::size_t bytes_there = 0;
  std::size_t bytes_back = 0;
};

// The chunks of a worker that a server has in progress.
inline constexpr std::size_t kWindow = 2;
inline constexpr std::size_t kItemsMax = 65'536;
inline constexpr std::size_t kAnswerBytesMax = 65'536;
inline constexpr std::size_t kChunkBytesLeast = 4096;
// Lanes of the data to the server, and of the data back.
inline constexpr Lane kLaneThere = 0;
inline constexpr Lane kLaneBack = 1;

std::vector<std::byte> encode(const Request& request);
std::vector<std::byte> encode(const Answer& answer);
// Return false if the bytes are malformed. Numbers are checked for their range, but not for the
// existence of what they name.
bool decode(std::span<const std::byte> bytes, Request& request);
bool decode(std::span<const std::byte> bytes, Answer& answer);

// This many specs fit into a message with names of any length.
inline constexpr std::size_t kSpecsMax = 512;

bool goes_by_rows(RequestKind kind);
bool makes_update(RequestKind kind);
// The number of rows of a variable, with their numbers, that fit into one transfer. May be 0.
uint64_t rows_in_a_chunk(const StoredSpec& spec, std::size_t chunk_bytes);
// Whether a chunk is sent as a view: the worker packs it into its pool, and the server reads it
// there. Smaller chunks are copied faster than a view is released.
inline bool goes_as_view(const Reach& reach, const Chunk& chunk) {
  constexpr std::size_t kBytesLeast = 4096;
  return reach.views && chunk.bytes_there >= kBytesLeast;
}
// Appends the transfers of an item, in order.
void append_chunks(const Request& request, std::size_t item, const StoredSpec& spec,
                   std::vector<Chunk>& chunks);

}  // namespace rdmacoll::ps
