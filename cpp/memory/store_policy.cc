#include "memory/store_policy.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "base/processor_hints.h"
#include "memory/streaming.h"

namespace rdmacoll {
namespace {

// The part of the time of a byte from memory that a reader saves if the byte is in the writer's
// cache.
constexpr double kSavedByCache = 0.6;
// A new trial begins if writes through the cache take this many times as long as in their last
// trial, this many times in a row.
constexpr double kWorse = 2.0;
constexpr uint32_t kWorseMax = 3;

// The time when all earlier writes are in the cache or in memory.
uint64_t ticks_after_writes() {
  await_writes();
  return processor_ticks();
}

double measure_memory() {
  constexpr std::size_t kBytes = 64 << 10;
  constexpr int kTurns = 5;
  const std::vector<std::byte> from(kBytes);
  std::vector<std::byte> to(kBytes);
  uint64_t least = std::numeric_limits<uint64_t>::max();
  volatile uint64_t keep = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    stream(to.data(), from.data(), kBytes);
    end_streams();
    const uint64_t began = ticks_after_writes();
    uint64_t sum = 0;
    const auto* words = reinterpret_cast<const uint64_t*>(to.data());
    for (std::size_t i = 0; i < kBytes / sizeof(uint64_t); ++i) sum += words[i];
    keep = keep + sum;
    least = std::min(least, ticks_after_writes() - began);
  }
  return static_cast<double>(least) / kBytes;
}

// The median stands for the usual writes. Some writes are interrupted, and some find lines that no
// rank has read.
template <std::size_t N>
double median(std::array<double, N> values) {
  std::nth_element(values.begin(), values.begin() + N / 2, values.end());
  return values[N / 2];
}

double memory_ticks_per_byte() {
  static const double ticks = measure_memory();
  return ticks;
}

}  // namespace

StorePolicy::StorePolicy() : StorePolicy(Costs{&ticks_after_writes, &memory_ticks_per_byte}) {}

std::size_t StorePolicy::index_of(std::size_t bytes) {
  const auto above = static_cast<std::size_t>(std::bit_width(bytes / kBytesMin)) - 1;
  return std::min(above, kSizes - 1);
}

uint32_t StorePolicy::trial_of(std::size_t index) {
  const std::size_t writes = kTrialBytes / (kBytesMin << index);
  return static_cast<uint32_t>(std::clamp<std::size_t>(writes, kCounted, kTrialMax)) + kCounted;
}

bool StorePolicy::begin(std::size_t bytes) {
  if (bytes < kBytesMin) return false;
  Size& size = sizes_[index_of(bytes)];
  if (size.left == 0) advance(size);
  --size.left;
  const bool watches = !size.past_cache && size.left % kSampled == 0;
  if (size.phase == Phase::settled ? watches : size.left < kCounted) {
    current_ = &size;
    bytes_ = bytes;
    began_ = costs_.now();
  }
  return size.past_cache;
}

bool StorePolicy::is_first(const std::byte* to, std::size_t bytes) {
  const std::byte* begin = to;
  const std::byte* end = to + bytes;
  auto next = compared_.upper_bound(begin);
  if (next != compared_.begin()) {
    const auto before = std::prev(next);
    if (before->second >= end) return false;
    if (before->second >= begin) {
      begin = before->first;
      compared_.erase(before);
    }
  }
  while (next != compared_.end() && next->first <= end) {
    end = std::max(end, next->second);
    next = compared_.erase(next);
  }
  compared_.emplace(begin, end);
  return true;
}

bool StorePolicy::begin_compared(const std::byte* to, std::size_t bytes) {
  if (bytes < kBytesMin) return false;
  Size& size = sizes_[index_of(bytes)];
  if (size.is_known || is_first(to, bytes)) return go_past_cache(bytes);
  brief_ = &size.brief;
  bytes_ = bytes;
  began_ = costs_.now();
  return brief_->writes < Brief::kWrites ? brief_->writes % 2 == 1 : brief_->past_cache;
}

void StorePolicy::end_brief(Brief& brief, double took) {
  if (brief.writes < Brief::kWrites) {
    double& least = brief.least[brief.writes % 2];
    least = brief.writes < 2 ? took : std::min(least, took);
    if (++brief.writes < Brief::kWrites) return;
    brief.past_cache = is_past_cheaper(brief.least[0], brief.least[1]);
    brief.worse = 0;
  } else if (took < kWorse * brief.least[brief.past_cache ? 1 : 0]) {
    brief.worse = 0;
  } else if (++brief.worse == kWorseMax) {
    brief.writes = 0;
  }
}

// The reader of a write past the cache has to fetch it from memory.
bool StorePolicy::is_past_cheaper(double through, double past) const {
  return through > past + kSavedByCache * costs_.memory_ticks_per_byte();
}

void StorePolicy::end() {
  if (current_ == nullptr && brief_ == nullptr) return;
  const double took = static_cast<double>(costs_.now() - began_) / static_cast<double>(bytes_);
  if (brief_ != nullptr) return end_brief(*std::exchange(brief_, nullptr), took);
  Size& size = *std::exchange(current_, nullptr);
  if (size.phase != Phase::settled) {
    size.took[size.left] = took;
  } else if (took < kWorse * size.through_cache) {
    size.worse = 0;
  } else if (++size.worse == kWorseMax) {
    size.worse = 0;
    size.left = 0;
    size.interval = kIntervalMin;
  }
}

void StorePolicy::advance(Size& size) {
  const uint32_t trial = trial_of(static_cast<std::size_t>(&size - sizes_.data()));
  size.left = trial;
  switch (size.phase) {
    case Phase::settled:
      size.was_past_cache = size.past_cache;
      size.phase = Phase::through_cache;
      size.past_cache = false;
      return;
    case Phase::through_cache:
      size.through_cache = median(size.took);
      size.phase = Phase::past_cache;
      size.past_cache = true;
      return;
    case Phase::past_cache:
      break;
  }
  size.past_cache = is_past_cheaper(size.through_cache, median(size.took));
  size.is_known = true;
  const bool is_news = size.past_cache != size.was_past_cache;
  size.interval = is_news ? kIntervalMin : std::min(2 * size.interval, kIntervalMax);
  size.left = size.interval * trial;
  size.phase = Phase::settled;
}

bool StorePolicy::copy(std::byte* to, std::span<const std::byte> from) {
  const Piece whole{const_cast<std::byte*>(from.data()), from.size()};  // only ever read
  return gather({&whole, 1}, from.size(), to);
}

bool StorePolicy::gather(std::span<const Piece> from, std::size_t bytes, std::byte* to) {
  const bool past_cache = begin(bytes);
  if (past_cache) {
    for (const Piece& piece : from) {
      stream(to, piece.data, piece.bytes);
      to += piece.bytes;
    }
    end_streams();
  } else {
    rdmacoll::gather(from, to);
  }
  end();
  return past_cache;
}

}  // namespace rdmacoll
