#include "transport/rdma/devices_json.h"

#include "base/text.h"

namespace rdmacoll::rdma {
namespace {

std::string quote_or_null(std::string_view sentence) {
  return sentence.empty() ? "null" : json_quote(sentence);
}

std::string sentence_of(const Status& status) { return status.ok() ? "" : status.message(); }

template <typename Range, typename ToJson>
std::string json_list(const Range& values, ToJson to_json) {
  std::vector<std::string> texts;
  for (const auto& value : values) texts.push_back(to_json(value));
  return cat("[", join(texts, ", "), "]");
}

std::string gid_json(const GidFacts& gid) {
  return cat("{\"index\": ", gid.index, ", \"gid\": ", json_quote(gid.gid.text()),
             ", \"type\": ", json_quote(text(gid.type)),
             ", \"interface\": ", quote_or_null(gid.interface), "}");
}

std::string port_json(const DeviceFacts& device, const PortFacts& port,
                      const DeviceRequest& request) {
  return cat("{\"number\": ", port.number, ", \"state\": ", json_quote(text(port.state)),
             ", \"link_layer\": ", json_quote(text(port.link)), ", \"mtu\": ", port.active_mtu,
             ", \"gbit_per_s\": ", port.gbit_per_s, ", \"lid\": ", port.lid,
             ", \"message_bytes_max\": ", port.message_bytes_max, ", \"pkeys\": [",
             join(port.pkeys, ", "), "]", ", \"gids\": ", json_list(port.gids, gid_json),
             ", \"unusable\": ", quote_or_null(obstacle_of(device, port, request)), "}");
}

std::string device_json(const DeviceFacts& device, const DeviceRequest& request) {
  const auto port = [&](const PortFacts& one) { return port_json(device, one, request); };
  return cat(
      "{\"name\": ", json_quote(device.name), ", \"firmware\": ", json_quote(device.firmware),
      ", \"node_guid\": ", json_quote(device.node_guid),
      ", \"software\": ", device.is_software ? "true" : "false",
      ", \"numa_node\": ", device.numa_node, ", \"unusable\": ", quote_or_null(device.unusable),
      ", \"queue_depth_max\": ", device.queue_depth_max,
      ", \"completions_max\": ", device.completions_max, ", \"scatter_max\": ", device.scatter_max,
      ", \"reads_in_flight_max\": ", device.reads_in_flight_max,
      ", \"ports\": ", json_list(device.ports, port), "}");
}

std::string rail_json(const Rail& rail) {
  return cat("{\"device\": ", json_quote(rail.device), ", \"port\": ", rail.port,
             ", \"gid_index\": ", rail.gid_index, ", \"gid\": ", json_quote(rail.gid.text()),
             ", \"reason\": ", json_quote(rail.reason), ", \"text\": ", json_quote(rail.text()),
             ", \"software\": ", rail.is_software ? "true" : "false", "}");
}

}  // namespace

std::string devices_json(const Status& known, std::span<const DeviceFacts> devices,
                         const std::string& warning, const DeviceRequest& request) {
  std::vector<Rail> rails;
  Status choice;
  if (known.ok()) choice = choose_rails(devices, request, rails);
  const auto device = [&](const DeviceFacts& one) { return device_json(one, request); };
  return cat(
      "{\"error\": ", quote_or_null(sentence_of(known)), ", \"warning\": ", quote_or_null(warning),
      ", \"devices\": ", json_list(devices, device), ", \"rails\": ", json_list(rails, rail_json),
      ", \"choice_error\": ", quote_or_null(sentence_of(choice)), "}");
}

std::string devices_json(const DeviceRequest& request) {
  Verbs* verbs = nullptr;
  std::vector<DeviceFacts> devices;
  Status known = system_verbs(verbs);
  if (known.ok()) known = verbs->list(devices);
  return devices_json(known, devices, known.ok() ? verbs->warning() : "", request);
}

}  // namespace rdmacoll::rdma
