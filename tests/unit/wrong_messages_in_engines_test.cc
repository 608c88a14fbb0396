// No message of a peer crashes a rank, keeps it busy for ever, or takes its memory. Each test run
// changes one field of one control message, of every kind. The whole simulated world then goes on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "base/text.h"
#include "base/world.h"
#include "in_child.h"
#include "mutate_message.h"
#include "sanitized.h"
#include "sim/script.h"
#include "sim/simulator.h"

namespace rdmacoll {
namespace {

// With this one, a rank that took a wrong message showed data of another length to a third rank.
constexpr uint64_t kOnceFailed[] = {27005};

constexpr std::size_t kKinds = std::variant_size_v<Message>;

// A small world, and where each kind of message is among those that it sends.
struct Recorded {
  SimScript script;
  std::vector<std::size_t> sent[kKinds];
};

int ranks_of(const SimScript& script, uint32_t set) {
  return set <= script.sets.size() ? script.ranks_of(set) : script.ranks;
}

bool read(const SimScript& script, const SimMessage& word, Message& message) {
  return decode(epoch_of(word.message), ranks_of(script, addressed_set(word.message)), word.message,
                message, script.servers);
}

// True for worlds that are simulated fast. Some of them have two levels in their control tree.
bool is_small(const SimScript& script) {
  std::size_t operations = 0;
  for (const auto& phase : script.phases) operations += phase.size();
  const bool is_deep = script.ranks > kTreeRadix + 1;
  const bool is_agreed = script.fault == Fault::none || script.fault == Fault::mismatch ||
                         script.fault == Fault::leave || script.fault == Fault::refuse;
  return script.members() > 1 && (script.members() <= 6 || is_deep) &&
         operations < (is_deep ? 12 : 40) && is_agreed && script.segment_bytes >= 1000;
}

// Records random small worlds, worlds in which all ranks join, and worlds with decisions that are
// replayed.
std::vector<Recorded> record_worlds() {
  const std::size_t joins = Message(AllJoinedMessage()).index();
  const std::size_t replayed = Message(ReplayMessage()).index();
  std::vector<Recorded> worlds;
  for (uint64_t seed = 0; worlds.size() < 40; ++seed) {
    Recorded world{make_script(seed), {}};
    const bool may_be_replayed = world.script.plan_repeats > 0 && world.script.ranks < 5;
    if (worlds.size() < 34 ? !is_small(world.script) : !may_be_replayed) continue;
    world.script.late_messages = 0;
    SimScript script = world.script;
    std::size_t index = 0;
    script.network.tamper = [&](SimMessage& word) {
      Message message;
      if (read(world.script, word, message)) world.sent[message.index()].push_back(index);
      ++index;
    };
    if (!simulate(script).ok()) continue;
    const bool is_wanted = worlds.size() < 22   ? true
                           : worlds.size() < 34 ? !world.sent[joins].empty()
                                                : !world.sent[replayed].empty();
    if (is_wanted) worlds.push_back(std::move(world));
  }
  return worlds;
}

// A world, and which of its messages is changed.
struct Draw {
  const Recorded* world = nullptr;
  std::size_t kind = 0, at = 0;
};

Draw draw(const std::vector<Recorded>& worlds, std::mt19937_64& random) {
  std::vector<const Recorded*> having;
  Draw drawn;
  while (having.empty()) {
    drawn.kind = random() % kKinds;
    for (const Recorded& world : worlds) {
      if (!world.sent[drawn.kind].empty()) having.push_back(&world);
    }
  }
  drawn.world = having[random() % having.size()];
  const std::vector<std::size_t>& sent = drawn.world->sent[drawn.kind];
  drawn.at = sent[random() % sent.size()];
  return drawn;
}

// Changes one field of the message, its sender, or its set. Returns the name of the change.
std::string change(const SimScript& script, SimMessage& word, std::mt19937_64& random) {
  Message message;
  if (!read(script, word, message)) return "nothing";
  const uint32_t epoch = epoch_of(word.message), set = addressed_set(word.message);
  switch (random() % 16) {
    case 0:
      do {
        word.from = (word.from + 1) % script.members();
      } while (word.from == word.to);
      return "sender";
    case 1:
      word.message = encode(epoch, message, set + 1);
      return "set";
    default: {
      const std::string field = Mutator(random).mutate(message);
      word.message = encode(epoch, message, set);
      return field;
    }
  }
}

void run_changed(const std::vector<Recorded>& worlds, uint64_t seed, Told& told) {
  std::mt19937_64 random(seed);
  const Draw drawn = draw(worlds, random);
  SimScript script = drawn.world->script;
  std::size_t index = 0;
  int sender = -1, receiver = -1, robbed = -1;  // robbed: its message came from another rank
  script.network.tamper = [&](SimMessage& word) {
    if (index++ != drawn.at) return;
    const int from = word.from;
    const std::string field = change(drawn.world->script, word, random);
    sender = word.from;
    receiver = word.to;
    if (sender != from) robbed = from;
    keep(cat("seed ", seed, ": ", field, " of message ", drawn.at, " of kind ", drawn.kind,
             " from rank ", word.from, " to rank ", word.to, "; ", drawn.world->script.text()),
         told.about);
  };
  const SimOutcome outcome = simulate(script);
  ++told.changed;
  const bool is_refused = std::ranges::any_of(outcome.failures, [&](const Status& failure) {
    return !failure.ok() && failure.detail().rank == JobRank(sender) &&
           failure.detail().cause.starts_with("it sent");
  });
  told.refused += is_refused ? 1 : 0;
  // In a world with a fault of its own, some ranks may hear of this fault first.
  if (!is_refused || script.fault != Fault::none) return;
  for (int rank = 0; rank < static_cast<int>(outcome.failures.size()); ++rank) {
    const Status& failure = outcome.failures[static_cast<std::size_t>(rank)];
    const JobRank blamed = failure.detail().rank;
    if (failure.ok() || blamed == JobRank(sender)) continue;
    if (robbed >= 0 && blamed == JobRank(robbed)) continue;
    // Others do not know of the change, and may see what the receiver makes of it.
    if (rank != receiver && blamed == JobRank(receiver)) continue;
    keep(cat(told.about, ": ", failure.message()), told.complaint);
  }
}

TEST(Messages, with_one_wrong_field_blame_their_sender_and_harm_nobody) {
  const char* const asked = std::getenv("RDMACOLL_TEST_MUTATIONS");
  const uint64_t seeds_to_try = asked != nullptr ? std::stoull(asked) : seeds(1200);
  const std::vector<Recorded> worlds = record_worlds();
  // No message of these worlds is so large that it is sent in parts: fragments_test.cc.
  const std::size_t parts = Message(FragmentMessage()).index();
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    if (kind == parts) continue;
    const bool is_sent = std::ranges::any_of(
        worlds, [&](const Recorded& world) { return !world.sent[kind].empty(); });
    EXPECT_TRUE(is_sent) << "no recorded world sends messages of kind " << kind;
  }
  Children children;
  Told& told = children.told();
  const std::vector<std::string> found =
      children.deaths([&] { return told.next < seeds_to_try + std::size(kOnceFailed); },
                      [&](uint64_t number) {
                        const bool is_new = number < seeds_to_try;
                        const uint64_t seed = is_new ? number : kOnceFailed[number - seeds_to_try];
                        run_changed(worlds, seed, told);
                      });
  EXPECT_TRUE(found.empty()) << join(found, "\n");
  EXPECT_STREQ(told.complaint, "");
  EXPECT_GT(told.refused, told.changed * 4 / 10) << "of " << told.changed;
}

}  // namespace
}  // namespace rdmacoll
