// A worker's side of asynchronous parameter servers. It cuts transfers into the servers' shares. A
// state machine on a transport, whose steps never block.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/world.h"
#include "memory/pool.h"
#include "memory/store_policy.h"
#include "ps/protocol.h"
#include "ps/sharding.h"
#include "transport/transport.h"

namespace rdmacoll::ps {

// A call to one or all servers. Memory that is passed must stay valid until the call is done.
struct Call {
  std::size_t open = 0;                     // requests that have not ended
  Status status;                            // the first error
  std::vector<std::string> texts;           // answers of the servers, in the servers' order
  std::vector<std::size_t> text_servers;    // by text: its server
  std::function<void()> at_end;             // called on success
  std::function<void()> at_refusal;         // called on failure
  std::function<void(const Status&)> done;  // for callers that do not wait
  bool is_done() const { return open == 0; }
};
// Shared by the caller, and by the client until the call is done.
using CallRef = std::shared_ptr<Call>;

// Contiguous memory with the variable's size and dtype.
struct Tensor {
  uint32_t variable = 0;
  std::byte* data = nullptr;
  const std::byte* gradient = nullptr;  // if the gradient is not in `data`
};

struct ClientOptions {
  std::vector<int> servers;  // by server: its rank
  std::size_t chunk_bytes = std::size_t{4} << 20;
  // Servers without a share of a push receive the update, too, since they track the workers' pace.
  bool keeps_pace = false;
};

class Client final : public Sink {
 public:
  // The arguments must outlive the client.
  Client(Transport& transport, const World& world, MemoryPool& pool, ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Polls the transport, and posts ready transfers. Returns whether anything moved.
  bool turn();

  // Declares variables, which take the next numbers. All workers must declare the same variables in
  // the same order. One declaration has one rule.
  //
  // The call has the text "needs values" if a server was not restored and has no values of an
  // earlier worker. The first worker then sends the values with init(). Calls of other workers wait
  // for them.
  //
  // If servers refuse the declaration, the client undoes it. Make the next declaration only after
  // this call has ended.
  Status declare(std::span<const VariableSpec> specs, std::span<const bool> decays,
                 const std::string& rule, CallRef& call);
  // Sends initial data. Slot 0: the values, which must come last, with the number of `updates` that
  // they have had elsewhere. Slots from 1 on: the optimizer's state.
  CallRef init(std::span<const Tensor> values, uint32_t slot = 0, uint64_t updates = 0);
  // `rate`: the learning rate of this push; none: the rule's.
  CallRef push(std::span<const Tensor> gradients, std::optional<double> rate = {});
  CallRef pull(std::span<const Tensor> values, uint32_t slot = 0);
  // Sends gradients, and receives the new values.
  CallRef push_pull(std::span<const Tensor> tensors, std::optional<double> rate = {});
  // The largest number among its texts is the number of updates of these variables.
  CallRef updates(std::span<const Tensor> of);
  // A row may occur several times. Its gradients are summed before they are sent.
  Status push_rows(uint32_t variable, std::span<const int64_t> rows, const std::byte* gradients,
                   CallRef& call, std::optional<double> rate = {});
  Status pull_rows(uint32_t variable, std::span<const int64_t> rows, std::byte* values,
                   CallRef& call);
  // Sends gradients of `rows`, and receives the new values of these rows.
  Status exchange_rows(const Tensor& tensor, std::span<const int64_t> rows, CallRef& call,
                       std::optional<double> rate = {});
  // Each server saves its variables, at its own time, to a file on its machine. `path` is the
  // prefix of the file name.
  CallRef save(const std::string& path);
  // The texts are the numbers of the saves that wrote the servers' files.
  CallRef saved(const std::string& path) { return request_all(RequestKind::saved, path); }
  CallRef restore(const std::string& path) { return request_all(RequestKind::restore, path); }
  CallRef stats();
  CallRef leave();

  const Sharding& sharding() const { return sharding_; }
  const VariableSpec& spec(uint32_t variable) const { return specs_[variable]; }
  std::size_t variables() const { return specs_.size(); }
  // Finds a variable's number. Returns an error if it was not declared.
  Status find(std::string_view name, uint32_t& variable) const;
  // Returns calls that have ended and have a `done`. The caller must call it. The client does not,
  // since callbacks may start calls.
  std::vector<CallRef> take_ended() { return std::exchange(ended_, {}); }
  // Servers that are lost from now on are lost because this process was suspended, until this is
  // called with ok().
  void was_suspended(Status status) { stopped_ = std::move(status); }
  // Ends all connections to servers. All open calls end with this failure in the next turn, unless
  // a server was lost before.
  void fail(Status failure);
  // The loss of a server, which ends all open and later calls. While `is_sending_reason`, the
  // client sends the reason to the other servers. Otherwise they would blame this worker.
  const Status& failure() const { return failure_; }
  bool is_sending_reason() const { return is_sending_reason_; }
  void stop_sending_reason() { is_sending_reason_ = false; }

  void connected(int) override {}
  void sent(uint64_t cookie) override;
  void received(uint64_t cookie) override;
  void viewed(uint64_t, const View&) override {}
  void control(int peer, std::span<const std::byte> message) override;
  void peer_failed(int peer, const std::string& cause) override;

 private:
  struct Pending {
    Request request;
    CallRef call;
    std::vector<Chunk> chunks;
    std::vector<std::vector<Piece>> pieces_there, pieces_back;  // by chunk
    // Rows and their gradients, chunk by chunk, or memory for received rows.
    std::shared_ptr<std::vector<std::byte>> staging;  // shared with Call::at_end
    bool is_sent = false, is_accepted = false, is_answered = false;
    std::size_t there = 0, back = 0;                // numbers of transfers
    std::size_t posted_there = 0, posted_back = 0;  // posted transfers
    std::size_t ended_there = 0, ended_back = 0;
    uint64_t sequence_there = 0, sequence_back = 0;  // sequence of the first transfer
  };
  // Memory for a chunk that the server reads as a view. Each server has its own. A server that
  // makes the worker wait, for the pace of others, must not block the next server.
  struct Packed {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    bool is_shown = false;
  };
  static constexpr std::size_t kPacked = 3;  // one is being read, one waits, one is being packed
  struct Server {
    int rank = 0;
    std::array<Packed, kPacked> packed;
    uint64_t ids = 0;
    uint64_t sequence_there = 0, sequence_back = 0;  // for the next request
    std::deque<Pending> pending;  // answered in this order; the first few are in progress
    bool has_left = false;        // it has answered this worker's goodbye, and may end
    bool is_lost = false;
    bool has_reason = false;  // the reason of this worker's end was sent to it
  };

  CallRef request_all(RequestKind kind, const std::string& text = {}, uint64_t step = 0);
  CallRef move(const Request& like, std::span<const Tensor> tensors);
  std::size_t chunk_bytes(const Server& server) const;
  CallRef new_call() const;
  Pending make(RequestKind kind) const;
  void enqueue(std::size_t server, Pending pending, const CallRef& call);
  void cut(const Tensor& tensor, int server, std::size_t begun, Pending& pending) const;
  StoredSpec stored(uint32_t variable, int server) const;
  Status check_row(const VariableSpec& spec) const;  // whether a row fits into a transfer
  Status check_rows(uint32_t variable, std::span<const int64_t> rows) const;
  void give_rows(uint32_t variable, std::span<const int64_t> rows, const std::byte* gradients,
                 std::optional<double> rate, const CallRef& call);
  void take_rows(uint32_t variable, std::span<const int64_t> rows, std::byte* values,
                 const CallRef& call);
  uint64_t steps_of(std::span<const Tensor> tensors) const;
  bool post(Server& server, Pending& pending);
  Status give(Server& server, const Pending& pending);
  Status show(Server& server, const Pending& pending, uint64_t sequence);
  bool has_room(Server& server, Packed& place, std::size_t bytes);
  uint64_t cookie(const Server& server, const Pending& pending, std::size_t packed) const;
  bool accepted(const Status& status);
  Status refusal(Answer& answer) const;
  Status departure(int peer, const std::string& cause) const;
  void lose(Status failure);
  void end_requests(Server& server);
  void forget(std::size_t known, Sharding before);
  void end_one(const CallRef& call);
  static void keep_text(Call& call, std::size_t server, std::string text);
  bool end_all();
  void send_reason();
  Pending* find_pending(uint64_t cookie);

  Transport& transport_;
  const World& world_;
  MemoryPool& pool_;
  StorePolicy store_policy_;  // writes of packed chunks
  const ClientOptions options_;
  const std::size_t packed_bytes_;  // size of packed chunks, except for larger rows
  Sharding sharding_;
  std::vector<VariableSpec> specs_;
  std::vector<bool> decays_;
  std::vector<uint64_t> pushes_;  // number of pushes, by variable
  std::map<std::string, uint32_t, std::less<>> numbers_;
  std::vector<CallRef> ended_;
  std::vector<Server> servers_;
  Status failure_;
  Status stopped_;
  bool is_sending_reason_ = false;  // sending the reason, since a server was lost
  bool has_given_up_ = false;       // the connections are closed
};

}  // namespace rdmacoll::ps
