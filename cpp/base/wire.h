// Reads and writes messages between processes. Little endian, no padding. A Reader never throws or
// reads past its end. After a short or absurd field it is !ok(), and later fields are 0 or empty.
// Only transports (their own records) and operation.cc (names of descriptors) read without it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace rdmacoll {

static_assert(std::endian::native == std::endian::little, "the wire is little endian");

// The longest control message between two ranks.
inline constexpr std::size_t kControlBytesMax = 1u << 20;

class Writer {
 public:
  template <typename T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) Writer& put(T value) {
    return append(&value, sizeof value);
  }
  Writer& put_text(std::string_view text);              // u32 length, bytes
  Writer& put_bytes(std::span<const std::byte> bytes);  // u32 length, bytes
  template <typename T>
  Writer& put_list(const std::vector<T>& values) {  // u32 count, values
    put(static_cast<uint32_t>(values.size()));
    for (const T& value : values) put(value);
    return *this;
  }

  std::span<const std::byte> bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  void clear() { bytes_.clear(); }

 private:
  Writer& append(const void* value, std::size_t bytes);

  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) T get() {
    T value{};
    take_all(value);
    return value;
  }
  // Reads consecutive fields, all or none of them.
  template <typename... T>
  requires((std::is_arithmetic_v<T> || std::is_enum_v<T>)&&...) bool take_all(T&... values) {
    if ((sizeof(T) + ...) > rest_.size()) return fail(), false;
    const std::byte* at = rest_.data();
    ((std::memcpy(&values, at, sizeof(T)), at += sizeof(T)), ...);
    rest_ = rest_.subspan((sizeof(T) + ...));
    return true;
  }
  std::string get_text(std::size_t bytes_max);
  template <typename T>
  std::vector<T> get_list(std::size_t count_max) {
    const auto count = get<uint32_t>();
    if (count > count_max || count * sizeof(T) > rest_.size()) return fail(), std::vector<T>{};
    std::vector<T> values(count);
    for (T& value : values) value = get<T>();
    return values;
  }

  void fail() {
    ok_ = false;
    rest_ = {};
  }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && rest_.empty(); }  // everything was read and nothing is left
  std::size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace rdmacoll
