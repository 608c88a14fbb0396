// Hooks around a long wait of a thread. A Python thread releases the interpreter lock. This is too
// expensive for each small allreduce, so only long waits do it.
#pragma once

namespace rdmacoll {

struct LongWaitHooks {
  void* (*before)() = nullptr;
  void (*after)(void* what_before_gave) = nullptr;
};

class LongWait {
 public:
  explicit LongWait(const LongWaitHooks& hooks) : hooks_(hooks) {}
  // Python ends a thread here that returns after the interpreter has ended.
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
