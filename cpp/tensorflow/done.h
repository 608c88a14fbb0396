// TensorFlow hands an asynchronous kernel the address of a std::function<void()> that lives on the
// caller's stack and dies when compute() returns, so the function has to be copied out.
#pragma once

#include "tensorflow/tf_c_api.h"

namespace rdmacoll::tensorflow {

// The layout of libstdc++'s std::function<void()>, which TensorFlow's wheels are built with. It is
// mirrored, not named, so that this also works when we are built with another standard library.
struct FunctionObject {
  alignas(8) char storage[16];
  bool (*manager)(void* to, const void* from, int operation);
  void (*invoke)(const void* storage);
};
static_assert(sizeof(FunctionObject) == 32);

// Owns a copy of the callback. Must be run exactly once when it was taken.
class Done {
 public:
  Done() = default;
  explicit Done(const TF_AsyncOpKernelDoneCallback* callback);
  Done(Done&& other) noexcept;
  Done& operator=(Done&& other) noexcept;
  Done(const Done&) = delete;
  Done& operator=(const Done&) = delete;
  ~Done();

  // Schedules what waits for the kernel; the kernel and its context may be gone afterwards.
  void run();

 private:
  void release();

  FunctionObject function_{};
};

// Whether this TensorFlow's callback has the layout above: nothing documents it, so it is tried
// once at load, on a function object of our own.
bool done_callback_is_as_expected();

}  // namespace rdmacoll::tensorflow
