// One rank of a world without transport: its program, its agreement, and a runner without data.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agreement/agreement.h"
#include "agreement_script.h"
#include "algorithm_names.h"
#include "base/text.h"
#include "tamper.h"

namespace rdmacoll {

// All ranks' knowledge of what each rank has begun and ended. Checks that they agree.
class Witness {
 public:
  // `tamper`: null without a faulty peer. Nothing is compared after a rank has taken a wrong
  // message.
  Witness(const AgreementScript& script, const Tamper* tamper) : script_(script), tamper_(tamper) {}

  // A rank begins a decision. `places`: of its operations; empty for placeholders.
  void begins(SetRank rank, const CompleteDecision& decision,
              std::vector<std::optional<Place>> places) {
    const auto [entry, is_new] = log_.try_emplace(decision.sequence);
    if (is_tainted()) {
      entry->second.begun.emplace(rank, std::move(places));
      return;
    }
    const std::string text = describe(decision);
    if (is_new) entry->second.text = text;
    EXPECT_EQ(entry->second.text, text) << "decision " << decision.sequence << " at rank " << rank;
    const bool is_first = entry->second.begun.emplace(rank, std::move(places)).second;
    EXPECT_TRUE(is_first) << "rank " << rank << " begins decision " << decision.sequence
                          << " twice";
  }
  bool have_all_begun(const CompleteDecision& decision) const {
    const bool has_servers = decision.movement.algorithm == named::parameter_server;
    const int ranks = script_.ranks + (has_servers ? script_.servers : 0);
    return static_cast<int>(log_.at(decision.sequence).begun.size()) == ranks;
  }
  // An operation ends on a rank. Its result must be made of the same operation of all ranks, and
  // of zeros only where a rank has joined.
  void ends(SetRank rank, const Operation& operation, const Place& place, const Status& status) {
    if (is_tainted()) return;
    const bool is_first = ended_[place].emplace(rank, status.code()).second;
    EXPECT_TRUE(is_first) << "an operation ends twice at rank " << rank;
    if (!status.ok() || operation.request.kind == Kind::join) return;
    const auto& begun = log_.at(operation.state.sequence).begun;
    std::size_t unit = 0;
    while (begun.at(rank)[unit] != place) ++unit;
    for (const auto& [other, places] : begun) {
      if (other.value() >= script_.ranks || places[unit] == place) continue;
      const auto& phase = script_.phases[static_cast<std::size_t>(place.phase)];
      const bool has_joined =
          !places[unit] && phase.joins && phase.steps[other.index()] <= place.step;
      EXPECT_TRUE(has_joined) << "rank " << other << " gives something else for an operation that "
                              << "rank " << rank << " ends in decision "
                              << operation.state.sequence;
    }
  }
  bool has_ended_somewhere(const Place& place) const {
    return is_tainted() || ended_.contains(place);
  }
  // Every operation ends alike on all ranks.
  void expect_equal_ends() const {
    for (const auto& [place, codes] : ended_) {
      for (const auto& [rank, code] : codes) {
        EXPECT_EQ(code, codes.begin()->second)
            << "step " << place.step << " of phase " << place.phase << ", operation " << place.index
            << ", at rank " << rank;
      }
    }
  }
  uint64_t decisions() const { return log_.size(); }
  bool is_tainted() const { return tamper_ != nullptr && tamper_->is_tainted(); }

 private:
  struct Entry {
    std::string text;
    std::map<SetRank, std::vector<std::optional<Place>>> begun;  // by rank
  };

  static std::string describe(const CompleteDecision& decision) {
    std::string text = cat(static_cast<int>(decision.movement.algorithm), " in ",
                           decision.movement.segment_bytes, ", ", decision.most_rows, " rows");
    for (const OperationRef& operation : decision.operations) {
      text += cat("; ", operation->request.name, " ", operation->request.iteration);
    }
    return text;
  }

  const AgreementScript& script_;
  const Tamper* const tamper_;
  std::map<uint64_t, Entry> log_;
  std::map<Place, std::map<SetRank, Code>> ended_;  // by place and rank
};

class AgreeingRank final : private AgreementHost {
 public:
  // `rank`: servers are the ranks after the workers.
  AgreeingRank(const AgreementScript& script, SetRank rank, Witness& witness,
               std::mt19937_64& random, Tamper* tamper);

  Agreement& agreement() { return agreement_; }
  Situation& now() { return situation_; }
  bool is_worker() const { return !world_.is_server(); }

  // ---- events; each returns whether anything moved ----
  // Hears the next message of some rank. A message of the slow rank only by chance, unless `all`.
  bool hear(bool all);
  bool submit();
  bool take_turn();
  bool end_a_decision();
  bool leave();
  void fail(const Status& failure);

  void deliver(SetRank sender, Message message) { inbox_[sender].push_back(std::move(message)); }
  // The messages of the last event, by receiver.
  std::vector<std::pair<SetRank, Message>> take_outbox() { return std::exchange(outbox_, {}); }
  bool has_mail() const;
  bool is_done() const { return !is_worker() || (flying_.empty() && !has_more()); }
  Nanoseconds next_deadline() const { return agreement_.next_deadline(in_flight_ > 0); }
  std::string state() const;
  bool is_deserted() const;  // decisions wait for a rank that has left
  // Whether this rank has blamed another one after a wrong message.
  bool has_blamed() const { return has_blamed_; }

 private:
  static constexpr uint64_t kSlots = 4;
  struct Flying {
    Place place;
    int begun = 0;
    bool is_planned = false;  // the last decision of it that has begun
  };

  // Each reading adds another part of a microsecond, so sums of a plan seem to change their times.
  Nanoseconds time() const override {
    return situation_.turned_at + static_cast<Nanoseconds>(++readings_ * 7919 % kMicrosecond);
  }
  void post(SetRank to, const Message& message) override { outbox_.emplace_back(to, message); }
  void broken_protocol(SetRank sender, const std::string& what) override;
  bool begin(const OperationRef& placeholder) override;
  void end(const OperationRef& operation, const Status& status) override;
  void end_join(const OperationRef& join, const AllJoinedMessage& message) override;
  uint64_t kept() const override;
  void segments_are_short(uint64_t) override {}

  bool has_more() const {
    return situation_.goes_on() && situation_.departed.ok() && !situation_.leaving &&
           at_.phase < static_cast<int>(script_.phases.size());
  }
  const AgreementScript::Phase& phase() const {
    return script_.phases[static_cast<std::size_t>(at_.phase)];
  }
  void begin_step();
  bool is_in_flight(const Request& request) const;
  std::size_t window() const;
  bool has_room(uint64_t sequence) const;
  bool has_room() const { return has_room(agreement_.accepted()); }
  void hear_departure(SetRank sender, const LeavingMessage& message);
  void post_around(const Message& message, SetRank except);
  Request request_at(const Place& place);
  void take(Request request, const Place& place);
  bool start();
  void run(CompleteDecision decision);

  const AgreementScript& script_;
  const SetWorld world_;
  Witness& witness_;
  std::mt19937_64& random_;
  mutable uint64_t readings_ = 0;
  Tamper* const tamper_;
  Situation situation_;
  Agreement agreement_;

  std::map<SetRank, std::deque<Message>> inbox_;  // by sender
  std::vector<std::pair<SetRank, Message>> outbox_;
  Place at_;                // the step of the program, and the position in order_
  std::vector<int> order_;  // the operations of this step
  bool is_joining_ = false;
  int64_t number_ = 0;  // the number of the next unnamed operation
  std::map<OperationRef, Flying> flying_;
  std::map<uint64_t, CompleteDecision> running_;  // by sequence
  std::map<uint64_t, uint64_t> begun_;            // the number of decisions, by slot
  std::size_t in_flight_ = 0;                     // with placeholders
  Nanoseconds checked_at_ = 0;
  bool has_blamed_ = false;
};

}  // namespace rdmacoll
