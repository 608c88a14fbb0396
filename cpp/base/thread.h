// Starts threads, which a limit may refuse.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "base/status.h"

namespace rdmacoll {

// Starts `thread`. `what` names it in the error: "the engine's thread". A refusal is a ConfigError
// that names the limit and how to raise it.
Status start_thread(std::thread& thread, std::string_view what, std::function<void()> work);

}  // namespace rdmacoll
