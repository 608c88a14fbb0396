// A world of ranks that only agree: one event at one rank after another, in a random order.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "agreeing_rank.h"
#include "agreement_script.h"
#include "tamper.h"

namespace rdmacoll {

struct Totals {
  uint64_t steps = 0, decisions = 0, plans = 0, plans_left = 0, caught_up = 0, replayed = 0;
};

class AgreeingWorld {
 public:
  // `tamper`: makes some messages wrong. Null for a world without a faulty peer.
  explicit AgreeingWorld(const AgreementScript& script, Tamper* tamper = nullptr)
      : script_(script), random_(script.seed + 1), tamper_(tamper), witness_(script_, tamper) {
    for (int rank = 0; rank < script_.ranks + script_.servers; ++rank) {
      ranks_.push_back(
          std::make_unique<AgreeingRank>(script_, SetRank(rank), witness_, random_, tamper));
    }
  }

  // Runs the script to its end. Adds a failure if a rank waits for ever.
  void run(Totals& totals) {
    const uint64_t first = totals.steps;
    int idle = 0, jumps = 0;
    for (; !testing::Test::HasFailure(); ++totals.steps) {
      const bool moved = step();
      idle = moved ? 0 : idle + 1;
      if (moved) jumps = 0;
      if (is_tainted() && totals.steps > first + kTaintedStepsMax) break;
      if (idle < 40 || sweep()) continue;
      if (is_done()) break;
      if (++jumps > kJumpsMax) {
        if (is_tainted()) break;
        ADD_FAILURE() << "ranks wait for ever:\n" << state();
        break;
      }
      jump();
    }
    judge(totals);
  }

 private:
  static constexpr int kJumpsMax = 100;
  static constexpr uint64_t kEvents = 16;
  static constexpr uint64_t kTaintedStepsMax = 20'000;

  bool is_tainted() const { return tamper_ != nullptr && tamper_->is_tainted(); }

  AgreeingRank& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  bool is_lost(int rank) const { return has_ended_ && is_loss() && rank == script_.deviating; }
  bool is_loss() const { return script_.deviation == AgreementScript::Deviation::loss; }

  // One event at one rank.
  bool step() {
    pass_time();
    ++events_;
    if (script_.ends_early() && events_ >= script_.ends_at && !has_ended_) end_early();
    const int rank = static_cast<int>(random_() % ranks_.size());
    if (is_lost(rank)) return false;
    const uint64_t event = random_() % kEvents;
    if (event == 0 && hear_failure(rank)) return true;
    return event < 6 ? act(rank, 0) : event < 9 ? act(rank, 1) : act(rank, event < 13 ? 2 : 3);
  }
  bool act(int rank, int event, bool all = false) {
    AgreeingRank& one = at(rank);
    one.now().turned_at = now_;
    const bool moved = event == 0   ? one.hear(all)
                       : event == 1 ? one.is_worker() && one.submit()
                       : event == 2 ? one.take_turn()
                                    : one.end_a_decision();
    if (one.now().goes_on() && (one.is_deserted() || one.has_blamed())) has_failed_ = true;
    for (auto& [to, message] : one.take_outbox()) {
      at(to.value()).deliver(SetRank(rank), std::move(message));
    }
    return moved;
  }
  // Every event at every rank. Returns whether anything moved.
  bool sweep() {
    bool moved = false;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      if (is_lost(rank)) continue;
      moved |= hear_failure(rank);
      for (int event = 0; event < 4; ++event) moved |= act(rank, event, true);
    }
    return moved;
  }
  // Some ranks learn of a failure early, others late.
  bool hear_failure(int rank) {
    AgreeingRank& one = at(rank);
    // A rank that leaves with nothing in flight goes on without the others.
    if (!has_failed_ || !one.now().goes_on() || one.now().leaving) return false;
    one.fail({Code::rank_failed, "a rank was lost"});
    return true;
  }
  void end_early() {
    if (is_loss()) {
      has_ended_ = has_failed_ = true;
    } else if (at(script_.deviating).leave()) {
      has_ended_ = true;
      for (auto& [to, message] : at(script_.deviating).take_outbox()) {
        at(to.value()).deliver(SetRank(script_.deviating), std::move(message));
      }
    }
  }

  void pass_time() {
    const uint64_t chance = random_() % 2000;
    now_ += chance == 0  ? 1100 * kMillisecond
            : chance < 4 ? 120 * kMillisecond
                         : static_cast<Nanoseconds>(random_() % 20000);
  }
  void jump() {
    Nanoseconds next = now_ + kSecond;
    for (const auto& one : ranks_) next = std::min(next, one->next_deadline());
    now_ = std::max(next, now_ + kCheckInterval);
  }
  bool is_done() const {
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      const AgreeingRank& one = *ranks_[static_cast<std::size_t>(rank)];
      if (!is_lost(rank) && (one.has_mail() || !one.is_done())) return false;
    }
    return true;
  }

  std::string state() const {
    std::string text;
    for (const auto& one : ranks_) text += one->state();
    return text;
  }

  void judge(Totals& totals) {
    if (is_tainted()) return;
    if (!has_ended_ && !has_failed_) witness_.expect_equal_ends();
    totals.decisions += witness_.decisions();
    for (const auto& one : ranks_) {
      const Agreement& agreement = one->agreement();
      if (!one->now().goes_on()) {
        EXPECT_TRUE(agreement.complete().empty()) << "a decision is left after a failure";
      }
      const PlanTotals plans = agreement.plan_totals();
      totals.plans += plans.begun;
      totals.plans_left += plans.left;
      totals.caught_up += plans.caught_up;
      totals.replayed += plans.replayed;
    }
  }

  const AgreementScript& script_;
  std::mt19937_64 random_;
  Tamper* const tamper_;
  Witness witness_;
  std::vector<std::unique_ptr<AgreeingRank>> ranks_;
  Nanoseconds now_ = kSecond;
  int events_ = 0;
  bool has_ended_ = false;   // the rank that is lost or leaves has done so
  bool has_failed_ = false;  // the world has failed; ranks learn it by and by
};

}  // namespace rdmacoll
