// The parts of the extension module `fast_calls`.
#pragma once

#include "api/rdmacoll_c.h"
#include "python/python.h"

namespace rdmacoll::python {

// A blocked wait returns this often, so that Python's signal handlers can run.
inline constexpr int64_t kSliceMs = 100;
// Calls of at most so many bytes on all ranks together are short. They release the interpreter's
// lock only if they wait.
inline constexpr uint64_t kLockedBytesMax = 64 << 10;
// The values that runs and waits return, as in rdmacoll_c.h.
inline constexpr int kDone = 0, kTimeout = 1;

// The library's functions; null until connect().
extern const rc_api* library;

PyObject* make_run_type();
// Returns the address of the destructor of DLPack capsules, as an int.
PyObject* capsule_destructor();

}  // namespace rdmacoll::python
