// What a thread does before it waits for long, and after: one of Python's gives the interpreter's
// lock away, which takes a tenth of a small allreduce where it is done for every one.
#pragma once

namespace rdmacoll {

struct LongWaitHooks {
  void* (*before)() = nullptr;
  void (*after)(void* what_before_gave) = nullptr;
};

class LongWait {
 public:
  explicit LongWait(const LongWaitHooks& hooks) : hooks_(hooks) {}
  // Python ends a thread in there that comes back when the interpreter has ended.
  ~LongWait() noexcept(false) {
    if (begun_ != nullptr) hooks_.after(begun_);
  }
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

  void begin() {
    if (begun_ == nullptr && hooks_.before != nullptr) begun_ = hooks_.before();
  }

 private:
  const LongWaitHooks& hooks_;
  void* begun_ = nullptr;
};

}  // namespace rdmacoll
