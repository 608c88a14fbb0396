// How much of what is exhaustive runs in suites that are many times slower. What the sanitizers
// look for does not hide in the last of a thousand schedules; what the others look for may.
#pragma once

namespace rdmacoll {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// The seeds that random tests try.
constexpr unsigned seeds(unsigned all) { return kSanitized ? all / 4 : all; }
// The largest world whose schedules are executed.
inline constexpr int kRanksMax = kSanitized ? 33 : 64;

}  // namespace rdmacoll
