/* The C ABI of librdmacoll.so: one exported function that hands out a versioned table. Python
 * (ctypes) and librdmacoll_tf.so are its only users. Append to the table, never change an entry;
 * RC_ABI_VERSION grows when an entry's meaning does.
 *
 * Text that is returned through `char**` belongs to the caller: free it with `text_free`. Every
 * function that can fail returns 0, or another number and the error as JSON:
 *   {"kind": "RankFailedError", "message": "...", "rank": 3, "host": "node7", "cause": "...",
 *    "tensor": "", "ranks": []}
 * `kind` is the name of a class in rdmacoll/engine/errors.py. */
#ifndef RDMACOLL_C_H_
#define RDMACOLL_C_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RC_ABI_VERSION 13

typedef struct rc_engine rc_engine;     /* one rank's engine */
typedef struct rc_handle rc_handle;     /* one submitted operation */
typedef struct rc_prepared rc_prepared; /* an operation that is called again and again */
typedef struct rc_result rc_result;     /* memory of a result that a prepared operation has made */
typedef struct rc_pair rc_pair;         /* one end of a path that is measured */
typedef struct rc_ps rc_ps;             /* one rank of an asynchronous parameter server */
typedef struct rc_ps_call rc_ps_call;   /* what was asked of its servers */

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
  RC_JOIN = 9 /* no tensors, no name: this rank has no data left. Until all ranks have joined it
                 takes part in the others' allreduces (sum, average) with zeros, and in barriers,
                 and may not submit. The result is one int64: the last rank that joined. */
};
/* dtypes and reduction operators: the numbers in base/dtype.h
 * uint8 0, int8 1, int32 2, int64 3, float16 4, bfloat16 5, float32 6, float64 7, bool 8, uint16 9,
 * uint32 10, uint64 11, int16 12, complex64 13, complex128 14; sum 0, average 1, min 2, max 3,
 * product 4. bool is reduced by min ("and") and max ("or"), and not scaled. */

typedef struct rc_tensor {
  const void* input; /* C-contiguous; broadcast and scatter read it at the root only */
  void* output;      /* allreduce, broadcast, reduce (at the root only); may be `input` */
  int32_t ndim;      /* 0 to 8 */
  int64_t dims[8];
  const char* label; /* names the tensor in messages; may be NULL */
} rc_tensor;

/* Of allgather, reducescatter, alltoall, gather and scatter, whose results have another shape than
 * their inputs, and of an allreduce with `place` whose results are not shared. Asked for each
 * result in turn, once its size is known, on the thread that drives the engine: returns memory for
 * it (C-contiguous, dims given), valid until the operation is done, or NULL to fail it. Where ranks
 * turn out to give other numbers of rows than a plan has, all are asked for once more, and what was
 * given before is not used any longer. The results are one for each tensor, without rows where the
 * rank gets none (gather elsewhere than at the root); of an alltoall also how many rows came from
 * each rank: int64, as many as ranks. */
typedef void* (*rc_allocate)(void* context, int32_t ndim, const int64_t* dims);
/* Of an allreduce whose outputs may lie where all ranks of the node see them: told for each tensor
 * in turn, on the thread that drives the engine, before the result is there. What the caller writes
 * there later only this process sees. The memory stays until release(loan, memory) is called, on
 * any thread, also after engine_close(). */
typedef void (*rc_place)(void* context, int32_t tensor, void* memory, void* loan,
                         void (*release)(void* loan, void* memory));
/* Called exactly once for an accepted request, before engine_close() returns: on a thread of the
 * engine's or on the one that drives it, never from inside submit() (but from inside
 * submit_and_drive()). Several may run at once, in any order. They may submit, and may neither wait
 * nor ask for the engine's state. error_json is NULL on
 * success and valid during the call. */
typedef void (*rc_done)(void* context, const char* error_json);

typedef struct rc_request {
  uint32_t size; /* sizeof(rc_request) */
  int32_t kind;  /* rc_kind */
  int32_t dtype;
  int32_t op;               /* allreduce, reducescatter, reduce */
  int32_t root;             /* broadcast, reduce, gather, scatter */
  double prescale;          /* where op counts: inputs are multiplied first; 1.0 = untouched */
  double postscale;         /* where op counts: the result is multiplied last */
  const char* name;         /* NULL: unnamed, counted by one counter across all kinds */
  int64_t iteration;        /* tells the iterations of a loop apart; 0 outside. A (name, iteration)
                               that is in flight already is a DuplicateNameError */
  int32_t n_tensors;        /* >= 1, except barrier (0); several = grouped; alltoall, gather and
                               scatter take 1 */
  const rc_tensor* tensors; /* copied before submit() returns; the memory behind it is not */
  rc_allocate allocate;     /* NULL: the handle owns the results (handle_result_at) */
  rc_done done;             /* NULL: use the handle */
  void* context;            /* for allocate and done */
  const char* manifest;     /* describes the list of gradients that this is the first part of;
                               compared between ranks, and shown where it differs. The lines behind
                               the first one list names of variables, whose order is compared
                               (cpp/operation/listing.h). NULL: none */
  const int64_t* splits;    /* alltoall, scatter at the root: how many rows each rank gets, as many
                               numbers as ranks; copied. NULL: as many for each, in a scatter one more
                               for the first ranks, as in a reducescatter */
  int32_t n_splits;
  int32_t process_set; /* its number; 0: all ranks. Then `ranks` above are its ranks, and root is
                          the rank in the job of one of them */
  rc_place place;      /* allreduce: outputs may be shared by the node, and are NULL; where they are
                          not, `allocate` is asked for each instead. The same on all ranks. NULL:
                          results go to the outputs */
  const char* group; /* the dtypes of a group of several that this is the first operation of, whose
                        others the caller submits after its good end; compared between ranks.
                        NULL: none. submit_group() does all of it */
} rc_request;

enum rc_measure { RC_LATENCY = 1, RC_EXCHANGE = 2, RC_BANDWIDTH = 4 };

typedef struct rc_plan { /* the same at both ends */
  uint32_t size;         /* sizeof(rc_plan) */
  int32_t measures;      /* rc_measure, added up */
  const uint64_t* bytes; /* of the transfers to measure */
  int32_t n_bytes;
  int32_t repeats;   /* bursts of each cell */
  double burst_s;    /* about how long a burst takes */
  double patience_s; /* nothing moves for so long: an error */
  double limit_s;    /* of pair_run, which takes at most this to connect and this to measure */
} rc_plan;

typedef struct rc_update {     /* of a variable by a gradient */
  uint32_t size;               /* sizeof(rc_update) */
  int32_t dtype;               /* float32 or float64, of all arrays */
  const char* rule;            /* lines of "key=value": cpp/ps/update_rule.h */
  int64_t step;                /* updates before this one */
  const double* learning_rate; /* or NULL: the rule's */
  int32_t decays;              /* whether the rule's weight decay is for this variable */
  int32_t n_slots;             /* as many as ps_rule_slots names */
  uint64_t count;              /* elements of each array */
  void* values;
  void* const* slots;
  const void* gradient;
} rc_update;

typedef struct rc_variable {
  const char* name;
  int32_t dtype; /* float32 or float64 */
  int32_t ndim;
  const int64_t* dims;
  int32_t by_rows; /* an embedding: rows are pushed and pulled one by one */
  int32_t decays;  /* whether the rule's weight decay is for it */
} rc_variable;

/* Of whole variables. init: their first values; push: gradients; pull: values come, once the
 * first worker has given them; push_pull: gradients go, and fresh values come into the same
 * memory. */
enum rc_ps_move { RC_PS_INIT = 0, RC_PS_PUSH = 1, RC_PS_PULL = 2, RC_PS_PUSH_PULL = 3 };
/* leave: this worker needs nothing any more. */
enum rc_ps_ask { RC_PS_STATS = 0, RC_PS_LEAVE = 1 };
/* saved: says of which save each server's file is: numbers, which are equal where one save wrote
 * all of them. */
enum rc_ps_way { RC_PS_SAVE = 0, RC_PS_SAVED = 1, RC_PS_RESTORE = 2 };

typedef struct rc_ps_tensor {
  const char* variable; /* its name */
  uint64_t bytes;       /* of gradient and value */
  const void* gradient; /* push and push_pull */
  void* value; /* pull and push_pull: where it comes; may be `gradient` of whole variables */
} rc_ps_tensor;

typedef struct rc_ps_request {
  uint32_t size; /* sizeof(rc_ps_request) */
  int32_t move;  /* rc_ps_move, but for init */
  int32_t dtype; /* of all tensors */
  int32_t n_tensors;
  const rc_ps_tensor* tensors; /* copied before ps_submit() returns; the memory behind is not */
  const int64_t* rows;         /* of the one variable that is named; NULL: whole variables */
  int64_t n_rows;
  const double* learning_rate; /* of a push, copied; or NULL: the rule's */
  rc_done done;
  void* context;
} rc_ps_request;

typedef struct rc_question {
  uint32_t size; /* sizeof(rc_question) */
  int32_t kind;  /* rc_kind, but for the barrier; the root is rank 0 */
  int32_t ranks;
  int32_t nodes;         /* of consecutive ranks, as even as can be */
  uint64_t bytes;        /* allgather, gather: of all ranks together; scatter: the root's */
  int32_t rank;          /* whose schedule is shown */
  const char* algorithm; /* of which; NULL: of the one that is chosen */
  int32_t is_rdma;       /* between nodes; 0: TCP */
  double latency_us;     /* of that network; 0: what is usual */
  double gbit_per_s;     /* 0: what is usual */
  int32_t servers;       /* parameter servers beside the ranks; 0: none */
  const char* dtype;     /* NULL: float32; sums of 16-bit floats stay in float32 on their way */
} rc_question;

typedef struct rc_link { /* LogGP: cpp/base/link_model.h */
  double latency_us;
  double overhead_us;
  double gap_us;
  double bytes_per_us;
} rc_link;

typedef struct rc_scale {
  uint32_t size; /* sizeof(rc_scale) */
  int32_t ranks;
  int32_t node_ranks; /* of consecutive ranks */
  int32_t rack_nodes; /* that share uplinks; 0: all nodes are in one rack */
  rc_link node, network;
  double uplink_bytes_per_us;
  int32_t is_rdma; /* between nodes; 0: TCP */
  double step_us;  /* of a copy or a sum, beside its bytes */
  double copy_bytes_per_us, reduce_bytes_per_us;
  const char* algorithm;  /* NULL: the one that the engine chooses */
  int32_t operations;     /* of a step */
  const uint64_t* bytes;  /* of each, a multiple of 4 */
  const double* ready_us; /* when each is submitted, after the step's begin */
  uint64_t transfers_max; /* of a step; more are not simulated */
} rc_scale;

/* Of CPython's: PyLong_AsVoidPtr, Py_IncRef, PyObject_CallNoArgs. */
typedef struct rc_python {
  void* (*address_of)(void* number);
  void (*refer_to)(void* object);
  void* (*call)(void* function);
} rc_python;

typedef struct rc_bound {
  rc_prepared* prepared; /* NULL: it is no more */
  void* result;          /* objects of Python's */
  void* otherwise;
  int32_t answer;   /* of the last run, until `otherwise` has dealt with it and has put 0 here */
  int32_t is_fresh; /* that run was of this call */
} rc_bound;

typedef struct rc_api {
  uint32_t abi_version; /* RC_ABI_VERSION */
  uint32_t size;        /* sizeof(rc_api) */
  const char* version;  /* of the package */

  void (*text_free)(char* text);

  /* Settings: JSON list of {name, alias (the first), aliases, default, value, source, unit, scope,
   * help, allowed, note}, from the process environment overlaid by `arguments` ("NAME=value\n..."
   * or NULL). An error names variable, value and what is allowed; the list then has the default of
   * what cannot be read. */
  int (*settings)(const char* arguments, char** json, char** error);

  /* Start, in four steps, since only the caller can carry texts between ranks:
   *   1. engine_open      listens; address = this rank's card, a JSON object on one line
   *   2. (caller) gathers all cards, by rank
   *   3. engine_node      which rank leads this rank's node (a real connection is tried), and fails
   *                       with ConfigError when settings or builds differ between the cards
   *   4. (caller) gathers the leaders; engine_start connects the control tree and starts the
   * thread. secret: the job's secret (16 bytes or more), job: its name, arguments as in settings().
   * engine_close must be called for every opened engine. */
  int (*engine_open)(int32_t rank, int32_t size, const char* job, const uint8_t* secret,
                     int32_t secret_bytes, const char* arguments, rc_engine** engine,
                     char** address, char** error);
  int (*engine_node)(rc_engine* engine, const char* const* addresses, int32_t* leader,
                     char** error);
  /* In slices, between which a caller can look at its signals: 1 when timeout_ms (-1: no limit) is
   * over before the world stands; call it again then, with the same leaders. After a 0 it may be
   * asked further: the error is that of a rank that was lost since. */
  int (*engine_start)(rc_engine* engine, const int32_t* leaders, int64_t timeout_ms, char** error);
  /* Says goodbye (cause: NULL for a clean end, else e.g. "ValueError: ..."), fails what is pending
   * with ShutdownError, stops the thread, closes everything; bounded to some seconds. Idempotent.
   * The engine itself (and its handles) stays valid until engine_free. */
  void (*engine_close)(rc_engine* engine, const char* cause);
  void (*engine_free)(rc_engine* engine);

  /* rank size local_rank local_size cross_rank cross_size, in this order; of the workers where
   * there are parameter servers beside them */
  void (*engine_topology)(rc_engine* engine, int32_t out[6]);
  /* INTERFACE's metrics() as a JSON object of totals since start. */
  char* (*engine_metrics)(rc_engine* engine);
  /* {"transport": "shm", "determinism": "run", "servers": 0, "is_server": false, "summary": "..."}:
   * how many ranks are parameter servers, and whether this is one of them */
  char* (*engine_describe)(rc_engine* engine);
  /* Pending units, batches, per-peer transfers, as text for a person. */
  char* (*engine_state)(rc_engine* engine);

  /* handle may be NULL when request->done is set. An error here means: not accepted, done is not
   * called. */
  int (*submit)(rc_engine* engine, const rc_request* request, rc_handle** handle, char** error);
  /* Drives the engine while it waits (the baton). 0 done, 1 timeout_ms is over (-1: no limit), 2
   * done with an error: *error (which may be NULL: not wanted). */
  int (*handle_wait)(rc_handle* handle, int64_t timeout_ms, char** error);
  int (*handle_done)(rc_handle* handle); /* 1 or 0 */
  /* handle_result_at of the first result. */
  const void* (*handle_result)(rc_handle* handle, int32_t* ndim, int64_t dims[8]);
  /* Allowed at any time; an unfinished operation goes on. */
  void (*handle_free)(rc_handle* handle);

  /* request: without `done` and `allocate`; pointers stay valid until prepared_free, `error` as
   * well, which takes the errors of runs, too. prepared_run is submit + wait for `timeout_ms`, with
   * handle_wait's results, or 3 in a forked child, or 4: it has succeeded, and results that the
   * engine makes lie elsewhere than before, at the first run for one (prepared_result_at); the same
   * rc_prepared may not run twice at once. One argument, since Python takes 0.1 us for each. */
  int (*prepare)(rc_engine* engine, const rc_request* request, int64_t timeout_ms,
                 rc_prepared** prepared, char** error);
  int (*prepared_run)(rc_prepared* prepared);
  void (*prepared_free)(rc_prepared* prepared);

  /* engine.empty(): memory that needs no copy; NULL when the pool is exhausted. Must be freed
   * before engine_free (after engine_close is fine). */
  void* (*memory_allocate)(rc_engine* engine, uint64_t bytes);
  void (*memory_free)(rc_engine* engine, void* memory);

  /* Commands that need no world; each returns the JSON keys of its command. 0: ok, 1: findings. */
  int (*verify_schedules)(int32_t ranks_first, int32_t ranks_last, char** json);
  int (*sim_faults)(uint64_t seed_begin, uint64_t seed_end, int32_t verbose, char** json);

  /* submit + handle_wait in one, without waking the engine thread: the fast way to block. Results
   * as handle_wait's, or 3: not accepted (*error says why, *handle is NULL). Free *handle in any
   * other case; after 1 (timeout) go on with handle_wait. */
  int (*run)(rc_engine* engine, const rc_request* request, int64_t timeout_ms, rc_handle** handle,
             char** error);

  /* Memory that needs no copy and may outlive the engine: (*release)(loan, memory) gives it back.
   * NULL when half of the pool is in use: the engine needs the rest itself. */
  void* (*memory_lend)(rc_engine* engine, uint64_t bytes, void** loan,
                       void (**release)(void* loan, void* memory));

  /* The RDMA devices of this machine and the choice among them under these settings (arguments as
   * in settings(), with its errors). No devices, no library: that is an answer, not an error.
   * {"error": why nothing can be known, or null, "warning": null or a sentence,
   *  "devices": [{"name", "firmware", "node_guid", "software", "numa_node", "unusable": null or
   * why, "queue_depth_max", "completions_max", "scatter_max", "reads_in_flight_max", "ports":
   * [{"number", "state", "link_layer", "mtu", "gbit_per_s", "lid", "message_bytes_max", "pkeys",
   * "gids": [{"index", "gid", "type", "interface"}]}]}], "rails": [{"device", "port", "gid_index",
   * "gid", "reason", "text"}], "choice_error": why there is no rail; null when there is one, or
   * `error` says it} */
  int (*devices)(const char* arguments, char** json, char** error);

  /* The path between two ranks of a job, measured in a world of these two alone. In steps like an
   * engine's start, with the caller as carrier:
   *   1. pair_open   place: 0 leads, 1 follows; numbers: the two ranks in the job, for sentences
   *   2. pair_node   with both cards; leader: place of who leads this node
   *   3. pair_run    with both leaders; blocks while it connects and measures
   * pair_free must be called for every opened pair. The leader's JSON; the follower's has no rows:
   * {"transport", "rails": the RDMA ports as text, "acc_size": bytes that go eager, "rows":
   * [{"bytes", "latency_us", "exchange_us": medians of rounds and of bursts, each with _min and
   * _max, "latency_rounds", "exchange_rounds", "GB_per_s_forward", "GB_per_s_back",
   * "GB_per_s_both"}]}; only keys of what was measured. */
  int (*pair_open)(int32_t place, const int32_t numbers[2], const char* job, const uint8_t* secret,
                   int32_t secret_bytes, const char* arguments, rc_pair** pair, char** card,
                   char** error);
  int (*pair_node)(rc_pair* pair, const char* const cards[2], int32_t* leader, char** error);
  int (*pair_run)(rc_pair* pair, const int32_t leaders[2], const rc_plan* plan, char** json,
                  char** error);
  void (*pair_free)(rc_pair* pair);

  /* ConfigError with the limit and the cure when this process may not open so many more
   * descriptors now. */
  int (*check_descriptors)(int32_t needed, char** error);

  /* Of an operation that has succeeded without `allocate`: a result, as in rc_allocate; the memory
   * is valid until handle_free. */
  const void* (*handle_result_at)(rc_handle* handle, int32_t index, int32_t* ndim, int64_t dims[8]);
  /* What would run, and why, under these settings (arguments as in settings(), with its errors).
   * {"algorithm": the one that is chosen, "reason", "shown": whose schedule follows, "nodes": of
   * each rank, "costs": by algorithm [{"algorithm", "time_us", "messages": that the busiest rank
   * sends, "network_bytes": that the busiest node sends, "segment_bytes", "segments", "parts",
   * "canonical"}], "schedule": as the algorithm writes it, "lowered": as it runs} */
  int (*explain)(const rc_question* question, const char* arguments, char** json, char** error);
  /* How long a step of allreduces takes on modelled links: the real engines under a virtual clock.
   * {"transfers": about, "time_us": or null where they are too many, "algorithms": of each
   * operation, "moved": whether bytes were moved and sums compared, or had sizes alone} */
  int (*sim_scale)(const rc_scale* question, char** json, char** error);

  /* Process sets beside the one of all ranks. Those of the settings (RDMACOLL_PROCESS_SETS) have
   * the numbers from 1 on. The other calls are one rank's part of what all ranks do, members or
   * not, in the same order; the caller sees to it that all do the same (an allgather before), that
   * nobody uses a new set before all have it (a barrier after), and that nobody has anything in
   * flight in a set that is removed. ranks: of the job, ascending. */
  int (*set_add)(rc_engine* engine, const int32_t* ranks, int32_t n_ranks, int32_t* number,
                 char** error);
  /* 1: other ranks still need something of this one; call it again. */
  int (*set_remove)(rc_engine* engine, int32_t number, int64_t timeout_ms, char** error);
  /* How many operations of this rank have not ended there. */
  int (*set_in_flight)(rc_engine* engine, int32_t number, int32_t* operations, char** error);

  /* submit() of a request with `done`, for small ones: this thread drives the engine for some 0.1
   * ms, so `done` may be called before this returns, and no other thread is woken where all ranks
   * submit about at the same time. */
  int (*submit_and_drive)(rc_engine* engine, const rc_request* request, char** error);

  /* A result of a prepared operation that has succeeded, as in rc_allocate. Its runs write there
   * until one of them has returned 4; the memory is valid until result_free, whatever becomes of
   * operation and engine. */
  rc_result* (*prepared_result_at)(rc_prepared* prepared, int32_t index, const void** memory,
                                   int32_t* ndim, int64_t dims[8]);
  void (*result_free)(rc_result* result);
  /* What a parameter server keeps beside each variable under a rule:
   * {"slots": their names, in order, "initial_value": of all their elements} */
  int (*ps_rule_slots)(const char* rule, char** json, char** error);
  /* One update, as a parameter server makes it: in place, of values and slots. */
  int (*ps_update)(const rc_update* update, char** error);
  /* At a parameter server (`is_server` of engine_describe), after engine_start: serves until every
   * worker has left. 0: *left has why each of them did, {"0": "", "1": "ValueError: ..."}, "" for a
   * clean end; 1: timeout_ms (-1: no limit) is over before, call it again; 2: the world has failed,
   * *error. */
  int (*engine_serve)(rc_engine* engine, int64_t timeout_ms, char** left, char** error);

  /* An asynchronous parameter server, in a world of its own; the last `servers` ranks serve. In
   * steps like an engine's start, with the caller as carrier: ps_open, ps_node with all cards,
   * ps_start with all leaders until it does not return 1 (not yet, call again). Over TCP its ranks
   * are called where the `engine` listens, which stays open until they have started.
   * staleness: updates that the fastest worker may be ahead of the slowest; -1: any number.
   * ps_free must be called for every opened one. */
  int (*ps_open)(rc_engine* engine, int32_t rank, int32_t size, int32_t servers, int64_t staleness,
                 const char* job, const uint8_t* secret, int32_t secret_bytes,
                 const char* arguments, rc_ps** ps, char** card, char** error);
  int (*ps_node)(rc_ps* ps, const char* const* cards, int32_t* leader, char** error);
  int (*ps_start)(rc_ps* ps, const int32_t* leaders, int64_t timeout_ms, char** error);
  void (*ps_free)(rc_ps* ps);
  /* On a server; 1: not all workers have left, call it again. */
  int (*ps_serve)(rc_ps* ps, int64_t timeout_ms, char** error);

  /* On a worker. Variables are known by their numbers, in the order in which they are declared,
   * which is the same on all workers; those of one declaration go by one rule. Memory that is named
   * stays as it is until ps_wait has not returned 1 (not yet, call again); what comes is there
   * then. texts: a JSON list of what the servers said: of declare ["needs values", ...] where they
   * have none, of stats one JSON each. */
  int (*ps_declare)(rc_ps* ps, const rc_variable* variables, int32_t n_variables, const char* rule,
                    rc_ps_call** call, char** error);
  /* learning_rate, also below: of a push, or NULL: the rule's. */
  int (*ps_move)(rc_ps* ps, int32_t move, int32_t n_variables, const int32_t* variables,
                 void* const* data, const double* learning_rate, rc_ps_call** call, char** error);
  /* data: a row for each of `rows`: gradients, or where values come. A row may be named twice. */
  int (*ps_move_rows)(rc_ps* ps, int32_t move, int32_t variable, const int64_t* rows,
                      int64_t n_rows, void* data, const double* learning_rate, rc_ps_call** call,
                      char** error);
  int (*ps_ask)(rc_ps* ps, int32_t ask, rc_ps_call** call, char** error);
  int (*ps_wait)(rc_ps* ps, const rc_ps_call* call, int64_t timeout_ms, char** texts, char** error);
  void (*ps_call_free)(rc_ps_call* call);
  /* Which server stores what, for a person. */
  char* (*ps_sharding)(rc_ps* ps);
  /* rc_ps_way: each server, with a file of its machine whose name begins with `path`. */
  int (*ps_checkpoint)(rc_ps* ps, const char* path, int32_t way, rc_ps_call** call, char** error);
  /* ps_move, init or pull, of what the optimizer keeps beside variables: slot 1 is the first that
   * ps_rule_slots names. Slot 0 are the values: their init comes last, and says how many updates
   * all of this has had. */
  int (*ps_move_slot)(rc_ps* ps, int32_t move, int32_t slot, uint64_t updates, int32_t n_variables,
                      const int32_t* variables, void* const* data, rc_ps_call** call, char** error);
  /* The largest number among the texts: how many updates these variables have had. */
  int (*ps_updates)(rc_ps* ps, int32_t n_variables, const int32_t* variables, rc_ps_call** call,
                    char** error);
  /* For whoever does not wait. An error: not accepted, `done` is not called. It may be called
   * before this returns. */
  int (*ps_submit)(rc_ps* ps, const rc_ps_request* request, char** error);
  /* All that is open, and all that will be asked, ends with ShutdownError, before this returns. */
  void (*ps_end)(rc_ps* ps);
  /* On a server: what it says when it is asked for RC_PS_STATS. */
  char* (*ps_stats)(rc_ps* ps);
  /* For callers with a lock that others wait for, as Python's: prepared_run_locked is prepared_run
   * where the lock is given away by `before`, and taken again by `after`, only if the wait takes
   * more than some 10 us. Set once, before the first run. */
  void (*set_lock_hooks)(void* (*before)(void), void (*after)(void* what_before_gave));
  int (*prepared_run_locked)(rc_prepared* prepared);
  /* On a server that ends before its workers: tells them why. Bounded. ps_free comes next. */
  void (*ps_leave)(rc_ps* ps, const char* cause);
  /* ps_move, push_pull, with the gradients in memory of their own. */
  int (*ps_exchange)(rc_ps* ps, int32_t n_variables, const int32_t* variables,
                     const void* const* gradients, void* const* values, const double* learning_rate,
                     rc_ps_call** call, char** error);
  /* A prepared operation as a function of CPython's (METH_NOARGS), whose `self` is the address of
   * an rc_bound as an int: prepared_run_locked, and then a new reference to `result`. Where that
   * does not simply end well, or an earlier run's answer is still there, or nothing to be run, what
   * `otherwise` returns is returned. Set Python's own functions first. */
  void (*set_python)(const rc_python* python);
  void* (*prepared_call)(void* self, void* nothing);
  /* On a server: sentences about workers that were lost since the last call, a list in JSON. */
  char* (*ps_losses)(rc_ps* ps);
  /* On a worker: 0 while no error has ended it. */
  int (*ps_failure)(rc_ps* ps, char** error);
  /* Another connection of this process has lost this rank: so the engine's world has failed, unless
   * it has before, and everybody hears of it. 1: the world's failure is that rank's. */
  int (*engine_blame)(rc_engine* engine, int32_t rank, const char* sentence, const char* cause);
  /* A request that this rank's caller was refused, by checks before submit(): of it only kind,
   * name, iteration and process_set count. An unnamed one takes its number, so what follows stays
   * matched, and ranks that have submitted it get a MismatchError with the reason. submit(),
   * submit_and_drive(), run(), prepare() and submit_group() do it themselves for what they refuse,
   * a name in flight too. A named one is told once the operations before it under its name have
   * ended. Nothing happens on ranks outside the set, nor for names that are too long for any
   * operation. */
  void (*refuse)(rc_engine* engine, const rc_request* request, const char* reason);
  /* Before engine_start: the engine listens where ranks meet. Callers that begin as at a rendezvous
   * come as numbers of their descriptors (int32), a packet each, out of the socket that this
   * returns; both are the caller's. -1: no descriptor was left. */
  int (*engine_callers)(rc_engine* engine);
  /* The operations of a group, which differ in dtype and tensors, one handle for each. The group
   * takes one number, or the one name, whatever its dtypes, and ranks whose groups have different
   * dtypes get a MismatchError: the first operation tells them all, and the others begin when it
   * has ended well, or end with its error. One that is refused refuses the group. */
  int (*submit_group)(rc_engine* engine, const rc_request* requests, int32_t n_requests,
                      rc_handle** handles, char** error);
} rc_api;

__attribute__((visibility("default"))) const rc_api* rc_get_api(uint32_t abi_version);

#ifdef __cplusplus
}
#endif
#endif /* RDMACOLL_C_H_ */
