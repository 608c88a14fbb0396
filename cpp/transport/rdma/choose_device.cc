#include "transport/rdma/choose_device.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "base/text.h"

namespace rdmacoll::rdma {
namespace {

// Full membership of a partition. Limited members cannot talk to each other.
constexpr uint16_t kFullMember = 0x8000;

// A port is a rail, or `refusal` says why it is not.
struct Verdict {
  std::optional<Rail> rail;
  std::string refusal;
};

bool is_local(const Gid& gid) {
  // 169.254.0.0/16 inside of ::ffff:0:0/96
  return gid.is_link_local() || (gid.is_ipv4() && gid.raw[12] == 169 && gid.raw[13] == 254);
}

// Smaller is better. Link-local comes last: two ports of a host share its network, so the kernel
// may send through the wrong one.
int rank_of(const Gid& gid) { return is_local(gid) ? 2 : gid.is_ipv4() ? 0 : 1; }

std::string_view kind_of(const Gid& gid) {
  if (gid.is_ipv4()) return is_local(gid) ? "link-local IPv4" : "IPv4";
  return is_local(gid) ? "link-local IPv6" : "global IPv6";
}

std::string list_of(const std::vector<GidFacts>& gids) {
  std::vector<std::string> texts;
  for (const GidFacts& each : gids) {
    texts.push_back(cat(each.index, " ", each.gid.text(), " ", text(each.type)));
  }
  return texts.empty() ? "no GID" : cat("GIDs ", join(texts, ", "));
}

const GidFacts* gid_at(const PortFacts& port, int index) {
  for (const GidFacts& each : port.gids) {
    if (each.index == index) return &each;
  }
  return nullptr;
}

const GidFacts* best_roce_v2(const PortFacts& port) {
  const GidFacts* best = nullptr;
  for (const GidFacts& each : port.gids) {
    if (each.type != GidType::roce_v2) continue;
    if (best == nullptr || rank_of(each.gid) < rank_of(best->gid)) best = &each;
  }
  return best;
}

// Chooses the rail's GID. Returns "" or the reason why there is none.
std::string set_gid(const PortFacts& port, std::optional<int> wanted, Rail& rail,
                    std::string& reason) {
  if (wanted) {
    const GidFacts* found = gid_at(port, *wanted);
    if (found == nullptr) {
      return cat("has no GID ", *wanted, ", which was requested, but ", list_of(port.gids));
    }
    rail.gid_index = found->index;
    rail.gid = found->gid;
    reason = cat("GID ", found->index, " was requested: ", text(found->type));
    return "";
  }
  if (port.link != LinkLayer::ethernet) {
    // Index 0 is the port's own GID by the specification. It is needed only between subnets.
    if (const GidFacts* own = gid_at(port, 0); own != nullptr) rail.gid = own->gid;
    return "";
  }
  const GidFacts* best = best_roce_v2(port);
  if (best == nullptr) {
    return cat("has no RoCE v2 GID, but ", list_of(port.gids),
               ": give its network interface an address");
  }
  rail.gid_index = best->index;
  rail.gid = best->gid;
  reason = cat("GID ", best->index, " is RoCE v2, ", kind_of(best->gid));
  return "";
}

std::string list_of(const std::vector<uint16_t>& pkeys) {
  std::vector<std::string> texts;
  for (std::size_t index = 0; index < pkeys.size(); ++index) {
    if (pkeys[index] == 0) continue;
    std::ostringstream text;
    text << index << " 0x" << std::hex << pkeys[index];
    texts.push_back(text.str());
  }
  return texts.empty() ? "no PKEY" : cat("PKEYs ", join(texts, ", "));
}

std::string set_pkey(const PortFacts& port, std::optional<int> wanted, Rail& rail,
                     std::string& reason) {
  if (wanted) {
    const auto index = static_cast<std::size_t>(*wanted);
    if (index >= port.pkeys.size() || port.pkeys[index] == 0) {
      return cat("has no PKEY ", *wanted, ", which was requested, but ", list_of(port.pkeys));
    }
    rail.pkey_index = *wanted;
    reason = cat("PKEY ", *wanted, " was requested");
    return "";
  }
  for (std::size_t index = 0; index < port.pkeys.size(); ++index) {
    if ((port.pkeys[index] & kFullMember) == 0) continue;
    rail.pkey_index = static_cast<int>(index);
    if (index != 0) reason = cat("PKEY ", index, " is the first with full membership");
    return "";
  }
  // Ethernet has one PKEY, the default one, even if a driver reports others.
  if (port.link == LinkLayer::ethernet) return "";
  return "is a full member of no partition: ask the subnet manager's operator for full membership";
}

Verdict judge(const DeviceFacts& device, const PortFacts& port, const DeviceRequest& request) {
  if (port.state != PortState::active) return {{}, cat("is ", text(port.state))};
  Rail rail{.device = device.name,
            .port = port.number,
            .link = port.link,
            .lid = port.lid,
            .mtu = port.active_mtu,
            .gbit_per_s = port.gbit_per_s,
            .is_software = device.is_software,
            .completions_max = device.completions_max,
            .queue_depth_max = device.queue_depth_max};
  if (port.link == LinkLayer::unknown) return {{}, "has a link layer that is not known"};
  if (port.link == LinkLayer::infiniband && port.lid == 0) {
    return {{}, "has no LID: is a subnet manager running?"};
  }
  std::string of_gid;
  std::string of_pkey;
  std::string refusal = set_gid(port, request.gid_index, rail, of_gid);
  if (refusal.empty()) refusal = set_pkey(port, request.pkey_index, rail, of_pkey);
  if (!refusal.empty()) return {{}, refusal};
  if (port.link == LinkLayer::infiniband) rail.reason = cat("; LID ", port.lid);
  for (const std::string& part : {of_gid, of_pkey}) {
    if (!part.empty()) rail.reason += cat("; ", part);
  }
  return {rail, ""};
}

std::string state_of(const DeviceFacts& device, const DeviceRequest& request) {
  if (!device.unusable.empty()) return cat(device.name, " ", device.unusable);
  std::vector<std::string> ports;
  for (const PortFacts& port : device.ports) {
    const Verdict verdict = judge(device, port, request);
    ports.push_back(cat("port ", port.number, " ", verdict.rail ? "can be used" : verdict.refusal));
  }
  return cat(device.name, " (", ports.empty() ? "no ports" : join(ports, "; "), ")");
}

std::string states_of(std::span<const DeviceFacts> present, const DeviceRequest& request) {
  std::vector<std::string> texts;
  for (const DeviceFacts& device : present) texts.push_back(state_of(device, request));
  return join(texts, ", ");
}

Status none_present() {
  return {Code::invalid,
          "no RDMA device is present on this machine: load the adapter's driver (rdma link lists "
          "the kernel's devices)."};
}

// Returns the first usable port of the device. `why` precedes the port's own reason.
std::optional<Rail> first_rail(const DeviceFacts& device, const DeviceRequest& request,
                               std::string_view why) {
  for (const PortFacts& port : device.ports) {
    if (request.port && port.number != *request.port) continue;
    Verdict verdict = judge(device, port, request);
    if (!verdict.rail) continue;
    verdict.rail->reason = cat(why, verdict.rail->reason);
    return verdict.rail;
  }
  return std::nullopt;
}

std::vector<std::string> port_settings(const DeviceRequest& request) {
  std::vector<std::string> requested;
  if (request.port) requested.push_back(cat("RDMACOLL_DEVICE_PORT=", *request.port));
  if (request.gid_index) requested.push_back(cat("RDMACOLL_GID_INDEX=", *request.gid_index));
  if (request.pkey_index) requested.push_back(cat("RDMACOLL_PKEY=", *request.pkey_index));
  return requested;
}

Status choose_automatically(std::span<const DeviceFacts> present, const DeviceRequest& request,
                            std::vector<Rail>& rails) {
  for (const bool software : {false, true}) {
    for (const DeviceFacts& device : present) {
      if (!device.unusable.empty() || device.is_software != software) continue;
      const auto rail =
          first_rail(device, request,
                     software ? "first active port of a software device, since no hardware has one"
                              : "first active port of a hardware device");
      if (!rail) continue;
      rails.push_back(*rail);
      return {};
    }
  }
  // Is there a usable port without the requests that concern ports?
  const std::vector<std::string> requested = port_settings(request);
  const bool is_there = std::any_of(present.begin(), present.end(), [](const DeviceFacts& device) {
    return device.unusable.empty() && first_rail(device, {}, "");
  });
  const std::string cure =
      is_there && !requested.empty()
          ? cat("Requested: ", join(requested, ", "), ". Request a port that is there, or unset it")
          : "Bring one up";
  return {Code::invalid, cat("no RDMA device of this machine has a port that can be used: ",
                             states_of(present, request), ". ", cure, ".")};
}

struct Named {
  std::string text;
  std::string device;
  std::optional<int> port;
};

// "mlx5_0" or "mlx5_0:2"
bool parse(const std::string& text, Named& named) {
  const std::size_t colon = text.find(':');
  named = {text, text.substr(0, colon), {}};
  if (named.device.empty()) return false;
  if (colon == std::string::npos) return true;
  int port = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc{} || stop != end || port < 1) return false;
  named.port = port;
  return true;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t comma = text.find(',', begin);
    std::string part = text.substr(begin, comma - begin);
    part.erase(0, part.find_first_not_of(' '));
    part.erase(part.find_last_not_of(' ') + 1);
    parts.push_back(std::move(part));
    if (comma == std::string::npos) return parts;
    begin = comma + 1;
  }
}

Status choose_named(std::span<const DeviceFacts> present, const DeviceRequest& request,
                    const Named& named, Rail& rail) {
  const auto refused = [&](const std::string& what) {
    return Status(Code::invalid, cat(request.devices_by, "=", request.devices, ": ", what,
                                     "; present: ", states_of(present, request),
                                     ". Name one with a port that can be used, or unset ",
                                     request.devices_by, "."));
  };
  const auto device = std::find_if(present.begin(), present.end(), [&](const DeviceFacts& each) {
    return each.name == named.device;
  });
  if (device == present.end()) {
    return refused(cat("this machine has no RDMA device ", named.device));
  }
  if (!device->unusable.empty()) return refused(cat(device->name, " ", device->unusable));
  const std::optional<int> number = named.port ? named.port : request.port;
  if (!number) {
    const auto found =
        first_rail(*device, request, cat(device->name, " was requested, first active port"));
    if (!found) return refused(cat(device->name, " has no port that can be used"));
    rail = *found;
    return {};
  }
  const auto port = std::find_if(device->ports.begin(), device->ports.end(),
                                 [&](const PortFacts& each) { return each.number == *number; });
  if (port == device->ports.end()) {
    return refused(cat(device->name, " has no port ", *number));
  }
  Verdict verdict = judge(*device, *port, request);
  if (!verdict.rail) return refused(cat("port ", *number, " ", verdict.refusal));
  rail = *verdict.rail;
  rail.reason =
      cat(named.text, named.port ? "" : cat(" port ", *number), " was requested", rail.reason);
  return {};
}

}  // namespace

std::string Rail::text() const {
  std::string inside = cat(rdma::text(link), ", ", gbit_per_s, " Gbit/s");
  if (link == LinkLayer::infiniband) inside += cat(", LID ", lid);
  if (link == LinkLayer::ethernet) inside += cat(", GID ", gid_index, " ", gid.text());
  if (is_software) inside += ", in software";
  return cat(device, " port ", port, " (", inside, ")");
}

std::string obstacle_of(const DeviceFacts& device, const PortFacts& port,
                        const DeviceRequest& request) {
  return device.unusable.empty() ? judge(device, port, request).refusal : device.unusable;
}

Status choose_rails(std::span<const DeviceFacts> present, const DeviceRequest& request,
                    std::vector<Rail>& rails) {
  rails.clear();
  if (present.empty() && request.devices.empty()) return none_present();
  if (request.devices.empty()) return choose_automatically(present, request, rails);
  std::vector<Rail> chosen;
  for (const std::string& part : split(request.devices)) {
    Named named;
    if (!parse(part, named)) {
      return {Code::invalid, cat(request.devices_by, "=", request.devices, ": \"", part,
                                 "\" names no device: write mlx5_0, mlx5_0:2 for its port 2, or "
                                 "mlx5_0,mlx5_1 for two rails.")};
    }
    if (present.empty()) {
      return {Code::invalid,
              cat(request.devices_by, "=", request.devices, ", and ", none_present().message())};
    }
    Rail rail;
    RC_RETURN_IF_ERROR(choose_named(present, request, named, rail));
    for (const Rail& other : chosen) {
      if (other.device != rail.device || other.port != rail.port) continue;
      return {
          Code::invalid,
          cat(request.devices_by, "=", request.devices, " names ", rail.device, " port ", rail.port,
              " twice, and two rails of one port carry no more than one: name it once.")};
    }
    chosen.push_back(std::move(rail));
  }
  rails = std::move(chosen);
  return {};
}

}  // namespace rdmacoll::rdma
