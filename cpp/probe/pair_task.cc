#include "probe/pair_task.h"

#include <algorithm>

#include "base/wire.h"

namespace rdmacoll::probe {
namespace {

template <typename Visit>
void visit_paint(Piece piece, int sender, uint32_t slot, Visit visit) {
  uint64_t state = (static_cast<uint64_t>(sender) << 32 | slot) * 0x9e3779b97f4a7c15u + 1;
  for (std::size_t at = 0; at < piece.bytes; at += sizeof state) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t word = state ^ (state >> 32);
    for (std::size_t i = 0; i < std::min(sizeof word, piece.bytes - at); ++i) {
      visit(piece.data[at + i], static_cast<std::byte>(word >> (8 * i)));
    }
  }
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  const Task& task = message.task;
  Writer writer;
  writer.put(message.kind).put(task.pattern).put(task.forward).put(task.back).put(task.checks);
  writer.put(task.bytes).put(task.rounds).put(task.window).put(message.wrong_bytes);
  return {writer.bytes().begin(), writer.bytes().end()};
}

bool decode(std::span<const std::byte> bytes, Message& message) {
  Reader reader(bytes);
  Task& task = message.task;
  message.kind = reader.get<Message::Kind>();
  task.pattern = reader.get<Pattern>();
  task.forward = reader.get<uint8_t>() != 0;
  task.back = reader.get<uint8_t>() != 0;
  task.checks = reader.get<uint8_t>() != 0;
  task.bytes = reader.get<uint64_t>();
  task.rounds = reader.get<uint32_t>();
  task.window = reader.get<uint32_t>();
  message.wrong_bytes = reader.get<uint64_t>();
  return reader.done() && message.kind <= Message::Kind::end && task.pattern <= Pattern::stream &&
         task.window >= 1 && task.window <= kWindowMax;
}

void paint(Piece piece, int sender, uint32_t slot) {
  visit_paint(piece, sender, slot, [](std::byte& place, std::byte value) { place = value; });
}

uint64_t count_wrong(Piece piece, int sender, uint32_t slot) {
  uint64_t wrong = 0;
  visit_paint(piece, sender, slot,
              [&](std::byte place, std::byte value) { wrong += place != value ? 1 : 0; });
  return wrong;
}

}  // namespace rdmacoll::probe
