// A peer that lies in its greeting, or says nothing.
#include <fcntl.h>
#include <sys/mman.h>

#include "conformance/shm_puppet.h"
#include "unit/no_descriptors.h"

namespace rdmacoll::conformance {
namespace {

constexpr uint64_t kSeeds = 20'250'500;

TEST(ShmGreeting, makes_a_connection_when_it_is_right) {
  Puppet puppet;
  puppet.connect();
  EXPECT_TRUE(puppet.sink.failures.empty());
  EXPECT_TRUE(puppet.transport->reach(1).foreign_views);
  EXPECT_EQ(puppet.transport->reach(1).transport, "shm");
}

TEST(ShmGreeting, of_another_rank_or_epoch_is_refused) {
  for (const bool wrong_rank : {true, false}) {
    Puppet puppet;
    (wrong_rank ? reinterpret_cast<uint32_t&>(puppet.hello.rank) : puppet.hello.epoch) = 0;
    puppet.greet();
    puppet.expect_failed("it says that it is rank");
  }
}

TEST(ShmGreeting, of_random_bytes_is_refused) {
  for (uint64_t seed = kSeeds; seed < kSeeds + 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Puppet puppet;
    std::vector<std::byte> bytes(puppet.hello.pid > 0 ? 60 + seed % 60 : 0);
    paint(bytes, seed);
    ASSERT_EQ(::send(puppet.socket.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    puppet.expect_failed("its greeting is malformed");
  }
}

TEST(ShmGreeting, with_too_few_or_too_many_descriptors_is_refused) {
  Puppet few;
  few.descriptors.pop_back();
  few.greet();
  few.expect_failed("2 descriptors instead of 3");
  Puppet many;
  many.descriptors.push_back(many.doorbell.event());
  many.greet();
  many.expect_failed("4 descriptors instead of 3");
}

TEST(ShmGreeting, whose_descriptors_find_no_place_says_which_limit_is_reached) {
  for (const int left : {0, 1, 2}) {
    Puppet puppet;
    const NoDescriptors few(left);
    puppet.greet();
    puppet.expect_failed("cannot take its descriptors: too many open files: all ");
  }
}

TEST(ShmGreeting, with_memory_that_could_shrink_or_is_too_small_is_refused) {
  Puppet unsealed;
  Fd file(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(unsealed.my_pool->size())), 0);
  unsealed.descriptors[2] = file.get();
  unsealed.greet();
  unsealed.expect_failed("not sealed");

  Puppet small;
  small.hello.pool_bytes *= 2;
  small.greet();
  small.expect_failed("passed memory of");

  Puppet no_memory;
  no_memory.descriptors[2] = no_memory.doorbell.event();
  no_memory.greet();
  no_memory.expect_failed("not sealed");
}

TEST(ShmGreeting, that_breaks_off_is_reported) {
  Puppet puppet;
  const std::byte byte{};
  ASSERT_EQ(::send(puppet.socket.get(), &byte, 1, 0), 1);
  puppet.poll();
  EXPECT_TRUE(puppet.sink.failures.empty());
  puppet.socket.reset();
  puppet.expect_failed("connection");
}

TEST(ShmGreeting, that_never_comes_is_silence) {
  Puppet puppet({.peer_timeout = kSecond});
  puppet.poll();
  EXPECT_TRUE(puppet.sink.failures.empty());
  puppet.poll(10'000);
  puppet.expect_failed("silent for 1000 ms");
}

TEST(ShmGreeting, unknown_verdicts_are_refused) {
  Puppet puppet;
  puppet.greet();
  puppet.judge(static_cast<shm::Verdict>(7));
  puppet.expect_failed("an unknown verdict");
}

TEST(ShmGreeting, falls_back_to_staging_when_either_side_cannot_read) {
  Puppet unreadable;
  ++unreadable.hello.probe_value;
  unreadable.connect();
  EXPECT_FALSE(unreadable.transport->reach(1).foreign_views);
  Puppet cannot;
  cannot.connect(shm::Verdict::cannot_read);
  EXPECT_FALSE(cannot.transport->reach(1).foreign_views);
  Puppet forbidden({.one_copy = false});
  forbidden.connect();
  EXPECT_FALSE(forbidden.transport->reach(1).foreign_views);
}

TEST(ShmGreeting, fails_by_name_when_one_copy_is_demanded_and_impossible) {
  Puppet puppet({.one_copy = true});
  puppet.hello.probe_address = 8;
  puppet.greet();
  puppet.expect_failed("RDMACOLL_ONE_COPY");
}

}  // namespace
}  // namespace rdmacoll::conformance
