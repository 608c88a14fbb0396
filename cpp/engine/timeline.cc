#include "engine/timeline.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <span>
#include <utility>

#include "base/system_error.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

// A write takes longer than recording an event, so events share one.
constexpr std::size_t kTextMax = 64 << 10;
constexpr Nanoseconds kWriteEvery = kSecond;
// The list ends with these bytes, which the next write replaces.
constexpr std::string_view kEnd = "\n]\n";
// Operations of one name may overlap in time. They lie in different lanes of its row.
constexpr int64_t kLanes = 16;

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& letter : result) {
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  }
  return result;
}

// A time in microseconds, which the format asks for.
std::string micros(Nanoseconds time) {
  std::array<char, 64> digits{};
  const double value = static_cast<double>(time) / kMicrosecond;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value,
                                 std::chars_format::fixed, 3);
  return {digits.data(), end.ptr};
}

Status refused(const std::string& path, std::string_view reason) {
  return {Code::invalid, cat("the timeline ", path, " cannot be written: ", reason,
                             ". Name a file that this user can write.")};
}

}  // namespace

Status Timeline::open(const std::string& path, const Clock& clock, Log log,
                      std::unique_ptr<Timeline>& timeline) {
  // Without O_NONBLOCK, opening a FIFO would wait for a reader.
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK;
  Fd file(::open(path.c_str(), flags, 0666));
  if (!file) return refused(path, error_text(errno));
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) return refused(path, error_text(errno));
  if (!S_ISREG(found.st_mode)) return refused(path, "it is no regular file");
  timeline.reset(new Timeline(path, std::move(file), clock, log));
  return {};
}

Timeline::Timeline(std::string path, Fd file, const Clock& clock, Log log)
    : path_(std::move(path)),
      file_(std::move(file)),
      clock_(clock),
      log_(log),
      opened_at_(clock.now()),
      written_at_(opened_at_) {
  const auto epoch = std::chrono::system_clock::now().time_since_epoch();
  const auto since = std::chrono::duration_cast<std::chrono::microseconds>(epoch).count();
  add(cat(R"({"name": "start_time_since_epoch_in_micros", "ph": "M", "pid": 0, "args": )",
          R"({"start_time_since_epoch_in_micros": )", since, "}}"));
  flush();
}

Timeline::~Timeline() { flush(); }

void Timeline::begin(const Operation& operation) {
  if (!is_broken_) started_[&operation] = clock_.now();
}

void Timeline::record(const Operation& operation, const Status& status) {
  if (is_broken_) return;
  const Request& request = operation.request;
  const std::string_view kind = rdmacoll::row_of(request.kind).name;
  const int row =
      row_of(request.name.empty() ? cat(kind, " without a name") : cat(kind, ".", request.name));
  const int64_t lane = std::max<int64_t>(0, request.iteration) % kLanes;
  const Nanoseconds end = clock_.now();
  const Nanoseconds begin = std::max(operation.state.taken_at, opened_at_);
  const auto found = started_.extract(&operation);
  // An operation without an entry that succeeds has started before the file was opened.
  const bool has_started = !found.empty() || status.ok();
  const Nanoseconds at_once = has_started ? begin : end;
  const Nanoseconds start = found.empty() ? at_once : std::clamp(found.mapped(), begin, end);
  std::string arguments =
      cat(R"("bytes": )", request.bytes(), R"(, "dtype": ")", name_of(request.dtype),
          R"(", "tensors": )", request.tensors.size(), R"(, "process_set": )", request.set);
  if (!status.ok()) arguments += cat(R"(, "error": )", json_quote(status.message()));
  const auto add_span = [&](std::string_view name, Nanoseconds from, Nanoseconds to) {
    add(cat(R"({"name": ")", name, R"(", "ph": "X", "pid": )", row, R"(, "tid": )", lane,
            R"(, "ts": )", micros(from - opened_at_), R"(, "dur": )", micros(to - from),
            R"(, "args": {)", arguments, "}}"));
  };
  add_span(cat("NEGOTIATE_", upper(kind)), begin, start);
  if (has_started) add_span(upper(kind), start, end);
  if (text_.size() >= kTextMax || end - written_at_ >= kWriteEvery) flush();
}

int Timeline::row_of(std::string_view name) {
  const auto [found, is_new] = rows_.try_emplace(std::string(name), rows_.size() + 1);
  if (is_new) {
    add(cat(R"({"name": "process_name", "ph": "M", "pid": )", found->second,
            R"(, "args": {"name": )", json_quote(name), "}}"));
  }
  return found->second;
}

void Timeline::add(std::string_view event) {
  text_ += is_first_ ? "[\n" : ",\n";
  text_ += event;
  is_first_ = false;
}

void Timeline::flush() {
  if (is_broken_ || text_.empty()) return;
  const std::size_t bytes = text_.size();
  text_ += kEnd;
  std::span<const char> rest(text_);
  auto offset = static_cast<off_t>(written_);
  while (!rest.empty()) {
    const ssize_t count = ::pwrite(file_.get(), rest.data(), rest.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      is_broken_ = true;
      log_.warning(cat("the timeline ", path_, " ends here: ", error_text(errno), "."));
      break;
    }
    rest = rest.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
  written_ += bytes;
  written_at_ = clock_.now();
  text_.clear();
}

}  // namespace rdmacoll
