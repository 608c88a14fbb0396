#include "base/wire.h"

#include <limits>

#include "base/status.h"
#include "base/text.h"

namespace rdmacoll {

Writer& Writer::put_text(std::string_view text) {
  return put_bytes(std::as_bytes(std::span(text.data(), text.size())));
}

Writer& Writer::put_bytes(std::span<const std::byte> bytes) {
  RC_ASSERT(bytes.size() <= std::numeric_limits<uint32_t>::max(), cat(bytes.size(), " bytes"));
  put(static_cast<uint32_t>(bytes.size()));
  return append(bytes.data(), bytes.size());
}

Writer& Writer::append(const void* value, std::size_t bytes) {
  if (bytes == 0) return *this;
  const std::size_t before = bytes_.size();
  bytes_.resize(before + bytes);
  std::memcpy(bytes_.data() + before, value, bytes);
  return *this;
}

std::string Reader::get_text(std::size_t bytes_max) {
  const auto bytes = get<uint32_t>();
  if (bytes > bytes_max || bytes > rest_.size()) return fail(), std::string();
  std::string text(reinterpret_cast<const char*>(rest_.data()), bytes);
  rest_ = rest_.subspan(bytes);
  return text;
}

}  // namespace rdmacoll
