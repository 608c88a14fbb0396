// Sleeps on a word, with a time limit (std::atomic::wait has none).
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace rdmacoll {

// Returns when *word != expected, when woken, or after `timeout` (kNever: no limit).
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, Nanoseconds timeout);
void futex_wake_all(std::atomic<uint32_t>& word);

}  // namespace rdmacoll
