// A server of an asynchronous parameter server: answers each worker's requests in their order, and
// waits for nobody. Steps of a state machine on a transport, which never block.
//
// A chunk of a push is applied when it is there: where it came, or where the worker shows it; and
// in a push_pull its fresh values go back at once. So a server needs two chunks of the pool for a
// worker, whatever the size of a variable; and a worker that dies in the middle of a push has
// pushed a part of it.
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
#include "memory/shown_writes.h"
#include "ps/checkpoint.h"
#include "ps/pace.h"
#include "ps/protocol.h"
#include "ps/store.h"
#include "transport/transport.h"

namespace rdmacoll::ps {

struct ServerOptions {
  std::vector<int> workers;  // their ranks; the first gives the initial values
  std::size_t chunk_bytes_max = std::size_t{4} << 20;
  std::optional<uint64_t> staleness;
  int number = 0, servers = 1;  // of this one among all
  // Colocated, a worker is lost with a server, which all workers hear of and say.
  bool tells_losses = true;
};

class Server final : public Sink {
 public:
  // All that is named here outlives the server.
  Server(Transport& transport, const World& world, MemoryPool& pool, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Polls the transport, and does what may be done. Whether anything moved.
  bool turn();
  // All workers have left, or are lost.
  bool is_done() const;
  // Tells the workers why this server ends before them. Nothing of it is used then but `has_told`.
  void leave(const std::string& cause);
  bool has_told() const;
  // Sentences about workers that were lost since the last call.
  std::vector<std::string> take_losses();
  // A worker has lost another server, which ends all of them.
  const Status& failure() const { return failure_; }
  // {"updates", "bytes_received", "bytes_sent", "stored_bytes", "variables", "workers": that are
  // there, "waiting": of them, "waiting_for": what the first of these waits for, "lost"}
  std::string stats_json() const;

  void connected(int) override {}
  void sent(uint64_t cookie) override;
  void received(uint64_t cookie) override;
  void viewed(uint64_t cookie, const View& view) override;
  void control(int peer, std::span<const std::byte> message) override;
  void peer_failed(int peer, const std::string& cause) override;

 private:
  static constexpr std::size_t kWindow = 2;  // chunks of a worker that are under way

  struct Buffer {
    enum class State : uint8_t { free, receiving, received, ready, sending };
    State state = State::free;
    std::byte* data = nullptr;
    // Where the chunk is that came: in `data`, or in memory of the worker, which waits for it.
    const std::byte* given = nullptr;
    bool is_view = false;
    const RemoteReader* reader = nullptr;  // of a view that is not mapped: it is copied
    RemotePiece unmapped;
    std::size_t chunk = 0;
    // Of a chunk of rows: their numbers, and how many are done.
    std::vector<int64_t> rows;
    std::size_t rows_done = 0;
  };
  struct Job {  // the request that is worked on
    Request request;
    Status refusal;  // its data is taken and thrown away
    std::vector<Chunk> chunks;
    std::vector<uint64_t> steps;  // of each item: the number of its update, or of the next one
    // Items whose rows have what was before that, and how many rows of the next item.
    std::size_t caught_up = 0;
    uint64_t rows_caught_up = 0;
    bool is_overtaken = false;  // by a restore: what is pushed was for other values, and is dropped
    std::size_t begun = 0, ended = 0;  // chunks
    // Nobody else is served while it is under way.
    std::unique_ptr<Checkpoint> checkpoint;
  };
  struct Worker {
    int rank = 0;
    bool is_there = true;
    bool is_waiting = false;  // what it has asked first may not begin yet
    bool talks_nonsense = false;
    std::deque<Request> asked;
    std::optional<Job> job;
    std::array<Buffer, kWindow> buffers;
    std::deque<std::vector<std::byte>> unsaid;
    std::deque<uint64_t> unreleased;                 // sequences of views
    uint64_t sequence_there = 0, sequence_back = 0;  // of the job's first chunk
  };

  bool serve(std::size_t index);
  bool may_begin(std::size_t index);
  Status begin(std::size_t index, Job& job);
  Status prepare(Job& job);
  Status refuse_values(const StoredSpec& spec, Ask ask) const;
  Status check_rate(const Request& push, uint32_t variable) const;
  Status declare(const Request& request, std::string& text);
  const StoredSpec* first_without_values(const Request& request) const;
  const StoredSpec* first_unsaved(Ask ask) const;
  std::string what_waits() const;
  bool step_checkpoint(Worker& worker);
  void overtake_jobs();
  bool catch_up(Job& job);
  bool begin_chunks(std::size_t index);
  Status begin_transfer(std::size_t index, Buffer& buffer, const Chunk& chunk);
  bool work(Worker& worker);
  Status work_on(Worker& worker, Buffer& buffer);
  Status fetch(Buffer& buffer, const Chunk& chunk);
  Status work_on_rows(const Job& job, const Chunk& chunk, Buffer& buffer);
  bool send_chunks(std::size_t index);
  bool end_job(Worker& worker);
  bool say(Worker& worker);
  void answer(Worker& worker, uint64_t id, Answer::Kind kind, std::string text = {},
              Code code = Code::ok);
  void hear_why(const Request& leave);
  void hang_up(std::size_t index, const std::string& cause);
  void lose(std::size_t index, const std::string& cause);
  void give_back(Worker& worker, Buffer& buffer);
  void release(Worker& worker);
  void free(Buffer& buffer);

  Transport& transport_;
  const World& world_;
  MemoryPool& pool_;
  const ServerOptions options_;
  Store store_;
  ShownWrites shown_writes_;  // of what goes back
  Pace pace_;
  std::vector<Worker> workers_;
  std::vector<std::string> losses_;
  Status failure_;
  std::optional<std::size_t> saving_;  // the worker whose checkpoint is under way
  uint64_t left_ = 0;  // elements that may still be caught up in this turn, for this worker
  uint64_t updates_ = 0, bytes_received_ = 0, bytes_sent_ = 0, lost_ = 0;
};

}  // namespace rdmacoll::ps
