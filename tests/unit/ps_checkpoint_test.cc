// Checkpoints that a server saves, restores and refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "own_path.h"
#include "ps/checkpoint.h"
#include "unit/no_descriptors.h"

namespace rdmacoll::ps {
namespace {

const std::string kAdam = "optimizer=adam\ninitial_learning_rate=0.1\n";
constexpr uint64_t kElements = 40, kColumns = 5;

Status run(Checkpoint::Action way, const std::string& path, Store& store, uint64_t number = 0) {
  Checkpoint checkpoint(way, path, store, number);
  Status status = Status::busy();
  while (status.is_busy()) status = checkpoint.step();
  return status;
}

class Checkpoints : public testing::Test {
 protected:
  Checkpoints() { std::remove(path.c_str()); }
  ~Checkpoints() override { std::remove(path.c_str()); }

  // Returns a store of a dense variable and a variable by rows, after `pushes` pushes.
  static Store store_after(int pushes, const std::string& rule = kAdam) {
    Store store;
    const std::vector<StoredSpec> specs = {{"w", Dtype::float32, true, kElements, 0},
                                           {"words", Dtype::float64, true, kElements, kColumns}};
    EXPECT_TRUE(store.declare(rule, 0, specs).ok());
    for (int i = 0; i < 2; ++i) store.set_initialized(i);
    for (int i = 0; i < pushes; ++i) push(store, i);
    return store;
  }
  static void push(Store& store, int i) {
    const std::vector<float> gradient(kElements, static_cast<float>(i + 1));
    store.update(0, store.begin_update(0), 0, std::as_bytes(std::span(gradient)));
    const std::vector<double> row(kColumns, i + 1);
    const std::vector<int64_t> rows = {i % 8};
    uint64_t left = kElementsAtOnce;
    store.update_rows(1, store.begin_update(1), rows,
                      reinterpret_cast<const std::byte*>(row.data()), left);
  }
  static std::vector<std::byte> all(Store& store) {
    std::vector<std::byte> bytes;
    uint64_t row = 0, left = kElementsAtOnce;
    EXPECT_TRUE(store.catch_up(1, store.updates(1), row, left));
    for (const std::span<std::byte> part : store.memory()) {
      bytes.insert(bytes.end(), part.begin(), part.end());
    }
    return bytes;
  }
  std::string contents() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& bytes) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  const std::string path = checkpoint_path(
      own_path(testing::UnitTest::GetInstance()->current_test_info()->name()), 1, 2);
};

TEST_F(Checkpoints, bring_back_values_slots_and_steps) {
  Store saved = store_after(7);
  ASSERT_TRUE(run(Checkpoint::Action::save, path, saved).ok());
  EXPECT_THAT(path, testing::EndsWith(".server-1-of-2"));
  Store restored = store_after(2);
  const Status status = run(Checkpoint::Action::restore, path, restored);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(all(restored), all(saved));
  for (int i = 7; i < 12; ++i) {
    push(saved, i);
    push(restored, i);
  }
  EXPECT_EQ(all(restored), all(saved));
  EXPECT_EQ(restored.updates(0), 12U);
}

TEST_F(Checkpoints, give_values_to_variables_that_have_none) {
  Store saved = store_after(1);
  ASSERT_TRUE(run(Checkpoint::Action::save, path, saved).ok());
  Store empty;
  const std::vector<StoredSpec> same = {saved.spec(0), saved.spec(1)};
  ASSERT_TRUE(empty.declare(kAdam, 0, same).ok());
  ASSERT_TRUE(run(Checkpoint::Action::restore, path, empty).ok());
  EXPECT_TRUE(empty.is_initialized(0));
  EXPECT_TRUE(empty.is_initialized(1));
}

// Each variable keeps the rule that it was declared with.
TEST_F(Checkpoints, have_variables_of_several_optimizers) {
  const std::string momentum = "optimizer=sgd\ninitial_learning_rate=0.1\nmomentum=0.5\n";
  const StoredSpec v{"v", Dtype::float32, true, kElements, 0};
  const auto made = [&] {
    Store store = store_after(1);
    EXPECT_TRUE(store.declare(momentum, 2, {&v, 1}).ok());
    store.set_initialized(2);
    return store;
  };
  const auto push_v = [](Store& store) {
    const std::vector<float> gradient(kElements, 2);
    store.update(2, store.begin_update(2), 0, std::as_bytes(std::span(gradient)));
  };
  Store saved = made(), other = made();
  push_v(saved);
  ASSERT_TRUE(run(Checkpoint::Action::save, path, saved).ok());
  ASSERT_TRUE(run(Checkpoint::Action::restore, path, other).ok());
  EXPECT_EQ(all(other), all(saved));
  push_v(saved);
  push_v(other);
  EXPECT_EQ(all(other), all(saved));
  Store swapped = store_after(1);
  ASSERT_TRUE(swapped.declare(kAdam, 2, {&v, 1}).ok());
  EXPECT_THAT(
      run(Checkpoint::Action::restore, path, swapped).message(),
      testing::HasSubstr("the optimizer of its variable v keeps momentum, and here it keeps "
                         "momentum, velocity."));
}

TEST_F(Checkpoints, are_refused_when_a_byte_is_wrong_and_change_nothing) {
  Store saved = store_after(3);
  ASSERT_TRUE(run(Checkpoint::Action::save, path, saved).ok());
  const std::string good = contents();
  Store store = store_after(2);
  const std::vector<std::byte> before = all(store);
  for (std::size_t at = 0; at < good.size(); at += at < 300 ? 1 : 37) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    write(bad);
    EXPECT_FALSE(run(Checkpoint::Action::restore, path, store).ok()) << "byte " << at;
  }
  for (std::size_t length = 0; length < good.size(); length += 61) {
    write(good.substr(0, length));
    EXPECT_FALSE(run(Checkpoint::Action::restore, path, store).ok()) << length << " bytes";
  }
  write(good + "x");
  EXPECT_FALSE(run(Checkpoint::Action::restore, path, store).ok());
  EXPECT_EQ(all(store), before);
  write(good);
  EXPECT_TRUE(run(Checkpoint::Action::restore, path, store).ok());
}

// A store that has been restored counts as filled. Otherwise a later fill of the slots would
// overwrite the restored values.
TEST_F(Checkpoints, begin_when_slots_are_filled) {
  const std::string rule = "optimizer=adagrad\n";
  Store saved = store_after(3, rule);
  ASSERT_TRUE(run(Checkpoint::Action::save, path, saved).ok());
  Store restored = store_after(0, rule);
  EXPECT_FALSE(restored.is_filled());
  ASSERT_TRUE(run(Checkpoint::Action::restore, path, restored).ok());
  EXPECT_TRUE(restored.is_filled());
  EXPECT_EQ(all(restored), all(saved));
}

TEST_F(Checkpoints, are_refused_with_what_is_different) {
  Store saved = store_after(1);
  ASSERT_TRUE(run(Checkpoint::Action::save, path, saved).ok());
  Store other = store_after(0, "optimizer=sgd\n");
  EXPECT_THAT(
      run(Checkpoint::Action::restore, path, other).message(),
      testing::HasSubstr("the optimizer of its variable w keeps momentum, velocity, and here "
                         "it keeps nothing."));
  // Its momentum sums steps. TensorFlow 1's momentum sums gradients.
  const std::string momentum = "optimizer=sgd\nmomentum=0.5\n";
  Store of_steps = store_after(1, momentum);
  ASSERT_TRUE(run(Checkpoint::Action::save, path, of_steps).ok());
  Store of_gradients = store_after(0, momentum + "rate_behind_momentum=1\n");
  EXPECT_THAT(run(Checkpoint::Action::restore, path, of_gradients).message(),
              testing::HasSubstr("keeps momentum, and here it keeps gradient_momentum."));
  ASSERT_TRUE(run(Checkpoint::Action::save, path, saved).ok());
  // The same optimizer may have other numbers, for instance a lower learning rate.
  Store slower = store_after(0, "optimizer=adam\ninitial_learning_rate=0.01\n");
  EXPECT_TRUE(run(Checkpoint::Action::restore, path, slower).ok());
  Store more = store_after(0);
  const StoredSpec v{"v", Dtype::float32, true, 1, 0};
  ASSERT_TRUE(more.declare(kAdam, 2, {&v, 1}).ok());
  EXPECT_THAT(run(Checkpoint::Action::restore, path, more).message(),
              testing::HasSubstr("it has 2 variables, and this run has 3"));
  Store renamed;
  const std::vector<StoredSpec> swapped = {saved.spec(1), saved.spec(0)};
  ASSERT_TRUE(renamed.declare(kAdam, 0, swapped).ok());
  EXPECT_THAT(run(Checkpoint::Action::restore, path, renamed).message(),
              testing::HasSubstr("its variable 0 is w (float32, shape (), 40 elements here), and "
                                 "here it is words (float64, shape (), "));
  Store transposed;
  std::vector<StoredSpec> turned = {saved.spec(0), saved.spec(1)};
  turned[0].dims = {4, 10};
  ASSERT_TRUE(transposed.declare(kAdam, 0, turned).ok());
  EXPECT_THAT(run(Checkpoint::Action::restore, path, transposed).message(),
              testing::HasSubstr("and here it is w (float32, shape (4, 10), "));
  Store elsewhere;
  turned = {saved.spec(0), saved.spec(1)};
  turned[1].shares = 1;
  ASSERT_TRUE(elsewhere.declare(kAdam, 0, turned).ok());
  EXPECT_THAT(run(Checkpoint::Action::restore, path, elsewhere).message(),
              testing::HasSubstr("it has other parts of variable words (float64, "));
  write("something else, long enough to be one");
  EXPECT_THAT(run(Checkpoint::Action::restore, path, saved).message(),
              testing::HasSubstr("is not of this version of rdmacoll"));
}

TEST_F(Checkpoints, that_end_early_leave_the_older_one) {
  Store saved = store_after(1);
  ASSERT_TRUE(run(Checkpoint::Action::save, path, saved).ok());
  const std::string before = contents();
  push(saved, 1);
  {
    Checkpoint unfinished(Checkpoint::Action::save, path, saved);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(unfinished.step().is_busy());
  }
  EXPECT_EQ(contents(), before);
  EXPECT_FALSE(std::ifstream(path + ".part").good());
  EXPECT_THAT(run(Checkpoint::Action::save, "/no/such/folder/file", saved).message(),
              testing::HasSubstr("/no/such/folder/file"));
}

// A file that took the name of a device would break other programs.
TEST_F(Checkpoints, replace_no_device_and_no_pipe) {
  Store saved = store_after(1);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(run(Checkpoint::Action::save, path, saved).message(),
              testing::HasSubstr("cannot be written: this is a folder, a device, a pipe"));
  struct stat found {};
  ASSERT_EQ(::lstat(path.c_str(), &found), 0);
  EXPECT_TRUE(S_ISFIFO(found.st_mode));
  EXPECT_FALSE(std::ifstream(path + ".part").good());
}

TEST_F(Checkpoints, follow_no_link_and_no_fifo_under_the_drafts_name) {
  Store saved = store_after(1);
  const std::string draft = path + ".part", target = path + ".of_others";
  std::ofstream(target) << "of others";
  ASSERT_EQ(::symlink(target.c_str(), draft.c_str()), 0);
  ASSERT_TRUE(run(Checkpoint::Action::save, path, saved).ok());
  ASSERT_TRUE(run(Checkpoint::Action::restore, path, saved).ok());
  std::string kept;
  std::ifstream(target) >> kept;
  EXPECT_EQ(kept, "of");
  struct stat found {};
  ASSERT_EQ(::lstat(path.c_str(), &found), 0);
  EXPECT_TRUE(S_ISREG(found.st_mode));
  ASSERT_EQ(::mkfifo(draft.c_str(), 0600), 0);
  EXPECT_TRUE(run(Checkpoint::Action::save, path, saved).ok());
  std::remove(target.c_str());
  ASSERT_EQ(::mkdir(draft.c_str(), 0700), 0);
  EXPECT_THAT(run(Checkpoint::Action::save, path, saved).message(),
              testing::HasSubstr("cannot be written: is a directory"));
  ::rmdir(draft.c_str());
}

// Two jobs with one path: neither puts the other's half file in place.
TEST_F(Checkpoints, whose_draft_another_process_has_taken_say_so) {
  Store saved = store_after(1);
  ASSERT_TRUE(run(Checkpoint::Action::save, path, saved).ok());
  const std::string before = contents();
  Checkpoint first(Checkpoint::Action::save, path, saved);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(first.step().is_busy());
  Store other = store_after(3);
  Checkpoint second(Checkpoint::Action::save, path, other);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(second.step().is_busy());
  Status status = Status::busy();
  while (status.is_busy()) status = first.step();
  EXPECT_THAT(status.message(), testing::AllOf(testing::HasSubstr("another process has taken"),
                                               testing::HasSubstr("a path of its own")));
  EXPECT_EQ(contents(), before);
  status = Status::busy();
  while (status.is_busy()) status = second.step();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(run(Checkpoint::Action::restore, path, saved).ok());
}

TEST_F(Checkpoints, are_not_restored_from_a_fifo_a_folder_or_a_device) {
  Store store = store_after(1);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const std::string begins = path.substr(0, path.find(".server-"));
  uint64_t number = 0;
  for (const Status& status :
       {run(Checkpoint::Action::restore, path, store), read_number(begins, 1, 2, number)}) {
    EXPECT_THAT(status.message(), testing::HasSubstr("it is no regular file. Give the path that"));
  }
  std::remove(path.c_str());
  ASSERT_EQ(::symlink("/dev/zero", path.c_str()), 0);
  EXPECT_THAT(run(Checkpoint::Action::restore, path, store).message(),
              testing::HasSubstr("it is no regular file"));
  EXPECT_THAT(run(Checkpoint::Action::restore, testing::TempDir(), store).message(),
              testing::HasSubstr("it is a folder"));
}

TEST_F(Checkpoints, say_of_which_save_they_are) {
  Store saved = store_after(1);
  ASSERT_TRUE(run(Checkpoint::Action::save, path, saved, 4711).ok());
  const std::string begins = path.substr(0, path.find(".server-"));
  uint64_t number = 0;
  ASSERT_TRUE(read_number(begins, 1, 2, number).ok());
  EXPECT_EQ(number, 4711U);
  EXPECT_TRUE(run(Checkpoint::Action::restore, path, saved).ok());
}

TEST_F(Checkpoints, of_another_number_of_servers_say_so) {
  Store saved = store_after(1);
  const std::string begins = path.substr(0, path.find(".server-"));
  const std::string first = checkpoint_path(begins, 0, 2);
  ASSERT_TRUE(run(Checkpoint::Action::save, first, saved).ok());
  uint64_t number = 0;
  EXPECT_THAT(read_number(begins, 0, 3, number).message(),
              testing::HasSubstr("it is of 2 servers, and this run has 3. Start as many"));
  EXPECT_THAT(read_number(begins, 1, 2, number).message(),  // server 1's file is missing
              testing::HasSubstr(".server-1-of-2 cannot be restored: no such file"));
  std::remove(first.c_str());
  EXPECT_THAT(read_number(begins, 0, 3, number).message(),
              testing::AllOf(testing::HasSubstr(".server-0-of-3 cannot be restored: no such file"),
                             testing::HasSubstr("Give the path that rdmacoll.ps.save was given")));
}

TEST_F(Checkpoints, without_a_folder_say_what_to_make) {
  Store saved = store_after(1);
  EXPECT_THAT(run(Checkpoint::Action::save, path + "/not_there/model", saved).message(),
              testing::AllOf(testing::HasSubstr("cannot be written: no such file or directory"),
                             testing::HasSubstr("Make its folder on each server's machine")));
}

TEST_F(Checkpoints, without_a_descriptor_say_which_limit_to_raise) {
  Store saved = store_after(1);
  const NoDescriptors none;
  for (const auto way : {Checkpoint::Action::save, Checkpoint::Action::restore}) {
    EXPECT_THAT(run(way, path, saved).message(),
                testing::AllOf(testing::HasSubstr("too many open files: all "),
                               testing::HasSubstr("raise the limit by `ulimit -n "),
                               testing::Not(testing::HasSubstr("Make room")),
                               testing::Not(testing::HasSubstr("Give the path"))));
  }
}

}  // namespace
}  // namespace rdmacoll::ps
