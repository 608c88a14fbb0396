#include "collectives/schedule.h"

#include <array>
#include <sstream>

#include "base/text.h"

namespace rdmacoll {
namespace {

constexpr std::array kVerbs{"send",    "receive", "reduce", "copy",
                            "publish", "await",   "pack",   "unpack"};
constexpr std::array kSpaces{"input", "output", "work", "scratch", "view", "sums"};

std::string text(const Slice& slice) {
  std::ostringstream out;
  out << kSpaces[static_cast<int>(slice.space)];
  if (slice.space == Space::scratch || slice.space == Space::view) out << slice.slot;
  out << '[' << slice.first_part;
  if (slice.parts != 1) out << ".." << slice.first_part + slice.parts;
  out << ']';
  if (slice.wide) out << " in float32";
  return out.str();
}

}  // namespace

std::string to_text(const Schedule& schedule) {
  std::ostringstream out;
  out << "rank " << schedule.rank << " of " << schedule.ranks << ", " << schedule.parts
      << " parts, " << schedule.scratch.size() << " scratch slots\n";
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    out << i << ' ' << kVerbs[static_cast<int>(step.verb)] << ' ' << text(step.to);
    if (sends(step.verb)) out << " to rank " << step.peer;
    if (receives(step.verb)) out << " from rank " << step.peer;
    if (step.sources > 0) {
      std::vector<std::string> sources;
      for (const Slice& source : schedule.sources_of(step)) sources.push_back(text(source));
      out << " <- " << join(sources, ", ");
    }
    if (step.afters > 0) out << " after " << join(schedule.afters_of(step), ", ");
    if (step.final) out << " (final)";
    if (step.prescale) out << " (prescale)";
    out << '\n';
  }
  return out.str();
}

}  // namespace rdmacoll
