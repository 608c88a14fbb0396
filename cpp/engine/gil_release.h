// Hooks around a long wait of a thread. A Python thread releases the interpreter lock. This is too
// expensive for each small allreduce, so only long waits do it.
#pragma once

namespace rdmacoll {

struct GilReleaseHooks {
  void* (*before)() = nullptr;
  void (*after)(void* state) = nullptr;
};

class GilRelease {
 public:
  explicit GilRelease(const GilReleaseHooks& hooks) : hooks_(hooks) {}
  // Python ends a thread here that returns after the interpreter has ended.
  ~GilRelease() noexcept(false) {
    if (begun_ != nullptr) hooks_.after(begun_);
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

  void begin() {
    if (begun_ == nullptr && hooks_.before != nullptr) begun_ = hooks_.before();
  }

 private:
  const GilReleaseHooks& hooks_;
  void* begun_ = nullptr;
};

}  // namespace rdmacoll
