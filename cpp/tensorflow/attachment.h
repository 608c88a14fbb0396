// The engine that the ops of this process talk to. TensorFlow creates kernels without asking us, so
// this is the one process-wide object of this library.
#pragma once

#include <mutex>
#include <shared_mutex>

#include "api/rdmacoll_c.h"

namespace rdmacoll::tensorflow {

class Attachment {
 public:
  static Attachment& instance();

  // Null detaches: later ops fail, ops in flight end by the engine's own hand. Returns after the
  // last submit() on the previous engine has returned, so that the engine may be freed.
  bool attach(const rc_api* api, rc_engine* engine);
  // Asynchronous parameter servers beside the engine, while that is attached.
  void attach_servers(rc_ps* ps);

  // A view of the engine that keeps attach() from returning while it lives; `api` is null when
  // there is none.
  struct Use {
    std::shared_lock<std::shared_mutex> lock;
    const rc_api* api;
    rc_engine* engine;
    rc_ps* ps;  // null where there are no such servers
  };
  Use use();

 private:
  std::shared_mutex mutex_;
  const rc_api* api_ = nullptr;
  rc_engine* engine_ = nullptr;
  rc_ps* ps_ = nullptr;
};

}  // namespace rdmacoll::tensorflow

extern "C" {
// 0, or 1 when the table is of another ABI.
__attribute__((visibility("default"))) int rc_tf_attach(const rc_api* api, rc_engine* engine);
__attribute__((visibility("default"))) void rc_tf_attach_servers(rc_ps* ps);
__attribute__((visibility("default"))) uint32_t rc_tf_abi_version(void);
// NULL when all ops are registered, else a sentence.
__attribute__((visibility("default"))) const char* rc_tf_problem(void);
}
