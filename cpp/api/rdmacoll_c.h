/* The C interface of librdmacoll.so. One exported function, rc_get_api, returns a versioned table.
 * It points to a table of functions for each purpose: engine, operations, prepared operations,
 * parameter servers, tools. Only Python (ctypes and cpp/python) and librdmacoll_tf.so use it.
 * `header_hash` finds parts of another build, so any declaration may change. RC_ABI_VERSION grows
 * when a declaration stays and its meaning changes.
 *
 * Text that is returned through `char**` belongs to the caller. The caller frees it with
 * `text_free`. timeout_ms: -1 means no limit. A function that can fail returns 0 for success.
 * Otherwise it returns another number, and the error as JSON:
 *   {"kind": "RankFailedError", "message": "...", "rank": 3, "host": "node7", "cause": "...",
 *    "tensor": "", "ranks": []}
 * `kind` is the name of a class in rdmacoll/errors.py. */
#ifndef RDMACOLL_C_H_
#define RDMACOLL_C_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RC_ABI_VERSION 1

typedef struct rc_engine rc_engine;     /* the engine of one rank */
typedef struct rc_handle rc_handle;     /* one submitted operation */
typedef struct rc_prepared rc_prepared; /* an operation that runs many times */
typedef struct rc_result rc_result;     /* a reference to memory of a result */
typedef struct rc_pair rc_pair;         /* one end of a path that is being measured */
typedef struct rc_ps rc_ps;             /* one rank of asynchronous parameter servers */
typedef struct rc_ps_call rc_ps_call;   /* one call of a worker to its servers */

enum rc_kind {
  RC_ALLREDUCE = 0,
  RC_BROADCAST = 1,
  RC_ALLGATHER = 2,
  RC_BARRIER = 3,
  RC_REDUCESCATTER = 4,
  RC_ALLTOALL = 5,
  RC_REDUCE = 6,
  RC_GATHER = 7,
  RC_SCATTER = 8,
  /* This rank has no data left. No tensors, no name. Until all ranks have joined, this rank
   * takes part with zeros in the other ranks' allreduces (sum, average), and in barriers. It may
   * not submit meanwhile. The result is one int64: the last rank that joined. */
  RC_JOIN = 9
};
/* Dtypes and reduction operators have the numbers of base/dtype.h.
 * uint8 0, int8 1, int32 2, int64 3, float16 4, bfloat16 5, float32 6, float64 7, bool 8,
 * uint16 9, uint32 10, uint64 11, int16 12, complex64 13, complex128 14.
 * sum 0, average 1, min 2, max 3, product 4.
 * bool supports min ("and") and max ("or"), and no scaling. */

typedef struct rc_tensor {
  const void* input; /* C-contiguous; broadcast and scatter read the root's only */
  void* output;      /* allreduce, broadcast, and reduce at the root; may equal `input` */
  int32_t ndim;      /* 0 to 8 */
  int64_t dims[8];
  const char* label; /* the tensor's name in messages; may be NULL */
} rc_tensor;

/* Allocates a result. Used by allgather, reducescatter, alltoall, gather and scatter, whose
 * results have another shape than their inputs. Also used by an allreduce with
 * `shared_result`, if its results are not shared.
 *
 * Called for each result in turn, once its size is known, on the thread that drives the engine.
 * Returns C-contiguous memory for `dims`, valid until the operation is done, or NULL to fail the
 * operation. If ranks send other numbers of rows than a plan has, all results are requested
 * again, and the earlier memory is not used any more.
 *
 * There is one result for each tensor. It has no rows if the rank receives none (gather, except
 * at the root). An alltoall also has the number of rows received from each rank, as one int64
 * for each rank. */
typedef void* (*rc_allocate)(void* context, int32_t ndim, const int64_t* dims);
/* Announces a shared result of an allreduce: the ranks of the node share the memory of its
 * outputs. Called for each tensor in turn, on the thread that drives the engine, before the
 * result is complete. Later writes of the caller are visible to its own process only. The memory
 * stays valid until release(loan, memory) is called, from any thread, even after the engine has
 * closed. */
typedef void (*rc_shared_result)(void* context, int32_t tensor, void* memory, void* loan,
                                 void (*release)(void* loan, void* memory));
/* Announces a result in memory of a GPU, which the engine has allocated. Called as rc_allocate is.
 * The memory stays valid until the reference is freed (engine.gpu_free, or prepared.result_free
 * after the engine's end), from any thread. */
typedef void (*rc_gpu_result)(void* context, int32_t ndim, const int64_t* dims, void* memory,
                              rc_result* result);
/* Reports the end of an accepted request. Called exactly once, before engine.close() returns, on
 * a thread of the engine or on the thread that drives the engine. It is never called inside
 * submit(), but possibly inside submit_and_drive(). Several callbacks may run at once, in any
 * order. A callback may submit, but must not wait or request the engine's state. error_json is
 * NULL on success, and valid during the call. */
typedef void (*rc_done)(void* context, const char* error_json);

typedef struct rc_request {
  int32_t kind; /* an rc_kind */
  int32_t dtype;
  int32_t op;       /* allreduce, reducescatter, reduce */
  int32_t root;     /* broadcast, reduce, gather, scatter */
  double prescale;  /* kinds with `op`: factor of the inputs; 1.0: none */
  double postscale; /* kinds with `op`: factor of the result; 1.0: none */
  const char* name; /* NULL: unnamed; one counter numbers all kinds */
  /* The iteration of a loop; 0 outside of loops. A (name, iteration) that is in flight already
   * is a DuplicateNameError. */
  int64_t iteration;
  /* At least 1, but 0 for a barrier. Several tensors are a group; alltoall, gather and scatter
   * take 1. */
  int32_t n_tensors;
  const rc_tensor* tensors; /* copied before submit() returns, unlike the tensors' memory */
  rc_allocate allocate;     /* NULL: the handle owns the results (result_at) */
  rc_done done;             /* NULL: use the handle */
  void* context;            /* for allocate and done */
  /* Describes the gradient list whose first part this is. Ranks compare it, and errors show it.
   * The lines after the first one list names of variables, whose order is compared
   * (cpp/operation/listing.h). NULL: none. */
  const char* manifest;
  /* Alltoall, and scatter at the root: the number of rows for each rank; copied. NULL: equal
   * parts. In a scatter the first ranks receive one more row if necessary, as in a
   * reducescatter. */
  const int64_t* splits;
  int32_t n_splits;
  /* The number of the process set; 0: all ranks. Splits are for the ranks of the set. `root` is
   * a rank of the job, and must belong to the set. */
  int32_t process_set;
  /* Allreduce: the ranks of the node may share the outputs, which are NULL here. If they do not,
   * `allocate` is called for each output. All ranks must agree on it. NULL: results are written
   * to the outputs. */
  rc_shared_result shared_result;
  /* The dtypes of a group with several, of which this is the first operation. The caller submits
   * the others after this one has succeeded. Ranks compare it. NULL: none. submit_group() does
   * all of this. */
  const char* group;
  /* 0: the tensors are in host memory. Otherwise they are in memory of GPUs (or in memory that the
   * host shares with them), and this is the CUDA stream that orders the operation, as DLPack
   * numbers streams: 1: the legacy default one, 2: the one of the thread, others: a handle. The
   * operation begins after the stream's present work. With `done` or `allocate`, it ends when its
   * results are complete. Without, it may end earlier, and the stream then waits for the results:
   * later work of this stream finds them. The memory of the tensors must stay until then: is_done,
   * end_of. The stream must exist until the caller has waited. Results are in memory of the same
   * GPU, also those of `allocate`. The row counts of an alltoall are in host memory. Not together
   * with `shared_result`. */
  uint64_t stream;
  /* With `stream`, `allocate` and a kind that makes results: the engine allocates them on the GPU,
   * and calls this instead of `allocate`, which is for the row counts of an alltoall alone. An
   * allocator that hands out memory in the order of a stream must not be called for them: earlier
   * work of the stream may still use such memory. NULL: `allocate` serves all results. */
  rc_gpu_result gpu_result;
} rc_request;

enum rc_measure { RC_LATENCY = 1, RC_EXCHANGE = 2, RC_BANDWIDTH = 4 };

typedef struct rc_pair_plan { /* equal at both ends */
  int32_t measures;           /* sum of rc_measure */
  const uint64_t* bytes;      /* sizes of the transfers to measure */
  int32_t n_bytes;
  int32_t repeats;  /* bursts for each measurement */
  double burst_s;   /* approximate duration of a burst */
  double timeout_s; /* fails if nothing moves for this long */
  double limit_s;   /* pair_run: limit to connect, and limit to measure */
} rc_pair_plan;

typedef struct rc_update {     /* one update of a variable by a gradient */
  int32_t dtype;               /* float32 or float64, for all arrays */
  const char* rule;            /* lines of "key=value": cpp/ps/update_rule.h */
  int64_t step;                /* number of earlier updates */
  const double* learning_rate; /* NULL: the rule's */
  int32_t decays;              /* whether the rule's weight decay applies */
  int32_t n_slots;             /* the number of slots that rule_slots names */
  uint64_t count;              /* elements in each array */
  void* values;
  void* const* slots;
  const void* gradient;
} rc_update;

typedef struct rc_variable {
  const char* name;
  int32_t dtype; /* float32 or float64 */
  int32_t ndim;
  const int64_t* dims;
  int32_t by_rows; /* an embedding, whose rows are pushed and pulled one by one */
  int32_t decays;  /* whether the rule's weight decay applies */
} rc_variable;

/* Transfers of whole variables. init: sends first values. push: sends gradients. pull: receives
 * values, once the first worker has sent them. push_pull: sends gradients, and receives the new
 * values in the same memory. */
enum rc_ps_transfer { RC_PS_INIT = 0, RC_PS_PUSH = 1, RC_PS_PULL = 2, RC_PS_PUSH_PULL = 3 };
/* stats: the state of each server. leave: this worker needs the servers no more. */
enum rc_ps_query { RC_PS_STATS = 0, RC_PS_LEAVE = 1 };
/* saved: the identity of the save that wrote each server's file, as a number. The numbers are
 * equal if one save wrote all files. */
enum rc_ps_checkpoint_action { RC_PS_SAVE = 0, RC_PS_SAVED = 1, RC_PS_RESTORE = 2 };

typedef struct rc_ps_tensor {
  const char* variable; /* the variable's name */
  uint64_t bytes;       /* size of gradient and value, in bytes */
  const void* gradient; /* push and push_pull */
  /* pull and push_pull: receives the value; may equal `gradient` for whole variables */
  void* value;
} rc_ps_tensor;

typedef struct rc_ps_request {
  int32_t transfer; /* an rc_ps_transfer, except init */
  int32_t dtype;    /* the dtype of all tensors */
  int32_t n_tensors;
  const rc_ps_tensor* tensors; /* copied before submit() returns, unlike the tensors' memory */
  const int64_t* rows;         /* rows of a single variable; NULL: whole variables */
  int64_t n_rows;
  const double* learning_rate; /* for a push; copied; NULL: the rule's */
  rc_done done;
  void* context;
} rc_ps_request;

typedef struct rc_plan_query {
  int32_t kind; /* an rc_kind, except barrier; the root is rank 0 */
  int32_t ranks;
  int32_t nodes; /* nodes of consecutive ranks, as even as possible */
  /* allgather, gather: total of all ranks; scatter: the root's; otherwise of each rank */
  uint64_t bytes;
  int32_t rank;          /* the rank whose schedule is shown */
  const char* algorithm; /* the algorithm whose schedule is shown; NULL: the chosen one */
  int32_t via_nic;       /* the network between nodes accesses pinned memory only */
  double latency_us;     /* latency of this network; 0: the usual one */
  double gbit_per_s;     /* rate of this network; 0: the usual one */
  int32_t servers;       /* parameter servers in addition to the ranks; 0: none */
  const char* dtype;     /* NULL: float32; sums of 16-bit floats use float32 internally */
} rc_plan_query;

typedef struct rc_link { /* LogGP parameters: cpp/base/link_model.h */
  double latency_us;
  double overhead_us;
  double gap_us;
  double bytes_per_us;
} rc_link;

typedef struct rc_scale_query {
  int32_t ranks;
  int32_t node_ranks; /* consecutive ranks on each node */
  int32_t rack_nodes; /* nodes that share uplinks; 0: one rack has all nodes */
  rc_link node, network;
  double uplink_bytes_per_us;
  int32_t via_nic; /* the network between nodes accesses pinned memory only */
  double step_us;  /* fixed time of a copy or a sum */
  double copy_bytes_per_us, reduce_bytes_per_us;
  const char* algorithm;  /* NULL: the engine chooses */
  int32_t operations;     /* operations in a step */
  const uint64_t* bytes;  /* size of each operation, a multiple of 4 */
  const double* ready_us; /* when each is submitted, from the beginning of the step */
  uint64_t transfers_max; /* limit for a step; larger ones are not simulated */
} rc_scale_query;

/* Each table below has the functions of one purpose. */

/* An engine: start, end, information, memory, process sets. */
typedef struct rc_engine_api {
  /* A start has four steps, since only the caller can exchange texts between ranks:
   *   1. open: listens. address: this rank's card, a JSON object on one line.
   *   2. The caller gathers all cards, by rank.
   *   3. node: finds the rank that leads this rank's node, by trying a real connection. Fails with
   *      ConfigError if settings or builds differ between the cards.
   *   4. The caller gathers the leaders, and with them each rank's profile. start connects the
   *      control tree and starts the engine thread.
   * secret: the job's secret (16 bytes or more). job: the job's name. arguments: as in
   * tools.settings(). Call close for every opened engine. */
  int (*open)(int32_t rank, int32_t size, const char* job, const uint8_t* secret,
              int32_t secret_bytes, const char* arguments, rc_engine** engine, char** address,
              char** error);
  int (*node)(rc_engine* engine, const char* const* addresses, int32_t* leader, char** error);
  /* Runs in slices, so that the caller can check for signals. Returns 1 if timeout_ms has passed
   * before the world is connected. Call it again then, with the same leaders. Calls after
   * success return an error if a rank was lost meanwhile. */
  int (*start)(rc_engine* engine, const int32_t* leaders, int64_t timeout_ms, char** error);
  /* Leaves the job, fails pending operations with ShutdownError, stops the engine thread and
   * closes all connections. cause: NULL for a clean end, otherwise for example "ValueError:
   * ...". Takes a few seconds at most. Further calls have no effect. The engine and its handles
   * stay valid until free. */
  void (*close)(rc_engine* engine, const char* cause);
  void (*free)(rc_engine* engine);
  /* Before start: the engine listens at the rendezvous address. It passes on each connection that
   * begins with a rendezvous message. The socket that this function returns receives one packet
   * for each such descriptor: its number (int32). The caller owns the socket and the descriptors.
   * Returns -1 if no descriptor is left. */
  int (*forward_rendezvous)(rc_engine* engine);

  /* Writes rank, size, local_rank, local_size, cross_rank and cross_size, in this order. If
   * there are dedicated parameter servers, the numbers of a worker count workers only. */
  void (*topology)(rc_engine* engine, int32_t out[6]);
  /* Returns totals since the start as a JSON object, as rdmacoll.metrics() does. */
  char* (*metrics)(rc_engine* engine);
  /* Returns {"transport": "shm", "determinism": "run", "servers": 0, "is_server": false,
   * "summary": "..."}. servers: the number of ranks that are parameter servers. is_server:
   * whether this rank is one of them. */
  char* (*describe)(rc_engine* engine);
  /* Returns a readable report of pending operations, batches and transfers. */
  char* (*state)(rc_engine* engine);

  /* At a parameter server (`is_server` of describe), after start: serves until every worker has
   * left. Returns 0 then, and *left has the workers' causes: {"0": "", "1": "ValueError: ..."},
   * with "" for a clean end. Returns 1 after timeout_ms (-1: no limit); call it again then.
   * Returns 2 if the world has failed: *error. */
  int (*serve)(rc_engine* engine, int64_t timeout_ms, char** left, char** error);
  /* Reports that another connection of this process has lost this rank. The engine's world fails
   * with it, unless it has failed before. All ranks are informed. Returns 1 if the world's
   * failure names that rank. */
  int (*blame)(rc_engine* engine, int32_t rank, const char* sentence, const char* cause);

  /* Allocates memory that transfers use without a copy (engine.empty()). Returns NULL if the
   * pool is exhausted. Free it before `free`; after close is allowed. */
  void* (*memory_allocate)(rc_engine* engine, uint64_t bytes);
  void (*memory_free)(rc_engine* engine, void* memory);
  /* Lends memory that transfers use without a copy, and that may outlive the engine.
   * (*release)(loan, memory) returns it. Returns NULL if half of the pool is in use, since the
   * engine needs the rest. */
  void* (*memory_lend)(rc_engine* engine, uint64_t bytes, void** loan,
                       void (**release)(void* loan, void* memory));

  /* Process sets other than the one of all ranks. The sets of the settings
   * (RDMACOLL_PROCESS_SETS) have the numbers from 1 on. ranks: ranks of the job, ascending.
   *
   * All ranks, members or not, must make the same calls of set_add and set_remove in the same
   * order. The caller makes sure of three things. All ranks make equal calls (an allgather
   * before). No rank uses a set before all ranks have added it (a barrier after). No rank has
   * operations in flight in a set that is removed. */
  int (*set_add)(rc_engine* engine, const int32_t* ranks, int32_t n_ranks, int32_t* number,
                 char** error);
  /* Returns 1 if other ranks still need this rank for the set. Call it again then. */
  int (*set_remove)(rc_engine* engine, int32_t number, int64_t timeout_ms, char** error);
  /* The number of this rank's operations in the set that have not ended. */
  int (*set_in_flight)(rc_engine* engine, int32_t number, int32_t* operations, char** error);

  /* Writes this rank's operations with their times to a file, in Chrome's trace format, from now
   * on. An earlier file is completed. path: "" ends the recording, and the file that is written
   * already changes nothing. close ends it, too. */
  int (*timeline)(rc_engine* engine, const char* path, char** error);

  /* Memory of GPUs, which have CUDA's numbers here. gpu_of returns the GPU that has this memory,
   * or -1 for all other memory. gpu_allocate allocates memory for callers. The result is a
   * reference to it. Free it before `free`; after close is allowed. */
  int32_t (*gpu_of)(rc_engine* engine, const void* memory);
  int (*gpu_allocate)(rc_engine* engine, int32_t gpu, uint64_t bytes, rc_result** result,
                      void** memory, char** error);
  /* Frees a reference to memory of a GPU. stream: the engine uses the memory again after the
   * present work of this stream, numbered as in rc_request; 0: at once. */
  void (*gpu_free)(rc_engine* engine, rc_result* result, uint64_t stream);
  /* After node: the profile of this rank's machine, one line of JSON, if this rank leads a node of
   * several ranks. It is read from its file (RDMACOLL_PROFILE), or else measured, in about 20 ms,
   * and kept. Returns "" at other ranks, and without a profile. */
  char* (*profile)(rc_engine* engine);
  /* Before start: the profiles of all ranks, by rank. Rank 0 chooses algorithms by the slowest. */
  void (*set_profiles)(rc_engine* engine, const char* const* profiles);
  /* Makes the stream `follower` wait for the present work of another stream, numbered as in
   * rc_request. gpu: the one of default streams, by CUDA's number. */
  int (*gpu_follow)(rc_engine* engine, int32_t gpu, uint64_t stream, uint64_t follower,
                    char** error);
  /* Copies n blocks between memory of a GPU and memory of the host, after the present work of the
   * stream, and waits for the end. Memory of memory_allocate is fastest. to_host: 1 from the GPU to
   * the host, 0 the other way. gpu, stream: as in gpu_follow. */
  int (*gpu_copy)(rc_engine* engine, int32_t gpu, uint64_t stream, int32_t to_host, int32_t n,
                  void* const* on_gpu, void* const* on_host, const uint64_t* bytes, char** error);
} rc_engine_api;

/* Operations that run once. */
typedef struct rc_operation_api {
  /* Submits an operation. handle may be NULL if request->done is set. An error means that the
   * request was not accepted, and that `done` is not called. */
  int (*submit)(rc_engine* engine, const rc_request* request, rc_handle** handle, char** error);
  /* submit() for small requests with `done`. This thread drives the engine for a short time, so
   * `done` may be called before this function returns. If all ranks submit at about the same
   * time, no other thread is woken. */
  int (*submit_and_drive)(rc_engine* engine, const rc_request* request, char** error);
  /* Submits the operations of a group, which differ in dtype and tensors. handles: one for each.
   * The group takes one number, or one name, independently of its dtypes. Ranks whose groups
   * differ in dtypes receive a MismatchError. The first operation decides this. The others begin
   * when it has succeeded, and fail with its error otherwise. If one operation is refused, the
   * whole group is refused. */
  int (*submit_group)(rc_engine* engine, const rc_request* requests, int32_t n_requests,
                      rc_handle** handles, char** error);
  /* submit and wait in one call, without waking the engine thread. This is the fastest way to
   * wait. Returns the values of wait, or 3 if the request was not accepted: *error has the
   * reason, and *handle is NULL. Free *handle in all other cases. After 1 (timeout) continue with
   * wait. */
  int (*run)(rc_engine* engine, const rc_request* request, int64_t timeout_ms, rc_handle** handle,
             char** error);
  /* run for a request without results of its own (allreduce, broadcast, reduce, barrier). Gives a
   * handle only with 1 (timeout), and with 0 (success) one as end_of returns it. A request that
   * equals an earlier one, also in its addresses, is faster than the first. has_lock: the caller
   * holds the lock of set_lock_hooks(). */
  int (*call)(rc_engine* engine, const rc_request* request, int64_t timeout_ms, int32_t has_lock,
              rc_handle** handle, char** error);
  /* For callers with a lock that other threads wait for, like Python's: `before` releases it, and
   * `after` takes it again, only for waits longer than about 10 us. Set the hooks once, before the
   * first call with a lock. `after` gets the value of `before`. */
  void (*set_lock_hooks)(void* (*before)(void), void (*after)(void* state));
  /* Reports a request that a check before submit() has refused. Only its kind, name, iteration
   * and process_set are used. An unnamed request takes its number, so that later ones still
   * match. Ranks that have submitted it receive a MismatchError with the reason. submit(),
   * submit_and_drive(), run(), prepare() and submit_group() call it for each request that they
   * refuse, including a name in flight. A named request is reported once the earlier operations
   * with its name have ended. Ranks outside the set, and names that exceed the limit, are
   * ignored. */
  void (*refuse)(rc_engine* engine, const rc_request* request, const char* reason);

  /* Waits for the operation, and drives the engine meanwhile (the baton). Returns 0 if it has
   * succeeded, 1 after timeout_ms (-1: no limit), 2 if it has failed: *error. error may be NULL. */
  int (*wait)(rc_handle* handle, int64_t timeout_ms, char** error);
  /* Returns 1 or 0. 1: results are complete, and the memory of the tensors is free. */
  int (*is_done)(rc_handle* handle);
  /* Returns a result of an operation that has succeeded without `allocate`, as in rc_allocate.
   * The memory is valid until free. */
  const void* (*result_at)(rc_handle* handle, int32_t index, int32_t* ndim, int64_t dims[8]);
  /* Allowed at any time. An unfinished operation continues. */
  void (*free)(rc_handle* handle);
  /* Takes the memory of result_at from the operation. The reference keeps it, also after `free`.
   * Free it by engine.gpu_free if it is memory of a GPU, and otherwise by prepared.result_free. A
   * second call returns another reference, while there is one. Another thread may be in `wait` of
   * the handle. */
  rc_result* (*result_take)(rc_handle* handle, int32_t index);
  /* call for a request with results of its own, without `allocate`. Gives a handle with 0 (success)
   * too. Read result_at and free the handle before the engine is freed. A later equal request may
   * write to the memory of the result after `free`. */
  int (*call_for_result)(rc_engine* engine, const rc_request* request, int64_t timeout_ms,
                         int32_t has_lock, rc_handle** handle, char** error);
  /* After the success of an operation with a stream: returns a handle for is_done and free, which
   * outlives that of the operation. Or NULL, if results are complete already. */
  rc_handle* (*end_of)(rc_handle* handle);
} rc_operation_api;

/* Operations that one caller runs many times. */
typedef struct rc_prepared_api {
  /* request: without `done` and `allocate`. Its pointers, and `error`, must stay valid until
   * free. Errors of runs are written to `error`, too.
   *
   * run submits the operation and waits for `timeout_ms`. It returns the values of
   * operation.wait, or 3 in a forked child, or 4. 4 means success with moved results: results in
   * memory of the engine have new addresses (result_at). The first run returns 4, too, if there
   * are such results. An rc_prepared must not run twice at once. Runs take one argument only,
   * since each argument costs Python time. */
  int (*prepare)(rc_engine* engine, const rc_request* request, int64_t timeout_ms,
                 rc_prepared** prepared, char** error);
  int (*run)(rc_prepared* prepared);
  /* run with a lock: operation.set_lock_hooks(). */
  int (*run_locked)(rc_prepared* prepared);
  /* Returns a result of a prepared operation that has succeeded, as in rc_allocate. Later runs
   * write to the same memory until a run returns 4. The memory is valid until result_free,
   * independently of the operation and the engine. */
  rc_result* (*result_at)(rc_prepared* prepared, int32_t index, const void** memory, int32_t* ndim,
                          int64_t dims[8]);
  void (*result_free)(rc_result* result);
  void (*free)(rc_prepared* prepared);
  /* Like operation.end_of, for the last run. */
  rc_handle* (*end_of)(rc_prepared* prepared);
} rc_prepared_api;

/* Asynchronous parameter servers, in a world of their own. The last `servers` ranks serve. */
typedef struct rc_ps_api {
  /* Returns the slots that a parameter server keeps for each variable under a rule:
   * {"slots": names in order, "initial_value": of all their elements} */
  int (*rule_slots)(const char* rule, char** json, char** error);
  /* Applies one update to values and slots in place, as a parameter server does. */
  int (*update)(const rc_update* update, char** error);

  /* The caller exchanges the texts, as at an engine's start. The steps are open, node with all
   * cards, and start with all leaders. Call start again while it returns 1. With TCP,
   * connections arrive at the listener of `engine`, which must stay open until all ranks have
   * started.
   *
   * staleness: the number of updates that the fastest worker may be ahead of the slowest; -1:
   * any. Call free for every opened rc_ps. */
  int (*open)(rc_engine* engine, int32_t rank, int32_t size, int32_t servers, int64_t staleness,
              const char* job, const uint8_t* secret, int32_t secret_bytes, const char* arguments,
              rc_ps** ps, char** card, char** error);
  int (*node)(rc_ps* ps, const char* const* cards, int32_t* leader, char** error);
  int (*start)(rc_ps* ps, const int32_t* leaders, int64_t timeout_ms, char** error);
  void (*free)(rc_ps* ps);

  /* On a server: serves until all workers have left. Returns 1 after timeout_ms; call it again
   * then. */
  int (*serve)(rc_ps* ps, int64_t timeout_ms, char** error);
  /* On a server: the text that it returns for RC_PS_STATS. */
  char* (*stats)(rc_ps* ps);
  /* On a server: messages about workers that were lost since the last call, as a JSON list. */
  char* (*losses)(rc_ps* ps);
  /* On a server that ends before its workers: sends them the cause, within a limited time. Call
   * free next. */
  void (*leave)(rc_ps* ps, const char* cause);

  /* On a worker. Variables are numbered in the order of their declaration, which is equal on all
   * workers. The variables of one declaration share a rule. Memory that is passed must stay
   * unchanged until `wait` returns a value other than 1 (not done; call it again). Received
   * values are complete then.
   *
   * texts: a JSON list of the servers' answers. declare: "needs values" from servers that have
   * none. RC_PS_STATS: one JSON object from each server. */
  int (*declare)(rc_ps* ps, const rc_variable* variables, int32_t n_variables, const char* rule,
                 rc_ps_call** call, char** error);
  /* learning_rate, here and below: for a push; NULL: the rule's. */
  int (*transfer)(rc_ps* ps, int32_t transfer, int32_t n_variables, const int32_t* variables,
                  void* const* data, const double* learning_rate, rc_ps_call** call, char** error);
  /* transfer with push_pull, with the gradients in separate memory. */
  int (*exchange)(rc_ps* ps, int32_t n_variables, const int32_t* variables,
                  const void* const* gradients, void* const* values, const double* learning_rate,
                  rc_ps_call** call, char** error);
  /* data: one row for each of `rows`, with gradients to send or for values to receive. A row may
   * occur twice. */
  int (*transfer_rows)(rc_ps* ps, int32_t transfer, int32_t variable, const int64_t* rows,
                       int64_t n_rows, void* data, const double* learning_rate, rc_ps_call** call,
                       char** error);
  /* transfer (init or pull) for the slots of variables. Slot 1 is the first one that rule_slots
   * names. Slot 0 has the values. Its init must come last, and sets the number of updates. */
  int (*transfer_slot)(rc_ps* ps, int32_t transfer, int32_t slot, uint64_t updates,
                       int32_t n_variables, const int32_t* variables, void* const* data,
                       rc_ps_call** call, char** error);
  /* The texts contain numbers. The largest one is the number of updates of these variables. */
  int (*updates)(rc_ps* ps, int32_t n_variables, const int32_t* variables, rc_ps_call** call,
                 char** error);
  int (*query)(rc_ps* ps, int32_t query, rc_ps_call** call, char** error);
  /* An rc_ps_checkpoint_action on each server. `path` is the prefix of a file on the server's
   * machine. */
  int (*checkpoint)(rc_ps* ps, const char* path, int32_t action, rc_ps_call** call, char** error);
  int (*wait)(rc_ps* ps, const rc_ps_call* call, int64_t timeout_ms, char** texts, char** error);
  void (*call_free)(rc_ps_call* call);
  /* Submits a request without waiting. An error means that it was not accepted, and that `done`
   * is not called. `done` may be called before this function returns. */
  int (*submit)(rc_ps* ps, const rc_ps_request* request, char** error);
  /* Describes, as text, which server stores which variables. */
  char* (*sharding)(rc_ps* ps);
  /* Returns 0 while no error has ended this worker. */
  int (*failure)(rc_ps* ps, char** error);
  /* Ends all open calls, and all later ones, with ShutdownError, before it returns. */
  void (*end)(rc_ps* ps);
} rc_ps_api;

/* Settings, checks and measurements, which need no engine. */
typedef struct rc_tools_api {
  /* Returns the settings as a JSON list of {name, alias (the first), aliases, default, value,
   * source, unit, scope, help, allowed, note}. They are read from the process environment.
   * `arguments` ("NAME=value\n..." or NULL) override it. An error names the variable, its value
   * and the allowed values. The list then has the default of each unreadable setting. */
  int (*settings)(const char* arguments, char** json, char** error);
  /* Returns a ConfigError, with the limit and the cure, if this process may not open `needed`
   * more descriptors. */
  int (*check_descriptors)(int32_t needed, char** error);
  /* Returns the RDMA devices of this machine, and the choice among them under these settings.
   * arguments: as in settings(), with its errors. Missing devices or a missing library are no
   * error.
   * {"error": why the devices are unknown, or null, "warning": null or a sentence, "devices":
   * [{"name", "firmware", "node_guid", "software", "numa_node", "unusable": null or the reason,
   * "queue_depth_max", "completions_max", "scatter_max", "reads_in_flight_max", "ports":
   * [{"number", "state", "link_layer", "mtu", "gbit_per_s", "lid", "message_bytes_max", "pkeys",
   * "gids": [{"index", "gid", "type", "interface"}], "unusable": null or the reason}]}],
   * "rails": [{"device", "port", "gid_index", "gid", "reason", "text", "software"}],
   * "choice_error": why there is no rail, or null. Null, too, if "error" has the reason} */
  int (*devices)(const char* arguments, char** json, char** error);

  /* Returns the transports in order of preference: [{"name", "title": the name in sentences,
   * "shares_memory": whether it connects ranks of one node only, "via_nic": whether devices
   * move the data, "is_off": whether settings turn it off}]. arguments: as in settings(), which
   * has the errors. A setting with an error has its default here. */
  char* (*transports)(const char* arguments);

  /* Returns the algorithms in the order of their table, of which the first one is chosen if several
   * cost the same:
   * [{"name", "result": of the collective, "by_node": whether it sums each node first,
   * "by_servers": whether parameter servers make the sums, "can_be_forced": by
   * RDMACOLL_ALLREDUCE_ALGORITHM, "between_nodes": whether the choice may take it there,
   * "never_canonical": a clause with the reason, or ""}]. */
  char* (*algorithms)(void);

  /* Explains which algorithm would run under these settings, and why. arguments: as in
   * settings(), with its errors.
   * {"algorithm": the chosen one, "reason", "cheapest": the one with the least modelled time,
   * "why_not_cheapest", "shown": the algorithm of the schedule below, "nodes": by rank, "costs":
   * [{"algorithm", "time_us", "formula_us": null unless it is a candidate by its formula,
   * "messages": sent by the busiest rank, "network_bytes": sent by the busiest node,
   * "segment_bytes", "segments", "parts", "canonical"}], "schedule": as the algorithm makes it,
   * "lowered": as it runs} */
  int (*explain)(const rc_plan_query* query, const char* arguments, char** json, char** error);
  /* These two return the JSON keys of their command, and 0 if all is correct, 1 if there are
   * findings. */
  int (*verify_schedules)(int32_t ranks_first, int32_t ranks_last, char** json);
  int (*sim_faults)(uint64_t seed_begin, uint64_t seed_end, int32_t verbose, char** json);
  /* Simulates the duration of a step of allreduces on modelled links: the real engines under a
   * virtual clock.
   * {"transfers": estimated, "time_us": null if there are too many transfers, "algorithms": of
   * each operation, "moved": whether bytes were moved and sums checked, or bytes had only sizes} */
  int (*sim_scale)(const rc_scale_query* query, char** json, char** error);

  /* Measures the path between two ranks of a job, in a world of these two ranks. The steps are
   * those of an engine's start, and the caller exchanges the texts:
   *   1. pair_open: side: 0 leads, 1 follows. numbers: the two ranks in the job, for messages.
   *   2. pair_node: with both cards. leader: the side that leads this node.
   *   3. pair_run: with both leaders. Blocks while it connects and measures.
   * Call pair_free for every opened pair. The leader's JSON follows; the follower's has no rows:
   * {"transport", "rails": the RDMA ports as text, "acc_size": the limit of eager transfers in
   * bytes, "rows": [{"bytes", "latency_us", "exchange_us": medians of rounds and of bursts, each
   * with _min and _max, "latency_rounds", "exchange_rounds", "GB_per_s_forward",
   * "GB_per_s_back", "GB_per_s_both"}]}. A row has only the keys that were measured. */
  int (*pair_open)(int32_t side, const int32_t numbers[2], const char* job, const uint8_t* secret,
                   int32_t secret_bytes, const char* arguments, rc_pair** pair, char** card,
                   char** error);
  int (*pair_node)(rc_pair* pair, const char* const cards[2], int32_t* leader, char** error);
  int (*pair_run)(rc_pair* pair, const int32_t leaders[2], const rc_pair_plan* plan, char** json,
                  char** error);
  void (*pair_free)(rc_pair* pair);

  /* Returns the GPUs and NICs of this machine, and the way of data between each two of them under
   * these settings. sys, proc: the roots to read; NULL: /sys and /proc. arguments: as in
   * settings(), with its errors. A machine without GPUs, or without a library of the driver, is no
   * error.
   * {"driver": version or null, "cuda_problem", "nvml_problem": null or why that library tells
   * nothing, "peer_module": the loaded peer-memory module or null, "setting":
   * RDMACOLL_GPUDIRECT, "gpus": [{"name", "uuid", "address": PCIe, "capability": "3.7",
   * "memory_bytes", "bar1_bytes", "bar1_free", "numa_node", "compute_mode", "mig", "nvlink",
   * "gpudirect", "dma_buf"}], "nics": [{"name", "address", "driver", "numa_node", "active": whether
   * a port is, "software"}], "cells": [{"gpu", "nic": places in the lists, "distance": "PIX",
   * "PXB", "PHB", "NODE", "SYS" or "?", "switch": the shared one, "acs": whether it redirects,
   * "iommu": whether one translates, "send", "receive": {"way": "staged", "peer_memory" or
   * "dma_buf", "cause": of staging, "reason": a sentence, "change": an imperative that would make
   * it direct, "lost": whether a direct way is expected}, "flush": "none", "driver" or "read",
   * "error": why the setting cannot be}], "warnings": sentences about lost direct ways}. Unknown
   * facts are null. */
  int (*gpus)(const char* sys, const char* proc, const char* arguments, char** json, char** error);
  /* Returns the profile of this machine under these settings. measure: 0 reads it from its file, 1
   * measures it for up to 20 s and writes the file. arguments: as in settings(), with its errors.
   * {"source": "off", "none", "file" or "measured", "path": of the file, or "", "note": a sentence
   * about a file that could not be used or written, or "", "took_s": of the measurement, "machine":
   * the file's name for it, "memory_limit": bytes of the control group or the machine, "quota":
   * cores of processor time, or null, "threads_per_core", "shared_huge_pages": the kernel's word,
   * "fields": [{"name", "unit": "bytes", "cores", "bytes/us" or "ns", "value": null if it was not
   * measured, "meaning"}], "gpus": [{"gpu": "cuda:0 (name)", "start_us" and "bytes_per_us": of a
   * copy between pinned memory and the GPU, 0 if it was not measured, "problem": why, "segments":
   * [{"bytes", "segment_bytes"}], of staged broadcasts between two ranks}], measured only if the
   * rest is} */
  int (*machine_profile)(const char* arguments, int32_t measure, char** json, char** error);
} rc_tools_api;

typedef struct rc_api {
  uint32_t abi_version; /* RC_ABI_VERSION */
  /* A hash of this header without its comments. The library is from another build if it differs
   * from that of the caller's copy (CMakeLists.txt, cpp/api/mirror.py). */
  uint64_t header_hash;
  const char* version; /* the version of the package */
  void (*text_free)(char* text);
  const rc_engine_api* engine;
  const rc_operation_api* operation;
  const rc_prepared_api* prepared;
  const rc_ps_api* ps;
  const rc_tools_api* tools;
} rc_api;

/* Returns the table of this version, or NULL if the library has another version. */
__attribute__((visibility("default"))) const rc_api* rc_get_api(uint32_t abi_version);

#ifdef __cplusplus
}
#endif
#endif /* RDMACOLL_C_H_ */
