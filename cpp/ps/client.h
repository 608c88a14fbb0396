// A worker's side of an asynchronous parameter server: cuts what it is given into the servers'
// shares. Steps of a state machine on a transport, which never block.
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
#include "memory/shown_writes.h"
#include "ps/protocol.h"
#include "ps/sharding.h"
#include "transport/transport.h"

namespace rdmacoll::ps {

// What was asked of one or all servers. Memory that was named stays valid until it is done.
struct Call {
  std::size_t open = 0;                     // requests that have not ended
  Status status;                            // the first that went wrong
  std::vector<std::string> texts;           // of each server that was asked, in their order
  std::vector<std::size_t> text_servers;    // whose these are
  std::function<void()> at_end;             // when all went well
  std::function<void()> at_refusal;         // when not
  std::function<void(const Status&)> done;  // of whoever does not wait
  bool is_done() const { return open == 0; }
};
// Shared: the caller keeps it to ask, the client until it is done.
using CallRef = std::shared_ptr<Call>;

// Contiguous memory of a variable's size and dtype.
struct Tensor {
  uint32_t variable = 0;
  std::byte* data = nullptr;
  const std::byte* gradient = nullptr;  // where it is not in `data`
};

struct ClientOptions {
  std::vector<int> servers;  // their ranks
  std::size_t chunk_bytes = std::size_t{4} << 20;
  // Servers that have nothing of what is pushed hear of the update all the same, since they keep
  // pace.
  bool keeps_pace = false;
};

class Client final : public Sink {
 public:
  // All that is named here outlives the client.
  Client(Transport& transport, const World& world, MemoryPool& pool, ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Polls the transport, and posts what may go. Whether anything moved.
  bool turn();

  // Variables get the next numbers. All workers declare the same in the same order. A text of the
  // call that is "needs values": a server was not restored, nor was another worker here before.
  // The first worker gives them their values, `init`; what others ask of them waits for that.
  // Where servers refuse them, they are as if they had not been declared here; so whoever declares
  // more waits for the end of this. All of them go by one rule.
  Status declare(std::span<const VariableSpec> specs, std::span<const bool> decays,
                 const std::string& rule, CallRef& call);
  // slot 0: the values, which have had so many `updates` elsewhere; they come last. From 1 on: what
  // the optimizer keeps beside them.
  CallRef init(std::span<const Tensor> values, uint32_t slot = 0, uint64_t updates = 0);
  // `rate`: the learning rate of this push, or none: the rule's.
  CallRef push(std::span<const Tensor> gradients, std::optional<double> rate = {});
  CallRef pull(std::span<const Tensor> values, uint32_t slot = 0);
  // Gradients there, fresh values back.
  CallRef push_pull(std::span<const Tensor> tensors, std::optional<double> rate = {});
  // The largest number among its texts: how many updates these variables have had.
  CallRef updates(std::span<const Tensor> of);
  // Rows may come twice: their gradients are summed first.
  Status push_rows(uint32_t variable, std::span<const int64_t> rows, const std::byte* gradients,
                   CallRef& call, std::optional<double> rate = {});
  Status pull_rows(uint32_t variable, std::span<const int64_t> rows, std::byte* values,
                   CallRef& call);
  // Gradients of `rows` there, their fresh values back.
  Status exchange_rows(const Tensor& tensor, std::span<const int64_t> rows, CallRef& call,
                       std::optional<double> rate = {});
  // To a file of each server's machine, whose name begins with `path`; each at a moment of its own.
  CallRef save(const std::string& path);
  // Its texts are the numbers of the saves that the servers' files are of.
  CallRef saved(const std::string& path) { return ask_all(Ask::saved, path); }
  CallRef restore(const std::string& path) { return ask_all(Ask::restore, path); }
  CallRef stats();
  CallRef leave();

  const Sharding& sharding() const { return sharding_; }
  const VariableSpec& spec(uint32_t variable) const { return specs_[variable]; }
  std::size_t variables() const { return specs_.size(); }
  // Its number; an error where it has not been declared.
  Status find(std::string_view name, uint32_t& variable) const;
  // Calls that have ended, whose `done` is to be called: not by this client, which may be asked
  // from there.
  std::vector<CallRef> take_ended() { return std::exchange(ended_, {}); }
  // Servers that are lost until this is called with ok() are lost since this process was stopped.
  void was_stopped(Status status) { stopped_ = std::move(status); }
  // Nobody talks to a server any more: all that is open ends with this at the next turn, unless a
  // server is lost already.
  void fail(Status failure);
  // A server is lost, and with it all that is open and all that will be asked. First the other
  // servers hear it from here, for as long as `is_saying_why`: they would take this worker's end
  // for the cause.
  const Status& failure() const { return failure_; }
  bool is_saying_why() const { return says_why_; }
  void stop_saying_why() { says_why_ = false; }

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
    std::vector<std::vector<Piece>> pieces_there, pieces_back;  // of each chunk
    // Rows and their gradients, chunk by chunk; and where rows come back.
    std::shared_ptr<std::vector<std::byte>> staging;  // shared with the call's end
    bool is_said = false, is_accepted = false, is_answered = false;
    std::size_t there = 0, back = 0;                // transfers to make
    std::size_t posted_there = 0, posted_back = 0;  // of them
    std::size_t ended_there = 0, ended_back = 0;
    uint64_t sequence_there = 0, sequence_back = 0;  // of the first
  };
  // Where a chunk lies that the server reads as a view. Each server has its own: one that lets a
  // worker wait, for the others' pace, must not keep it from the next server.
  struct Packed {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    bool is_shown = false;
  };
  static constexpr std::size_t kPacked = 3;  // one is read, one waits, one is packed
  struct Server {
    int rank = 0;
    std::array<Packed, kPacked> packed;
    uint64_t ids = 0;
    uint64_t sequence_there = 0, sequence_back = 0;  // of the next request
    std::deque<Pending> asked;  // answered in this order; the first few are under way
    bool has_left = false;      // it has answered our goodbye, and may end
    bool is_lost = false;
    bool has_heard_why = false;  // has been sent why this worker ends
  };

  CallRef ask_all(Ask ask, const std::string& text = {}, uint64_t step = 0);
  CallRef move(const Request& like, std::span<const Tensor> tensors);
  CallRef new_call() const;
  Pending make(Ask ask_for) const;
  void ask(std::size_t server, Pending pending, const CallRef& call);
  void cut(const Tensor& tensor, int server, std::size_t begun, Pending& pending) const;
  StoredSpec stored(uint32_t variable, int server) const;
  Status check_row(const VariableSpec& spec) const;  // whether one fits into a transfer
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
  void say_why();
  Pending* find_pending(uint64_t cookie);

  Transport& transport_;
  const World& world_;
  MemoryPool& pool_;
  ShownWrites shown_writes_;  // of what is packed
  const ClientOptions options_;
  const std::size_t packed_bytes_;  // of a chunk that is packed, but for rows that are larger
  Sharding sharding_;
  std::vector<VariableSpec> specs_;
  std::vector<bool> decays_;
  std::vector<uint64_t> pushes_;  // of each variable
  std::map<std::string, uint32_t, std::less<>> numbers_;
  std::vector<CallRef> ended_;
  std::vector<Server> servers_;
  Status failure_;
  Status stopped_;
  bool says_why_ = false;      // since it is a server that is lost
  bool has_given_up_ = false;  // nobody talks to a server any more
};

}  // namespace rdmacoll::ps
