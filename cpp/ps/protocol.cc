#include "ps/protocol.h"

#include <algorithm>

#include "base/wire.h"

namespace rdmacoll::ps {
std::vector<std::byte> encode(const Request& request) {
  Writer writer;
  writer.put(request.id).put(request.kind).put(request.step).put(request.slot);
  writer.put(request.chunk_bytes);
  writer.put(static_cast<uint8_t>(request.learning_rate.has_value()));
  writer.put(request.learning_rate.value_or(0));
  writer.put(static_cast<uint32_t>(request.items.size()));
  for (const Item& item : request.items) writer.put(item.variable).put(item.rows);
  writer.put_text(request.text).put(request.first_spec);
  writer.put(static_cast<uint32_t>(request.specs.size()));
  for (const StoredSpec& spec : request.specs) write(spec, writer);
  RC_ASSERT(writer.size() <= kControlBytesMax);
  return {writer.bytes().begin(), writer.bytes().end()};
}

bool decode(std::span<const std::byte> bytes, Request& request) {
  request = {};
  Reader reader(bytes);
  request.id = reader.get<uint64_t>();
  request.kind = reader.get<RequestKind>();
  request.step = reader.get<uint64_t>();
  request.slot = reader.get<uint32_t>();
  request.chunk_bytes = reader.get<uint32_t>();
  const bool has_rate = reader.get<uint8_t>() != 0;
  const auto rate = reader.get<double>();
  if (has_rate) request.learning_rate = rate;
  const auto items = reader.get<uint32_t>();
  if (items > kItemsMax || items * sizeof(Item) > reader.left()) return false;
  for (uint32_t i = 0; i < items; ++i) {
    const auto variable = reader.get<uint32_t>();
    request.items.push_back({variable, reader.get<uint32_t>()});
  }
  request.text = reader.get_text(kRuleBytesMax);
  request.first_spec = reader.get<uint32_t>();
  const auto specs = reader.get<uint32_t>();
  if (specs > kSpecsMax) return false;
  for (uint32_t i = 0; i < specs && reader.ok(); ++i) request.specs.push_back(read_spec(reader));
  return reader.done() && request.kind <= RequestKind::leave &&
         request.chunk_bytes >= kChunkBytesLeast && request.chunk_bytes % sizeof(double) == 0;
}

std::vector<std::byte> encode(const Answer& answer) {
  Writer writer;
  writer.put(answer.id).put(answer.kind).put(answer.code);
  writer.put_text(std::string_view(answer.text).substr(0, kAnswerBytesMax));
  return {writer.bytes().begin(), writer.bytes().end()};
}

bool decode(std::span<const std::byte> bytes, Answer& answer) {
  Reader reader(bytes);
  answer.id = reader.get<uint64_t>();
  answer.kind = reader.get<Answer::Kind>();
  answer.code = reader.get<Code>();
  answer.text = reader.get_text(kAnswerBytesMax);
  return reader.done() && answer.kind <= Answer::Kind::leaving && answer.code <= Code::failed;
}

bool makes_update(RequestKind kind) {
  return kind == RequestKind::push || kind == RequestKind::push_pull ||
         kind == RequestKind::push_rows;
}
bool goes_by_rows(RequestKind kind) {
  return kind == RequestKind::push_rows || kind == RequestKind::pull_rows;
}

uint64_t rows_in_a_chunk(const StoredSpec& spec, std::size_t chunk_bytes) {
  return chunk_bytes / (sizeof(int64_t) + spec.row_bytes());
}

void append_chunks(const Request& request, std::size_t item, const StoredSpec& spec,
                   std::vector<Chunk>& chunks) {
  RC_ASSERT(request.chunk_bytes >= kChunkBytesLeast);
  if (request.kind == RequestKind::updates) return;
  if (goes_by_rows(request.kind)) {
    const uint64_t most = rows_in_a_chunk(spec, request.chunk_bytes);
    RC_ASSERT(most > 0);
    for (uint64_t at = 0; at < request.items[item].rows; at += most) {
      const uint64_t rows = std::min(most, request.items[item].rows - at);
      const std::size_t values = rows * spec.row_bytes();
      const bool pushes = request.kind == RequestKind::push_rows;
      chunks.push_back({item, at, rows * spec.row_elements,
                        rows * sizeof(int64_t) + (pushes ? values : 0), pushes ? 0 : values});
    }
    return;
  }
  const bool there = request.kind != RequestKind::pull;
  const bool back = request.kind == RequestKind::pull || request.kind == RequestKind::push_pull;
  const uint64_t most = request.chunk_bytes / size_of(spec.dtype);
  for (uint64_t at = 0; at < spec.elements; at += most) {
    const uint64_t elements = std::min(most, spec.elements - at);
    const std::size_t bytes = elements * size_of(spec.dtype);
    chunks.push_back({item, at, elements, there ? bytes : 0, back ? bytes : 0});
  }
}

}  // namespace rdmacoll::ps
