// RDMACOLL_GPUDIRECT: whether NICs may read and write GPU memory themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rdmacoll {

enum class GpuDirectMode : uint8_t { automatic, off, force };

// One mode for each direction. To send, a NIC reads GPU memory. To receive, it writes there.
struct GpuDirectSetting {
  GpuDirectMode send = GpuDirectMode::automatic;
  GpuDirectMode receive = GpuDirectMode::automatic;

  std::string text() const;  // "off", or "send:off,receive:auto"

  bool operator==(const GpuDirectSetting&) const = default;
};

// Parses "auto", "off" or "force" for both directions, or "send:off,receive:force" for each. A
// direction that is not named is automatic. Empty if `text` is nothing of that.
std::optional<GpuDirectSetting> gpudirect_from(std::string_view text);

}  // namespace rdmacoll
