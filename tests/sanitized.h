// How much of what is exhaustive runs in suites that are many times slower. What the sanitizers
// look for does not hide in the last of a thousand schedules; what the others look for may.
#pragma once

// Of the sanitizers' libraries. Tests are compiled alike with and without them: it shows when the
// program runs.
extern "C" {
[[gnu::weak]] void __asan_init();
[[gnu::weak]] void __tsan_init();
}

namespace rdmacoll {

inline const bool kSanitized = __asan_init != nullptr || __tsan_init != nullptr;

// The seeds that random tests try.
inline unsigned seeds(unsigned all) { return kSanitized ? all / 8 : all; }
// The largest world whose schedules are executed.
inline const int kRanksMax = kSanitized ? 33 : 64;

}  // namespace rdmacoll
