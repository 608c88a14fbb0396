#include "tensorflow/attachment.h"

namespace rdmacoll::tensorflow {

Attachment& Attachment::instance() {
  // Never destroyed: TensorFlow's threads may outlive the destructors of a process that exits.
  static Attachment* const attachment = new Attachment;
  return *attachment;
}

bool Attachment::attach(const rc_api* api, rc_engine* engine) {
  // Everything up to and including submit_and_drive() is used here; a longer table is fine.
  constexpr uint32_t kSizeMin =
      offsetof(rc_api, submit_and_drive) + sizeof(rc_api::submit_and_drive);
  if (api != nullptr && (api->abi_version != RC_ABI_VERSION || api->size < kSizeMin)) return false;
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  api_ = engine == nullptr ? nullptr : api;
  engine_ = engine;
  return true;
}

Attachment::Use Attachment::use() {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  return {std::move(lock), api_, engine_};
}

}  // namespace rdmacoll::tensorflow

int rc_tf_attach(const rc_api* api, rc_engine* engine) {
  return rdmacoll::tensorflow::Attachment::instance().attach(api, engine) ? 0 : 1;
}

uint32_t rc_tf_abi_version(void) { return RC_ABI_VERSION; }
