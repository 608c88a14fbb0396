// No message of a peer crashes a rank, keeps it busy for ever, or takes its memory. Each test run
// changes one field of one control message, of every kind. The whole simulated world then goes on.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "base/text.h"
#include "base/world.h"
#include "mutate_message.h"
#include "sanitized.h"
#include "sim/script.h"
#include "sim/simulator.h"

namespace rdmacoll {
namespace {

constexpr std::size_t kKinds = std::variant_size_v<Message>;
constexpr time_t kLoopS = 10;  // processor time; a world that takes longer hangs
constexpr rlim_t kMemory = rlim_t{4} << 30;

// A small world, and where each kind of message is among those that it sends.
struct Recorded {
  SimScript script;
  std::vector<std::size_t> sent[kKinds];
};

int ranks_of(const SimScript& script, uint32_t set) {
  return set <= script.sets.size() ? script.ranks_of(set) : script.ranks;
}

bool read(const SimScript& script, const SimWord& word, Message& message) {
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
    world.script.late_words = 0;
    SimScript script = world.script;
    std::size_t index = 0;
    script.network.tamper = [&](SimWord& word) {
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

// The report of the children to their parent, in shared memory.
struct Told {
  uint64_t next = 0;  // the next seed
  uint64_t changed = 0, refused = 0;
  char about[600] = {};  // the last one
  char complaint[600] = {};
};

void keep(const std::string& text, char (&place)[600]) {
  place[text.copy(place, sizeof place - 1)] = '\0';
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
std::string change(const SimScript& script, SimWord& word, std::mt19937_64& random) {
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
  int sender = -1;
  script.network.tamper = [&](SimWord& word) {
    if (index++ != drawn.at) return;
    const std::string field = change(drawn.world->script, word, random);
    sender = word.from;
    keep(cat("seed ", seed, ": ", field, " of message ", drawn.at, " of kind ", drawn.kind,
             " from rank ", word.from, " to rank ", word.to, "; ", drawn.world->script.text()),
         told.about);
  };
  const SimOutcome outcome = simulate(script);
  ++told.changed;
  const bool is_refused = std::ranges::any_of(outcome.failures, [&](const Status& failure) {
    return !failure.ok() && failure.detail().rank == sender &&
           failure.detail().cause.starts_with("it sent");
  });
  told.refused += is_refused ? 1 : 0;
  // In a world with a fault of its own, some ranks may hear of this fault first.
  if (!is_refused || script.fault != Fault::none) return;
  for (const Status& failure : outcome.failures) {
    if (failure.ok() || failure.detail().rank == sender) continue;
    keep(cat(told.about, ": ", failure.message()), told.complaint);
  }
}

void limit_child() {
  const rlimit memory{kMemory, kMemory}, none{0, 0};
  if (!kSanitized) setrlimit(RLIMIT_AS, &memory);
  setrlimit(RLIMIT_CORE, &none);
}

// Runs the seeds in a child process. Another child follows when it dies.
std::vector<std::string> deaths(const std::vector<Recorded>& worlds, uint64_t seeds, Told& told) {
  constexpr std::size_t kShown = 20;
  std::vector<std::string> deaths;
  while (told.next < seeds && deaths.size() < kShown) {
    const pid_t child = fork();
    if (child == 0) {
      limit_child();
      while (told.next < seeds) {
        const itimerval limit{{0, 0}, {kLoopS, 0}};
        setitimer(ITIMER_PROF, &limit, nullptr);
        run_changed(worlds, told.next++, told);
      }
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    const bool is_loop = WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF;
    if (status != 0) deaths.push_back(cat(told.about, is_loop ? ": does not end" : ": crashes"));
  }
  return deaths;
}

TEST(Messages, with_one_wrong_field_blame_their_sender_and_harm_nobody) {
  const char* const asked = std::getenv("RDMACOLL_TEST_MUTATIONS");
  const uint64_t seeds_to_try = asked != nullptr ? std::stoull(asked) : seeds(1200);
  void* const memory =
      mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Told& told = *new (memory) Told;
  const std::vector<Recorded> worlds = record_worlds();
  const std::vector<std::string> found = deaths(worlds, seeds_to_try, told);
  EXPECT_TRUE(found.empty()) << join(found, "\n");
  EXPECT_STREQ(told.complaint, "");
  EXPECT_GT(told.refused, told.changed * 4 / 10) << "of " << told.changed;
  munmap(memory, sizeof(Told));
}

}  // namespace
}  // namespace rdmacoll
