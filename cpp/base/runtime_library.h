// A shared library that is opened at run time, since rdmacoll must load without it.
#pragma once

#include <string>

namespace rdmacoll {

// The library stays open for ever, since it may have threads and handlers of its own.
class RuntimeLibrary {
 public:
  explicit RuntimeLibrary(const std::string& library);  // a file name, or a path

  // The dynamic linker's reason why the library is not open. "" if it is.
  const std::string& problem() const { return problem_; }

  // Finds a function. Without a `version` the linker chooses it.
  template <typename Function>
  void need(const char* name, Function& function, const char* version = nullptr) {
    function = reinterpret_cast<Function>(find(name, version));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  // Null if the library does not have it.
  template <typename Function>
  void take_if_there(const char* name, Function& function) {
    function = reinterpret_cast<Function>(find(name, nullptr));
  }
  // The first needed function that the library does not have, or "".
  const std::string& missing() const { return missing_; }

 private:
  void* find(const char* name, const char* version) const;

  void* handle_;
  std::string problem_;
  std::string missing_;
};

}  // namespace rdmacoll
