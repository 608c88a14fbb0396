// The engine that the ops of this process use. TensorFlow creates kernels itself, so kernels find
// the engine in this process-wide object.
#pragma once

#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "api/rdmacoll_c.h"

namespace rdmacoll::tensorflow {

class Attachment {
 public:
  static Attachment& instance();

  // Null detaches: later ops fail, and the engine ends ops in flight. Returns after the last
  // submit() on the previous engine has returned, so that the engine may be freed.
  bool attach(const rc_api* api, rc_engine* engine);
  // Adds the session of asynchronous parameter servers, while the engine is attached.
  void attach_servers(rc_ps* ps);

  // A view of the engine. attach() does not return while one exists. `api` is null if no engine is
  // attached.
  struct Use {
    std::shared_lock<std::shared_mutex> lock;
    const rc_api* api;
    rc_engine* engine;
    rc_ps* ps;          // null if there are no such servers
    uint64_t attached;  // the number of the attachment of this engine
  };
  Use use();

 private:
  std::shared_mutex mutex_;
  const rc_api* api_ = nullptr;
  rc_engine* engine_ = nullptr;
  rc_ps* ps_ = nullptr;
  uint64_t attached_ = 0;
};

}  // namespace rdmacoll::tensorflow

extern "C" {
// Returns 0, or 1 if the table has another ABI.
__attribute__((visibility("default"))) int rc_tf_attach(const rc_api* api, rc_engine* engine);
__attribute__((visibility("default"))) void rc_tf_attach_servers(rc_ps* ps);
// Returns NULL if all ops are registered, else an error message.
__attribute__((visibility("default"))) const char* rc_tf_problem(void);
}
