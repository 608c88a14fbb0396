// One side of a measured path. It runs tasks over a transport, and never blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/world.h"
#include "memory/pool.h"
#include "probe/pair_task.h"
#include "transport/transport.h"

namespace rdmacoll::probe {

// Memory from a pool, as large as the largest task so far.
class PoolMemory {
 public:
  explicit PoolMemory(MemoryPool& pool) : pool_(pool) {}
  ~PoolMemory() { pool_.free(data_); }
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  Status reach(std::size_t bytes);
  std::byte* data() const { return data_; }

 private:
  MemoryPool& pool_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class TaskRunner final : public Sink {
 public:
  // `peer` is the other rank of the two. All arguments outlive the runner.
  TaskRunner(Transport& transport, const World& world, int peer, MemoryPool& pool,
             const Clock& clock);

  // Polls the transport, and posts the messages and transfers that are due. Returns whether
  // anything moved.
  bool turn();
  // The failure of the peer or of this side. After it nothing moves any more.
  const Status& failure() const { return failure_; }
  std::string peer_text() const { return world_.describe(peer_); }
  std::size_t pool_bytes() const { return pool_.size(); }

  void say(const Message& message);
  bool take(Message& message);  // the peer's next message
  bool has_sent_all() const { return outbox_.empty() && transport_.flushed(); }

  // Begins a task. Fails if the pool has no room for it.
  Status begin(const Task& task, bool leads);
  bool is_done() const { return sent_ == sends_ && received_ == receives_; }
  // The number of bytes of a task that arrived changed; 0 if the task does not check.
  uint64_t count_wrong_bytes() const;
  // The time of each round of a ping_pong or exchange.
  const std::vector<Nanoseconds>& rounds() const { return rounds_; }

  void connected(int) override {}
  void sent(uint64_t) override { ++sent_; }
  void received(uint64_t) override { ++received_; }
  void viewed(uint64_t, const View&) override {}
  void control(int peer, std::span<const std::byte> message) override;
  void peer_failed(int peer, const std::string& cause) override;

 private:
  Piece slot(const PoolMemory& memory, uint32_t number) const;
  bool post_messages();
  bool post_receives();
  bool post_sends();
  bool may_send() const;
  void note_rounds();
  bool accepted(const Status& status);

  Transport& transport_;
  const World& world_;
  int peer_;
  MemoryPool& pool_;
  const Clock& clock_;
  Status failure_;
  std::deque<std::vector<std::byte>> outbox_;
  std::deque<Message> inbox_;

  Task task_;
  bool leads_ = false;
  PoolMemory out_;
  PoolMemory in_;
  // The transfers of the present task: to do, posted, done.
  uint32_t sends_ = 0, posted_sends_ = 0, sent_ = 0;
  uint32_t receives_ = 0, posted_receives_ = 0, received_ = 0;
  // Numbers of transfers over all tasks. Both sides count alike.
  uint64_t send_sequence_ = 0;
  uint64_t receive_sequence_ = 0;
  std::vector<Nanoseconds> rounds_;
  Nanoseconds round_began_ = 0;
};

}  // namespace rdmacoll::probe
