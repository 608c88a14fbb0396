#include "tensorflow/attachment.h"

namespace rdmacoll::tensorflow {

Attachment& Attachment::instance() {
  // Never destroyed, since TensorFlow's threads may outlive the destructors of an exiting process.
  static Attachment* const attachment = new Attachment;
  return *attachment;
}

bool Attachment::attach(const rc_api* api, rc_engine* engine) {
  if (api != nullptr &&
      (api->abi_version != RC_ABI_VERSION || api->header_hash != RC_HEADER_HASH)) {
    return false;
  }
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  api_ = engine == nullptr ? nullptr : api;
  engine_ = engine;
  ps_ = nullptr;
  ++attached_;
  return true;
}

void Attachment::attach_servers(rc_ps* ps) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  ps_ = ps;
}

Attachment::Use Attachment::use() {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  return {std::move(lock), api_, engine_, ps_, attached_};
}

}  // namespace rdmacoll::tensorflow

int rc_tf_attach(const rc_api* api, rc_engine* engine) {
  return rdmacoll::tensorflow::Attachment::instance().attach(api, engine) ? 0 : 1;
}

void rc_tf_attach_servers(rc_ps* ps) {
  rdmacoll::tensorflow::Attachment::instance().attach_servers(ps);
}
