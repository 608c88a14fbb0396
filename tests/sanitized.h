// Reduces exhaustive tests. Sanitized suites are many times slower, and a sanitizer finds its
// faults in few schedules. `make test` leaves out some of the large worlds, and `make test-all` has
// all.
#pragma once

#include <cstdlib>

// Functions of the sanitizers' libraries. Tests are compiled alike with and without sanitizers, so
// this is known only at run time.
extern "C" {
[[gnu::weak]] void __asan_init();
[[gnu::weak]] void __tsan_init();
}

namespace rdmacoll {

inline const bool kSanitized = __asan_init != nullptr || __tsan_init != nullptr;

inline const bool kAllLargeWorlds = std::getenv("RDMACOLL_TEST_ALL_LARGE_WORLDS") != nullptr;

// The number of seeds that random tests try.
inline unsigned seeds(unsigned all) { return kSanitized ? all / 8 : all; }
// The largest world whose schedules are executed.
inline const int kRanksMax = kSanitized ? 33 : 64;

}  // namespace rdmacoll
