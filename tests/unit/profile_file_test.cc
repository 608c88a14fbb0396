// The file of a machine's profile: kept, read again, and replaced when it is of no use.
#include "probe/profile_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/text.h"

namespace rdmacoll::probe {
namespace {

using Source = FoundProfile::Source;
using testing::Test;

constexpr ProbePlan kQuick{5 * kSecond, kMillisecond / 10, 1 << 20, 1, false};

class ProfileFile : public Test {
 protected:
  ProfileFile() {
    std::string pattern = testing::TempDir() + "profile-" + std::string(6, 'X');
    root_ = ::mkdtemp(pattern.data());
    config_.cache_folder = root_ / "cache" / "rdmacoll";
    facts_.processor = "Example 9";
    facts_.cpus = read_machine().cpus;
    facts_.cpus.resize(1);
  }
  ~ProfileFile() override { std::filesystem::remove_all(root_); }

  FoundProfile find() { return find_profile(config_, facts_, kQuick); }
  std::string path() const { return profile_path(config_, facts_.key()); }
  std::string text() const {
    std::ifstream stream(path());
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void write(const std::string& what) {
    std::filesystem::create_directories(std::filesystem::path(path()).parent_path());
    std::ofstream(path()) << what;
  }
  // Files in the folder of the profile: a draft must not stay.
  long files() const {
    std::filesystem::directory_iterator folder(std::filesystem::path(path()).parent_path());
    return std::distance(begin(folder), end(folder));
  }

  std::filesystem::path root_;
  Config config_;
  MachineFacts facts_;
};

TEST_F(ProfileFile, is_written_at_the_first_start_and_read_at_the_next) {
  const FoundProfile first = find();
  EXPECT_EQ(first.source, Source::measured);
  EXPECT_EQ(first.note, "");
  EXPECT_GT(first.took, 0);
  const FoundProfile second = find();
  EXPECT_EQ(second.source, Source::file);
  EXPECT_EQ(second.profile, first.profile);
  EXPECT_EQ(second.path, path());
  EXPECT_EQ(files(), 1);
}

// The machine is too busy for two threads at once.
TEST_F(ProfileFile, that_lacks_numbers_is_completed_by_later_starts) {
  ProbePlan hurried = kQuick;
  hurried.limit = 0;
  facts_.cpus.push_back(facts_.cpus.front());
  MachineProfile kept = find_profile(config_, facts_, hurried).profile;
  EXPECT_EQ(kept.line_ns, 0U);
  kept.line_ns = 77;
  kept.one_copy_rate = 1 << 30;  // quicker than any measurement
  kept.copy_l2 = 1;              // disturbed
  write(to_json(kept));
  const FoundProfile second = find_profile(config_, facts_, hurried);
  EXPECT_EQ(second.source, Source::measured);
  EXPECT_EQ(second.profile.line_ns, 77U);
  EXPECT_EQ(second.profile.one_copy_rate, 1U << 30);
  EXPECT_GT(second.profile.copy_l2, 1U);
  const FoundProfile seen = find_profile(config_, facts_, std::nullopt);
  EXPECT_EQ(seen.source, Source::file);
  EXPECT_EQ(seen.profile, second.profile);
  kept.peer_copy = 1000;
  write(to_json(kept));
  EXPECT_EQ(find().source, Source::file);
}

TEST_F(ProfileFile, is_only_read_without_a_plan) {
  const FoundProfile found = find_profile(config_, facts_, std::nullopt);
  EXPECT_EQ(found.source, Source::none);
  EXPECT_EQ(found.profile, MachineProfile{});
  EXPECT_FALSE(std::filesystem::exists(config_.cache_folder));
}

TEST_F(ProfileFile, is_measured_anew_when_it_is_damaged) {
  const FoundProfile good = find();
  const std::string whole = text();
  for (const std::string& bad :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("{}"),
        std::string(1 << 20, 'x'), std::string(64, '\0')}) {
    write(bad);
    const FoundProfile found = find();
    EXPECT_EQ(found.source, Source::measured);
    EXPECT_NE(found.note.find("is not used: it is damaged"), std::string::npos) << found.note;
    EXPECT_EQ(find().source, Source::file);
    EXPECT_EQ(find().note, "");
  }
  EXPECT_EQ(files(), 1);
}

TEST_F(ProfileFile, counts_for_its_own_machine_alone) {
  find();
  const std::string mine = path(), found_text = text();
  facts_.quota = 1.5;  // another control group
  EXPECT_NE(path(), mine);
  EXPECT_EQ(find().source, Source::measured);
  write(found_text);  // as after a collision of the files' names
  const FoundProfile found = find();
  EXPECT_EQ(found.source, Source::measured);
  EXPECT_NE(found.note.find("it is another machine's"), std::string::npos) << found.note;
  EXPECT_EQ(find().source, Source::file);
}

TEST_F(ProfileFile, of_any_machine_is_obeyed_if_the_user_named_it) {
  config_.profile = root_ / "mine" / "profile.json";
  const FoundProfile first = find();
  EXPECT_EQ(first.source, Source::measured);
  EXPECT_EQ(first.path, config_.profile);
  facts_.processor = "Other";
  const FoundProfile second = find();
  EXPECT_EQ(second.source, Source::file);
  EXPECT_EQ(second.profile.machine, first.profile.machine);
}

TEST_F(ProfileFile, is_written_through_links) {
  const std::filesystem::path first = root_ / "links" / "first",
                              second = root_ / "links" / "second";
  const std::filesystem::path kept = root_ / "kept" / "profile.json";
  std::filesystem::create_directories(first.parent_path());
  std::filesystem::create_symlink("second", first);  // relative to the link
  std::filesystem::create_symlink(kept, second);
  config_.profile = first;
  EXPECT_EQ(find().note, "");
  EXPECT_TRUE(std::filesystem::is_regular_file(kept));
  EXPECT_EQ(renew_profile(config_, facts_, kQuick).note, "");
  EXPECT_TRUE(std::filesystem::is_symlink(first));
  EXPECT_TRUE(std::filesystem::is_symlink(second));
  EXPECT_EQ(find().source, Source::file);
  EXPECT_EQ(files(), 2);
}

TEST_F(ProfileFile, is_not_kept_where_there_is_no_regular_file) {
  config_.profile = root_ / "special";
  const auto refuses = [&](const std::string& cause) {
    const FoundProfile found = find();
    EXPECT_EQ(found.source, Source::measured);
    EXPECT_NE(found.note.find("cannot be kept in " + config_.profile + ": " + cause),
              std::string::npos)
        << found.note;
    EXPECT_EQ(files(), 1);
  };
  ASSERT_EQ(::mkfifo(config_.profile.c_str(), 0600), 0);
  refuses("it is no regular file");
  EXPECT_TRUE(std::filesystem::is_fifo(config_.profile));
  std::filesystem::remove(config_.profile);
  std::filesystem::create_symlink("special", config_.profile);  // a circle
  refuses("too many levels of symbolic links");
  EXPECT_TRUE(std::filesystem::is_symlink(config_.profile));
}

TEST_F(ProfileFile, is_not_touched_when_it_is_off) {
  find();
  config_.profile = "off";
  EXPECT_EQ(find().source, Source::off);
  EXPECT_EQ(find().profile, MachineProfile{});
  EXPECT_EQ(renew_profile(config_, facts_, kQuick).source, Source::off);
  EXPECT_FALSE(std::filesystem::exists("off"));
}

TEST_F(ProfileFile, cannot_be_kept_without_a_folder) {
  config_.cache_folder = "";
  const FoundProfile found = find();
  EXPECT_EQ(found.source, Source::measured);
  EXPECT_GT(found.profile.copy_l2, 0U);
  EXPECT_NE(found.note.find("HOME and XDG_CACHE_HOME name no folder"), std::string::npos);
}

TEST_F(ProfileFile, that_cannot_be_written_is_told_with_the_cure) {
  std::ofstream(root_ / "cache") << "a file where the folder should be";
  const FoundProfile found = find();
  EXPECT_EQ(found.source, Source::measured);
  EXPECT_NE(found.note.find("cannot be kept in " + path()), std::string::npos) << found.note;
  EXPECT_NE(found.note.find("Set RDMACOLL_PROFILE"), std::string::npos) << found.note;
}

// The first write takes a part of the text, as on a disk that becomes full.
TEST_F(ProfileFile, that_does_not_fit_is_told_with_its_cause) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const FoundProfile found = find();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_NE(found.note.find("cannot be kept in " + path() + ": file too large"), std::string::npos)
      << found.note;
  EXPECT_EQ(files(), 0);
}

TEST_F(ProfileFile, that_is_a_pipe_or_a_folder_holds_nobody_up) {
  config_.profile = root_ / "pipe";
  ASSERT_EQ(::mkfifo(config_.profile.c_str(), 0600), 0);
  const FoundProfile pipe = find();
  EXPECT_EQ(pipe.source, Source::measured);
  EXPECT_NE(pipe.note.find("it is no regular file"), std::string::npos) << pipe.note;
  config_.profile = root_;
  const FoundProfile folder = find();
  EXPECT_EQ(folder.source, Source::measured);
  EXPECT_NE(folder.note.find(". The profile of this machine cannot be kept"), std::string::npos)
      << folder.note;
}

TEST_F(ProfileFile, is_whole_while_others_write_it) {
  const FoundProfile first = find();
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([this] {
      for (int turn = 0; turn < 20; ++turn) {
        EXPECT_EQ(renew_profile(config_, facts_, kQuick).note, "");
      }
    });
  }
  for (int turn = 0; turn < 500; ++turn) {
    const FoundProfile found = find_profile(config_, facts_, std::nullopt);
    EXPECT_EQ(found.source, Source::file) << found.note;
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(files(), 1);
}

}  // namespace
}  // namespace rdmacoll::probe
