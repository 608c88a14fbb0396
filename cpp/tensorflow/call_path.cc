#include "tensorflow/call_path.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace rdmacoll::tensorflow {
namespace {

// The name scope in which the wrappers in rdmacoll/ops build their nodes.
constexpr std::string_view kScope = "/rdmacoll/";

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char letter) {
    return std::isdigit(letter) != 0;
  });
}

// Only one branch of a conditional runs, and ranks may take different ones.
bool is_branch(std::string_view part) {
  constexpr std::string_view kNumbered = "branch";
  return part == "then" || part == "else" ||
         (part.starts_with(kNumbered) && is_number(part.substr(kNumbered.size())));
}

// TensorFlow numbers the copies of loop bodies and branches by a counter of the whole graph.
bool is_copy_number(std::string_view part) {
  return part.starts_with('_') && is_number(part.substr(1));
}

// "while_10" is {"while", 10}, "while" is {"while", 0}.
std::pair<std::string_view, uint64_t> parts_of(std::string_view part) {
  constexpr std::size_t kDigitsMax = 18;
  const std::size_t last = part.rfind('_');
  if (last == std::string_view::npos) return {part, 0};
  const std::string_view digits = part.substr(last + 1);
  if (!is_number(digits) || digits.size() > kDigitsMax) return {part, 0};
  uint64_t number = 0;
  for (char digit : digits) number = number * 10 + static_cast<uint64_t>(digit - '0');
  return {part.substr(0, last), number};
}

std::string_view first_part(std::string_view calls) { return calls.substr(0, calls.find('/')); }

}  // namespace

bool comes_before(std::string_view calls, std::string_view other) {
  while (!calls.empty() && !other.empty()) {
    const std::string_view mine = first_part(calls), theirs = first_part(other);
    if (mine != theirs) {
      const auto own = parts_of(mine), others = parts_of(theirs);
      return own != others ? own < others : mine < theirs;
    }
    calls.remove_prefix(std::min(calls.size(), mine.size() + 1));
    other.remove_prefix(std::min(other.size(), theirs.size() + 1));
  }
  return calls.empty() && !other.empty();
}

CallPath call_path_of(std::string_view node) {
  CallPath path;
  const std::size_t end_of_calls = node.rfind(kScope);
  if (end_of_calls == std::string_view::npos) return path;  // in the function that is run itself
  std::string_view calls = node.substr(0, end_of_calls);
  std::string_view previous;
  int loops = 0;
  while (!calls.empty()) {
    const std::size_t end = calls.find('/');
    const std::string_view part = calls.substr(0, end);
    calls.remove_prefix(end == std::string_view::npos ? calls.size() : end + 1);
    if (is_copy_number(part)) {
      loops += previous == "body" ? 1 : 0;
      continue;
    }
    if (!path.calls.empty()) path.calls += '/';
    path.calls += is_branch(part) ? "branch" : part;
    previous = part;
  }
  path.is_in_nested_loops = loops > 1;
  return path;
}

std::vector<std::string_view> loops_around(std::string_view node) {
  constexpr std::string_view kBody = "body";
  std::vector<std::string_view> loops;
  const std::size_t end_of_calls = node.rfind(kScope);
  if (end_of_calls == std::string_view::npos) return loops;
  std::string_view previous;
  for (std::size_t begin = 0; begin < end_of_calls;) {
    const std::size_t end = std::min(node.find('/', begin), end_of_calls);
    const std::string_view part = node.substr(begin, end - begin);
    if (is_copy_number(part) && previous == kBody && begin > kBody.size() + 1) {
      loops.push_back(node.substr(0, begin - kBody.size() - 2));
    }
    previous = part;
    begin = end + 1;
  }
  return loops;
}

bool Visits::note(int64_t step, uint64_t frame, bool is_in_nested_loops) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool is_same_step = std::exchange(step_, step) == step;
  const bool is_same_frame = std::exchange(frame_, frame) == frame;
  if (!is_same_step || is_in_nested_loops) return true;
  // One loop is one frame with numbered iterations. A node outside loops runs once.
  return frame != kRootFrame && is_same_frame;
}

bool Copies::add(const std::string& node, const std::string& calls) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !has_run_ && calls_.emplace(node, calls).second;
}

void Copies::withdraw(const std::string& node) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!has_run_) calls_.erase(node);
}

std::string Copies::name_at(const std::string& calls) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!std::exchange(has_run_, true)) {
    for (const auto& [node, path] : calls_) paths_.push_back(path);
    std::sort(paths_.begin(), paths_.end(), comes_before);
    paths_.erase(std::unique(paths_.begin(), paths_.end()), paths_.end());
  }
  if (paths_.size() < 2) return tensor_name_;
  const auto found = std::find(paths_.begin(), paths_.end(), calls);
  return tensor_name_ + "/call_" + std::to_string(found - paths_.begin());
}

CopiesOfName& CopiesOfName::of(const std::string& tensor_name, int32_t process_set) {
  static std::mutex mutex;
  // Kernels outlive static objects.
  static auto* const all = new std::map<std::pair<std::string, int32_t>, CopiesOfName>;
  const std::lock_guard<std::mutex> lock(mutex);
  return all->try_emplace({tensor_name, process_set}, tensor_name).first->second;
}

std::shared_ptr<Copies> CopiesOfName::add(const std::string& node, const std::string& calls) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (latest_ == nullptr || !latest_->add(node, calls)) {
    latest_ = std::make_shared<Copies>(tensor_name_);
    latest_->add(node, calls);
  }
  return latest_;
}

Visits& CopiesOfName::visits(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return visits_[name];
}

}  // namespace rdmacoll::tensorflow
