// One asynchronous kernel for all requests to asynchronous parameter servers. compute() submits the
// request and returns. The thread that steps the session ends the op when the answer is there.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "api/rdmacoll_c.h"
#include "tensorflow/attributes.h"
#include "tensorflow/done.h"
#include "tensorflow/tf_c_api.h"

namespace rdmacoll::tensorflow {

// The inputs are gradients first, then the rows (int64). The learning rate of a push (float64, one
// or none) or the dims of a pulled value follow.
class PsKernel {
 public:
  template <rc_ps_transfer kTransfer, bool kByRows>
  static void* create(TF_OpKernelConstruction* construction) {
    return create_kernel(construction, kTransfer, kByRows);
  }
  static void compute(void* kernel, TF_OpKernelContext* context,
                      TF_AsyncOpKernelDoneCallback* done);
  static void destroy(void* kernel);

 private:
  struct Pending {
    TF_OpKernelContext* context = nullptr;
    Done done;
    uint32_t round = 0;                     // from Waiting
    std::atomic<bool> one_has_left{false};  // set by compute() or on_done()
  };
  // One request. The context owns the tensors' memory.
  struct Arguments {
    std::vector<rc_ps_tensor> tensors;
    const int64_t* rows = nullptr;
    int64_t n_rows = 0;
    const double* learning_rate = nullptr;
  };

  PsKernel(rc_ps_transfer transfer, bool by_rows) : transfer_(transfer), by_rows_(by_rows) {}

  static void* create_kernel(TF_OpKernelConstruction* construction, rc_ps_transfer transfer,
                             bool by_rows);
  bool collect(TF_OpKernelContext* context, Arguments& arguments, TF_Status* status) const;
  bool collect_gradient(TF_OpKernelContext* context, int index, rc_ps_tensor& tensor,
                        TF_Status* status) const;
  bool make_value(TF_OpKernelContext* context, int dims_index, rc_ps_tensor& tensor,
                  TF_Status* status) const;
  std::string submit(const Arguments& arguments, Pending& pending) const;
  static void on_done(void* context, const char* error_json);
  static void leave(Pending* pending);

  const rc_ps_transfer transfer_;
  const bool by_rows_;
  TF_DataType type_ = TF_FLOAT;
  std::vector<std::string> variables_;
};

}  // namespace rdmacoll::tensorflow
