// A server of asynchronous parameter servers. It answers each worker's requests in their order, and
// waits for no worker. A state machine on a transport, whose steps never block.
//
// A chunk of a push is applied when it is complete, in the receive buffer or in the worker's view.
// A push_pull returns the new values of the chunk at once. So a server needs two chunks of the pool
// for each worker, for variables of any size. If a worker dies within a push, a part of the push is
// applied.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/world.h"
#include "memory/pool.h"
#include "memory/store_policy.h"
#include "ps/checkpoint.h"
#include "ps/pace.h"
#include "ps/protocol.h"
#include "ps/store.h"
#include "transport/transport.h"

namespace rdmacoll::ps {

struct ServerOptions {
  std::vector<int>
      workers;  // by worker: its rank in the world; the first one sends the initial values
  std::size_t chunk_bytes_max = std::size_t{4} << 20;
  std::optional<uint64_t> staleness;
  int number = 0, servers = 1;  // this server's number, and their count
  // False for colocated servers: a worker is lost together with a server, which all workers report.
  bool reports_losses = true;
};

class Server final : public Sink {
 public:
  // The arguments must outlive the server.
  Server(Transport& transport, const World& world, MemoryPool& pool, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Polls the transport, and continues all jobs. Returns whether anything moved.
  bool turn();
  // Whether all workers have left, or are lost.
  bool is_done() const;
  // Sends the workers the reason why this server ends before them. Afterwards only turn() and
  // has_informed_workers() may be used.
  void leave(const std::string& cause);
  bool has_informed_workers() const;
  // Returns messages about workers that were lost since the last call.
  std::vector<std::string> take_losses();
  // A worker has reported the loss of another server, which ends all servers.
  const Status& failure() const { return failure_; }
  // {"updates", "bytes_received", "bytes_sent", "stored_bytes", "variables", "workers": present
  // ones, "waiting": workers that wait, "waiting_for": what the first of these waits for, "lost"}
  std::string stats_json() const;

  void connected(int) override {}
  void sent(uint64_t cookie) override;
  void received(uint64_t cookie) override;
  void viewed(uint64_t cookie, const View& view) override;
  void control(int peer, std::span<const std::byte> message) override;
  void peer_failed(int peer, const std::string& cause) override;

 private:
  struct Buffer {
    enum class State : uint8_t { free, receiving, received, ready, sending };
    State state = State::free;
    std::byte* data = nullptr;
    // The chunk's data: in `data`, or in the worker's memory, until it is released.
    const std::byte* given = nullptr;
    bool is_view = false;
    const RemoteReader* reader = nullptr;  // for a view that is not mapped, and must be copied
    RemotePiece unmapped;
    std::size_t chunk = 0;
    // The numbers of the rows in a chunk of rows, and the count of those that are done.
    std::vector<int64_t> rows;
    std::size_t rows_done = 0;
  };
  struct Job {  // the current request
    Request request;
    Status refusal;  // the data of a refused request is received and discarded
    std::vector<Chunk> chunks;
    std::vector<uint64_t> steps;  // by item: the number of its update, or of the next one
    // Items whose rows have caught up, and rows of the next item that have.
    std::size_t caught_up = 0;
    uint64_t rows_caught_up = 0;
    // a restore came in between; pushed data was meant for other values, and is dropped
    bool is_overtaken = false;
    std::size_t begun = 0, ended = 0;  // chunks
    // No other worker is served while a checkpoint is in progress.
    std::unique_ptr<Checkpoint> checkpoint;
  };
  struct Worker {
    int rank = 0;
    bool is_there = true;
    bool is_waiting = false;  // its first request may not begin yet
    bool has_broken_protocol = false;
    std::deque<Request> requests;
    std::optional<Job> job;
    std::array<Buffer, kWindow> buffers;
    std::deque<std::vector<std::byte>> outbox;
    std::deque<uint64_t> unreleased;                 // sequences of views
    uint64_t sequence_there = 0, sequence_back = 0;  // sequence of the job's first chunk
  };

  bool serve(WorkerRank which);
  bool may_begin(WorkerRank which);
  Status begin(WorkerRank which, Job& job);
  Status prepare(Job& job);
  Status refuse_values(const StoredSpec& spec, RequestKind kind) const;
  Status check_rate(const Request& push, uint32_t variable) const;
  Status declare(const Request& request, std::string& text);
  const StoredSpec* first_without_values(const Request& request) const;
  const StoredSpec* first_unsaved(RequestKind kind) const;
  std::string what_waits() const;
  bool step_checkpoint(Worker& worker);
  void overtake_jobs();
  bool catch_up(Job& job);
  bool begin_chunks(WorkerRank which);
  Status begin_transfer(WorkerRank which, Buffer& buffer, const Chunk& chunk);
  bool work(Worker& worker);
  Status work_on(Worker& worker, Buffer& buffer);
  Status fetch(Buffer& buffer, const Chunk& chunk);
  Status work_on_rows(const Job& job, const Chunk& chunk, Buffer& buffer);
  bool send_chunks(WorkerRank which);
  void end_chunk(Worker& worker);
  bool end_job(Worker& worker);
  bool say(Worker& worker);
  void answer(Worker& worker, uint64_t id, Answer::Kind kind, std::string text = {},
              Code code = Code::ok);
  void take_reason(const Request& leave);
  void hang_up(WorkerRank which, const std::string& cause);
  void lose(WorkerRank which, const std::string& cause);
  void give_back(Worker& worker, Buffer& buffer);
  void release(Worker& worker);
  void free(Buffer& buffer);

  Transport& transport_;
  const World& world_;
  MemoryPool& pool_;
  const ServerOptions options_;
  Store store_;
  StorePolicy store_policy_;  // writes of data to send
  Pace pace_;
  std::vector<Worker> workers_;
  std::vector<std::string> losses_;
  Status failure_;
  WorkerRank saving_;  // the worker whose checkpoint is in progress
  uint64_t left_ = 0;  // elements that this worker may still catch up in this turn
  uint64_t updates_ = 0, bytes_received_ = 0, bytes_sent_ = 0, lost_ = 0;
};

}  // namespace rdmacoll::ps
