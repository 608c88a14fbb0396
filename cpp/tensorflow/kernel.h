// One asynchronous kernel for all collectives. TensorFlow makes one Kernel for each node. compute()
// submits the node's tensors to the engine and returns. The engine's callback ends the op.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/rdmacoll_c.h"
#include "tensorflow/attributes.h"
#include "tensorflow/call_path.h"
#include "tensorflow/done.h"
#include "tensorflow/frames.h"
#include "tensorflow/tf_c_api.h"

namespace rdmacoll::tensorflow {

// Runs on any of TensorFlow's threads, several at once, since loop iterations overlap.
class Kernel {
 public:
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // The three entry points that TensorFlow calls. The op's name determines `kind`. The device
  // determines whether the tensors are in memory of a GPU.
  template <rc_kind kKind, bool kIsOnGpu = false>
  static void* create(TF_OpKernelConstruction* construction) {
    return create_kernel(construction, kKind, kIsOnGpu);
  }
  static void compute(void* kernel, TF_OpKernelContext* context,
                      TF_AsyncOpKernelDoneCallback* done);
  static void destroy(void* kernel);

 private:
  // One submission in flight. It is recycled, so the steady state allocates nothing.
  struct Pending {
    Kernel* kernel = nullptr;
    TF_OpKernelContext* context = nullptr;
    // The engine outlives its operations. Before the submission, compute() keeps it alive.
    const rc_api* api = nullptr;
    rc_engine* engine = nullptr;
    Done done;
    uint32_t round = 0;     // from Waiting
    uint64_t stream = 0;    // the CUDA stream of tensors on a GPU
    uint64_t attached = 0;  // the attachment of the engine
    std::size_t bytes = 0;
    bool is_placed = false;                 // the engine chooses the memory of its outputs
    std::atomic<bool> one_has_left{false};  // set by compute() or the engine's callback
    std::vector<rc_tensor> tensors;
    std::vector<int64_t> splits;
    // Memory that the engine has requested, by output, which becomes the output on success.
    // `requested` counts the requests.
    std::vector<OwnedTensor> results;
    std::size_t requested = 0;
    std::vector<uint8_t> borrows;  // by output: further calls that borrow memory before TensorFlow
                                   // is asked again to reuse an input
    std::string failure;           // why there is no memory for the result
  };

  struct Topology {  // engine.topology()
    int32_t rank = 0, size = 1, local_rank = 0, local_size = 1, node = 0, nodes = 1;
  };

  Kernel(rc_kind kind, bool is_on_gpu) : kind_(kind), is_on_gpu_(is_on_gpu) {}

  static void* create_kernel(TF_OpKernelConstruction* construction, rc_kind kind, bool is_on_gpu);
  void read_attributes(TF_OpKernelConstruction* construction, TF_Status* status);
  void find_call_path(TF_OpKernelConstruction* construction);
  void find_name();
  bool collect(TF_OpKernelContext* context, Pending& pending, TF_Status* status);
  bool find_stream(TF_OpKernelContext* context, Pending& pending, TF_Status* status) const;
  bool collect_splits(TF_OpKernelContext* context, int index, Pending& pending, TF_Status* status);
  bool collect_input(TF_OpKernelContext* context, int index, Pending& pending, TF_Status* status);
  bool make_output(TF_OpKernelContext* context, int index, Pending& pending, TF_Status* status);
  std::size_t bytes_of(const rc_tensor& tensor) const;
  // The engine requests the memory once it knows the size.
  bool makes_result() const {
    return kind_ == RC_ALLGATHER || kind_ == RC_REDUCESCATTER || kind_ == RC_ALLTOALL ||
           kind_ == RC_GATHER || kind_ == RC_SCATTER;
  }
  static Topology topology_of(const Pending& pending);
  static bool is_one_node(const Topology& topology) {
    return topology.nodes == 1 && topology.size > 1;
  }
  bool zero_output(TF_OpKernelContext* context, int index, const rc_tensor& tensor,
                   std::size_t bytes, TF_Status* status);
  void* borrow_output(TF_OpKernelContext* context, int index, const Pending& pending,
                      std::size_t bytes, TF_Status* status);
  std::string name_operation(TF_OpKernelContext* context, rc_request& request);
  std::string submit(Pending& pending);
  void refuse(const Pending& pending, const std::string& reason);

  std::unique_ptr<Pending> take_pending();
  void recycle(std::unique_ptr<Pending> pending);

  static void* on_allocate(void* context, int32_t ndim, const int64_t* dims);
  static void on_gpu_result(void* context, int32_t ndim, const int64_t* dims, void* memory,
                            rc_result* result);
  std::size_t result_index(Pending& pending) const;
  static void* on_own_output(void* context, int32_t ndim, const int64_t* dims);
  static void on_shared_result(void* context, int32_t index, void* memory, void* loan,
                               void (*release)(void* loan, void* memory));
  static void give_results(Pending& pending);
  static void on_done(void* context, const char* error_json);
  static void leave(Pending* pending);

  const rc_kind kind_;
  const bool is_on_gpu_;
  TF_DataType type_ = TF_FLOAT;
  int32_t dtype_ = 0;
  int32_t reduce_op_ = 0;
  int32_t root_ = 0;
  int32_t process_set_ = 0;
  double prescale_ = 1.0;
  double postscale_ = 1.0;
  std::string name_;  // "" = unnamed
  std::string node_;
  CallPath path_;
  std::unique_ptr<Frames> frames_;  // in nested loops
  std::shared_ptr<Copies> copies_;  // in its graph; null when unnamed
  std::once_flag has_name_;
  std::string name_of_copy_;
  Visits* visits_ = nullptr;  // the visits of name_of_copy_
  std::string manifest_;      // "" = none
  std::string group_;         // "" = none
  std::vector<std::string> labels_;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Pending>> idle_;
};

}  // namespace rdmacoll::tensorflow
