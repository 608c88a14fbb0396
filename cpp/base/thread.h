// Threads, which a limit may refuse.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "base/status.h"

namespace rdmacoll {

// Starts `thread`. A refusal is a ConfigError that names the limit and how to raise it; `what` is
// "the engine's thread".
Status start_thread(std::thread& thread, std::string_view what, std::function<void()> work);

}  // namespace rdmacoll
