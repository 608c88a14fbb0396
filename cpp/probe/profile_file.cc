#include "probe/profile_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/fd.h"
#include "base/system_error.h"
#include "base/text.h"

namespace rdmacoll::probe {
namespace {

constexpr std::size_t kFileBytesMax = 16 << 10;
constexpr int kLinksMax = 40;  // as in Linux
constexpr char kNoFile[] = "it is no regular file";

// FNV-1a. Keys of one user's machines are few, and the file has the whole key.
uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// Nothing: there is no such file, or `problem` says why it cannot be read.
std::optional<std::string> read_file(const std::string& path, std::string& problem) {
  // A pipe would block.
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (!file) {
    if (errno != ENOENT && errno != ENOTDIR) problem = error_text(errno);
    return std::nullopt;
  }
  if (::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) {
    problem = kNoFile;
    return std::nullopt;
  }
  std::string text(kFileBytesMax + 1, '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      problem = error_text(errno);
      return std::nullopt;
    }
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  text.resize(have);
  return text;
}

// Follows symbolic links, also to a file that does not exist yet. Returns "" for a circle.
std::filesystem::path without_links(std::filesystem::path path) {
  for (int links = 0; links < kLinksMax; ++links) {
    std::error_code error;
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) return path;
    path = path.parent_path() / target;
  }
  return {};
}

// Writes a file of another name and renames it, so that a reader sees all of it or nothing. Links,
// devices and pipes stay. Returns the problem, or "".
std::string write_file(const std::string& name, const std::string& text) {
  const std::string path = without_links(name);
  if (path.empty()) return error_text(ELOOP);
  struct stat about {};
  if (::stat(path.c_str(), &about) == 0 && !S_ISREG(about.st_mode)) return kNoFile;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return error_text(error.value());
  std::string draft = path + "." + std::string(6, 'X');
  Fd file(::mkostemp(draft.data(), O_CLOEXEC));
  if (!file) return error_text(errno);
  const bool is_written =
      write_all(file, text.data(), text.size()) && ::fchmod(file.get(), 0644) == 0;
  const int problem = errno;
  file.reset();
  if (is_written && ::rename(draft.c_str(), path.c_str()) == 0) return "";
  const std::string sentence = error_text(is_written ? errno : problem);
  ::unlink(draft.c_str());
  return sentence;
}

// Two sentences; the second one may be "".
std::string both(std::string one, std::string other) {
  if (other.empty()) return one;
  other.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(other.front())));
  return cat(one, " ", other);
}

}  // namespace

std::string_view name_of(FoundProfile::Source source) {
  constexpr std::array<std::string_view, 4> kNames = {"off", "none", "file", "measured"};
  return kNames[static_cast<std::size_t>(source)];
}

std::string profile_path(const Config& config, const std::string& key) {
  if (!config.profile.empty()) return config.profile;
  if (config.cache_folder.empty()) return "";
  std::array<char, 17> number{};
  std::snprintf(number.data(), number.size(), "%016llx",
                static_cast<unsigned long long>(hash_of(key)));
  return cat(config.cache_folder, "/profile-", number.data(), ".json");
}

FoundProfile renew_profile(const Config& config, const MachineFacts& facts, const ProbePlan& plan,
                           const MachineProfile& earlier) {
  FoundProfile found;
  if (config.profile == "off") return found;
  const SteadyClock clock;
  const Nanoseconds began = clock.now();
  found.profile = fastest(std::array{measure_machine(facts, plan), earlier});
  found.took = clock.now() - began;
  found.source = FoundProfile::Source::measured;
  found.path = profile_path(config, facts.key());
  if (found.path.empty()) {
    found.note =
        "the profile of this machine is not kept, since HOME and XDG_CACHE_HOME name no folder. "
        "Set RDMACOLL_PROFILE to a file, or to off.";
    return found;
  }
  if (found.profile.copy_l2 == 0) {
    found.note = "this machine could not be measured, since no thread could be started.";
    return found;
  }
  const std::string problem = write_file(found.path, to_json(found.profile) + "\n");
  if (!problem.empty()) {
    found.note = cat("the profile of this machine cannot be kept in ", found.path, ": ", problem,
                     ". Set RDMACOLL_PROFILE to a file that can be written, or to off.");
  }
  return found;
}

FoundProfile find_profile(const Config& config, const MachineFacts& facts,
                          const std::optional<ProbePlan>& plan) {
  if (config.profile == "off") return {};
  FoundProfile found{.path = profile_path(config, facts.key())};
  std::string problem;
  const std::optional<std::string> text =
      found.path.empty() ? std::nullopt : read_file(found.path, problem);
  if (text && parse_profile(trim(*text), found.profile)) {
    const bool is_named = !config.profile.empty();
    const bool is_own = found.profile.machine == facts.key();
    found.source = FoundProfile::Source::file;
    if (is_own && plan && !found.profile.is_complete()) {
      return renew_profile(config, facts, *plan, found.profile);
    }
    if (is_own || is_named) return found;
    problem = "it is another machine's";
  } else if (text) {
    problem = "it is damaged, or another version's";
  }
  if (!problem.empty()) problem = cat(found.path, " is not used: ", problem, ".");
  if (plan) {
    found = renew_profile(config, facts, *plan);
    if (!problem.empty()) problem += " This machine was measured anew.";
  } else {
    found.profile = {};
    found.source = FoundProfile::Source::none;
  }
  if (!problem.empty()) found.note = both(std::move(problem), std::move(found.note));
  return found;
}

}  // namespace rdmacoll::probe
