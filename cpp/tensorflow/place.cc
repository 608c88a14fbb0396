#include "tensorflow/place.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace rdmacoll::tensorflow {
namespace {

// Which name scope the wrappers in rdmacoll/ops build their nodes in.
constexpr std::string_view kScope = "/rdmacoll/";

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char letter) {
    return std::isdigit(letter) != 0;
  });
}

// Of a conditional only one branch runs, and ranks may take different ones.
bool is_branch(std::string_view part) {
  constexpr std::string_view kNumbered = "branch";
  return part == "then" || part == "else" ||
         (part.starts_with(kNumbered) && is_number(part.substr(kNumbered.size())));
}

// TensorFlow numbers the copies of loop bodies and branches by a counter of the whole graph.
bool is_copy_number(std::string_view part) {
  return part.starts_with('_') && is_number(part.substr(1));
}

}  // namespace

Place place_of(std::string_view node) {
  Place place;
  const std::size_t end_of_calls = node.rfind(kScope);
  if (end_of_calls == std::string_view::npos) return place;  // in the function that is run itself
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
    if (!place.calls.empty()) place.calls += '/';
    place.calls += is_branch(part) ? "branch" : part;
    previous = part;
  }
  place.is_in_nested_loops = loops > 1;
  return place;
}

bool Visits::note(int64_t step, uint64_t frame, bool is_in_nested_loops) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool is_same_step = std::exchange(step_, step) == step;
  const bool is_same_frame = std::exchange(frame_, frame) == frame;
  if (!is_same_step || is_in_nested_loops) return true;
  // One loop is one frame, whose iterations have numbers; what is in no loop runs once.
  return frame != kRootFrame && is_same_frame;
}

Places& Places::of(const std::string& tensor_name) {
  static std::mutex mutex;
  static auto* const all = new std::map<std::string, Places>;  // kernels outlive static objects
  const std::lock_guard<std::mutex> lock(mutex);
  return (*all)[tensor_name];
}

Visits* Places::add(const std::string& calls) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entries_[calls];
  ++entry.kernels;
  count();
  return &entry.visits;
}

void Places::withdraw(const std::string& calls) {
  const std::lock_guard<std::mutex> lock(mutex_);
  --entries_[calls].kernels;
  count();
}

void Places::count() {
  const auto used = std::count_if(entries_.begin(), entries_.end(),
                                  [](const auto& entry) { return entry.second.kernels > 0; });
  are_several_.store(used > 1, std::memory_order_relaxed);
}

}  // namespace rdmacoll::tensorflow
