// One rank's agreement, alone and without chance. The test says what its caller submits and what
// the other ranks send, and reads what the rank sends, and which operations begin and end.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agreement/agreement.h"
#include "base/text.h"
#include "set_worlds.h"

namespace rdmacoll {

class OneAgreement final : private AgreementHost {
 public:
  OneAgreement(int rank, int ranks, const Agreement::Rules& rules = {})
      : world_(set_world(rank, ranks)),
        agreement_(world_, rules, *this, situation_, Log::silent(rank)) {
    situation_.turned_at = kSecond;
  }

  // A sum of `elements` numbers.
  static OperationRef sum(const std::string& name, int64_t elements = 4) {
    Request request;
    request.name = name;
    request.tensors = {{nullptr, nullptr, {elements}, ""}};
    return std::make_shared<Operation>(std::move(request));
  }
  void submit(const OperationRef& operation) {
    operation->state.taken_at = situation_.turned_at;
    agreement_.submit(operation);
  }
  // Takes a message of another rank. Returns the gate's complaint, "" for a valid message.
  template <typename Body>
  std::string hear(int sender, Body message) {
    return agreement_.hear(SetRank(sender), message);
  }
  // One turn of the loop, `later` than the last one. Decided operations begin.
  void turn(Nanoseconds later = kCheckInterval) {
    situation_.turned_at += later;
    computed_ = 0;
    agreement_.check();
    agreement_.check_plan(true);
    agreement_.pass_readiness();
    if (agreement_.collect_ready()) {
      while (agreement_.decide(visibility_)) begin_decided();
      agreement_.start_plan();
    }
    while (agreement_.follow_plan()) begin_decided();
    agreement_.gather();
    begin_decided();
    agreement_.end_join();
  }

  // Sets the memory of other ranks that the root sees.
  void see(const Visibility& visibility) { visibility_ = visibility; }
  // The current turn spends some time on sums.
  void compute(Nanoseconds takes) { computed_ += takes; }

  // The messages of one kind to a rank since the start, in order.
  template <typename Body>
  std::vector<Body> sent(int to) const {
    std::vector<Body> found;
    for (const auto& [receiver, message] : sent_) {
      const Body* body = std::get_if<Body>(&message);
      if (receiver == SetRank(to) && body != nullptr) found.push_back(*body);
    }
    return found;
  }
  const std::vector<CompleteDecision>& begun() const { return begun_; }
  // The end of an operation, or null while it is in flight.
  const Status* end_of(const OperationRef& operation) const {
    const auto found = ended_.find(operation);
    return found == ended_.end() ? nullptr : &found->second;
  }
  // The rank that is blamed for a broken protocol, or none.
  SetRank blamed() const { return blamed_; }
  Agreement& agreement() { return agreement_; }
  Situation& situation() { return situation_; }
  // This rank's operations before this decision have lost their inputs.
  void lose_inputs(uint64_t before) { kept_ = before; }

 private:
  Nanoseconds time() const override { return situation_.turned_at + computed_; }
  void post(SetRank to, const Message& message) override { sent_.emplace_back(to, message); }
  void broken_protocol(SetRank sender, const std::string&) override { blamed_ = sender; }
  bool begin(const OperationRef&) override { return true; }
  void end(const OperationRef& operation, const Status& status) override {
    ended_.emplace(operation, status);
  }
  void end_join(const OperationRef& join, const AllJoinedMessage&) override { end(join, {}); }
  uint64_t kept() const override { return kept_; }
  void segments_are_short(uint64_t) override {}

  void begin_decided() {
    for (CompleteDecision& decision : agreement_.complete()) begun_.push_back(std::move(decision));
    agreement_.complete().clear();
  }

  const SetWorld world_;
  Situation situation_;
  Nanoseconds computed_ = 0;  // in this turn
  Visibility visibility_;
  std::vector<std::pair<SetRank, Message>> sent_;
  std::vector<CompleteDecision> begun_;
  std::map<OperationRef, Status> ended_;
  SetRank blamed_;
  uint64_t kept_ = 0;
  Agreement agreement_;
};

}  // namespace rdmacoll
