#include "tensorflow/applied.h"

#include <map>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "tensorflow/attributes.h"
#include "tensorflow/done.h"
#include "tensorflow/error_text.h"

namespace rdmacoll::tensorflow {
namespace {

std::atomic<rc_tf_on_applied> listener{nullptr};

// The op's kernel, and the name in it, stay until done.run().
struct Pending {
  const char* name;
  TF_OpKernelContext* context;
  rc_tf_on_applied call;
  Done done;
};

void run(Pending* pending) {
  const std::unique_ptr<Pending> owned(pending);
  std::string error;
  owned->call(owned->name, &error);
  if (!error.empty()) fail(owned->context, error);
  owned->done.run();
}

}  // namespace

UpdateCount& UpdateCount::of(const std::string& name) {
  // Never destroyed, since TensorFlow's threads may outlive the destructors of an exiting process.
  static auto* const mutex = new std::mutex;
  static auto* const counts = new std::map<std::string, UpdateCount>;
  const std::lock_guard<std::mutex> lock(*mutex);
  return (*counts)[name];
}

void* AppliedKernel::create(TF_OpKernelConstruction* construction) {
  const OwnedStatus status(TF_NewStatus());
  auto kernel = std::make_unique<AppliedKernel>();
  kernel->name_ = attribute_string(construction, "optimizer", status.get());
  if (TF_GetCode(status.get()) != TF_OK) {
    TF_OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  kernel->updates_ = &UpdateCount::of(kernel->name_);
  return kernel.release();
}

void AppliedKernel::destroy(void* kernel) { delete static_cast<AppliedKernel*>(kernel); }

void AppliedKernel::compute(void* self, TF_OpKernelContext* context,
                            TF_AsyncOpKernelDoneCallback* done) {
  const auto* kernel = static_cast<AppliedKernel*>(self);
  Done finish(done);
  if (is_evaluated_while_optimizing(context) || !kernel->updates_->add()) return finish.run();
  const rc_tf_on_applied call = listener.load(std::memory_order_acquire);
  if (call == nullptr) return finish.run();
  auto* const pending = new Pending{kernel->name_.c_str(), context, call, std::move(finish)};
  try {
    std::thread(&run, pending).detach();
  } catch (const std::system_error&) {  // the limit on threads
    run(pending);
  }
}

}  // namespace rdmacoll::tensorflow

using rdmacoll::tensorflow::UpdateCount;

void rc_tf_listen_to_updates(rc_tf_on_applied listener) {
  rdmacoll::tensorflow::listener.store(listener, std::memory_order_release);
}

void rc_tf_fail_update(void* run, const char* error_json) {
  *static_cast<std::string*>(run) = error_json;
}

int32_t rc_tf_count_update(const char* name) { return UpdateCount::of(name).add() ? 1 : 0; }

int64_t rc_tf_updates(const char* name) { return UpdateCount::of(name).count(); }

void rc_tf_set_due(const char* name, int64_t due) { UpdateCount::of(name).set_due(due); }

void rc_tf_set_updates(const char* name, int64_t count) { UpdateCount::of(name).set(count); }
