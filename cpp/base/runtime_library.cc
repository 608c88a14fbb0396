#include "base/runtime_library.h"

#include <dlfcn.h>

namespace rdmacoll {

RuntimeLibrary::RuntimeLibrary(const std::string& library)
    : handle_(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  const char* const cause = ::dlerror();
  problem_ = cause == nullptr ? "no cause given" : cause;
}

void* RuntimeLibrary::find(const char* name, const char* version) const {
  return version == nullptr ? ::dlsym(handle_, name) : ::dlvsym(handle_, name, version);
}

}  // namespace rdmacoll
