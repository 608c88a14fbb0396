#include "base/gpudirect.h"

#include "base/text.h"

namespace rdmacoll {
namespace {

std::string_view name_of(GpuDirectMode mode) {
  if (mode == GpuDirectMode::off) return "off";
  return mode == GpuDirectMode::force ? "force" : "auto";
}

std::optional<GpuDirectMode> mode_from(std::string_view word) {
  for (const GpuDirectMode mode :
       {GpuDirectMode::automatic, GpuDirectMode::off, GpuDirectMode::force}) {
    if (word == name_of(mode)) return mode;
  }
  return std::nullopt;
}

}  // namespace

std::string GpuDirectSetting::text() const {
  if (send == receive) return std::string(name_of(send));
  return cat("send:", name_of(send), ",receive:", name_of(receive));
}

std::optional<GpuDirectSetting> gpudirect_from(std::string_view text) {
  const std::string words = lower(text);
  if (const auto both = mode_from(trim(words))) return GpuDirectSetting{*both, *both};
  std::optional<GpuDirectMode> send;
  std::optional<GpuDirectMode> receive;
  for (std::string_view rest = words;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = trim(rest.substr(0, comma));
    const std::size_t colon = item.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    const std::string_view direction = trim(item.substr(0, colon));
    if (direction != "send" && direction != "receive") return std::nullopt;
    std::optional<GpuDirectMode>& named = direction == "send" ? send : receive;
    if (named) return std::nullopt;  // named twice
    named = mode_from(trim(item.substr(colon + 1)));
    if (!named) return std::nullopt;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return GpuDirectSetting{send.value_or(GpuDirectMode::automatic),
                          receive.value_or(GpuDirectMode::automatic)};
}

}  // namespace rdmacoll
