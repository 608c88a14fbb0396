// The completion callback of an asynchronous kernel. TensorFlow passes the address of a
// std::function<void()> on the caller's stack. It is destroyed when compute() returns, so it must
// be copied.
#pragma once

#include "tensorflow/tf_c_api.h"

namespace rdmacoll::tensorflow {

// The layout of libstdc++'s std::function<void()>, with which TensorFlow's wheels are built. A copy
// of the layout also works if this library is built with another standard library.
struct FunctionObject {
  alignas(8) char storage[16];
  bool (*manager)(void* to, const void* from, int operation);
  void (*invoke)(const void* storage);
};
static_assert(sizeof(FunctionObject) == 32);

// Owns a copy of the callback. A taken callback must be run exactly once.
class Done {
 public:
  Done() = default;
  explicit Done(const TF_AsyncOpKernelDoneCallback* callback);
  Done(Done&& other) noexcept;
  Done& operator=(Done&& other) noexcept;
  Done(const Done&) = delete;
  Done& operator=(const Done&) = delete;
  ~Done();

  // Schedules the nodes that wait for the kernel. The kernel and its context may be gone
  // afterwards.
  void run();

 private:
  void release();

  FunctionObject function_{};
};

// Returns whether this TensorFlow's callback has the layout above. The layout is undocumented, so
// it is tried once at load, with a function object of our own.
bool done_callback_is_as_expected();

}  // namespace rdmacoll::tensorflow
