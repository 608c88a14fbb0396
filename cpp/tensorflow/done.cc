#include "tensorflow/done.h"

#include <cstring>
#include <utility>

namespace rdmacoll::tensorflow {
namespace {

// Operation codes of a function object's manager.
constexpr int kClone = 2;
constexpr int kDestroy = 3;

constexpr char kMark[16] = "rdmacoll probe!";

void probe(const void* storage) {
  bool* called = nullptr;
  if (std::memcmp(storage, kMark, 8) != 0) return;
  std::memcpy(&called, static_cast<const char*>(storage) + 8, sizeof(called));
  *called = true;
}

bool keep(void*, const void*, int) { return false; }

}  // namespace

Done::Done(const TF_AsyncOpKernelDoneCallback* callback) {
  const auto* source = reinterpret_cast<const FunctionObject*>(callback);
  if (source->manager == nullptr) return;
  source->manager(&function_, source, kClone);
  function_.manager = source->manager;
  function_.invoke = source->invoke;
}

// libstdc++ moves a function object by copying its bytes, since objects stored in place are
// trivial.
Done::Done(Done&& other) noexcept : function_(std::exchange(other.function_, {})) {}

Done& Done::operator=(Done&& other) noexcept {
  if (this != &other) {
    release();
    function_ = std::exchange(other.function_, {});
  }
  return *this;
}

Done::~Done() { release(); }

void Done::run() {
  if (function_.invoke != nullptr) function_.invoke(&function_);
}

void Done::release() {
  if (function_.manager != nullptr) function_.manager(&function_, &function_, kDestroy);
  function_ = {};
}

bool done_callback_is_as_expected() {
  bool called = false;
  bool* const pointer = &called;
  FunctionObject function{};
  std::memcpy(function.storage, kMark, 8);
  std::memcpy(function.storage + 8, &pointer, sizeof(pointer));
  function.manager = &keep;
  function.invoke = &probe;
  TF_RunAsyncOpKernelDoneCallback(reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&function));
  return called;
}

}  // namespace rdmacoll::tensorflow
