#include "cuda/gpu_report.h"

#include "base/text.h"

namespace rdmacoll::cuda {
namespace {

std::string quote_or_null(std::string_view sentence) {
  return sentence.empty() ? "null" : json_quote(sentence);
}

std::string number_or_null(std::optional<uint64_t> number) {
  return number ? cat(*number) : "null";
}

std::string known_json(Known known) {
  if (known == Known::unknown) return "null";
  return known == Known::yes ? "true" : "false";
}

template <typename Range, typename ToJson>
std::string json_list(const Range& values, ToJson to_json) {
  std::vector<std::string> texts;
  for (const auto& value : values) texts.push_back(to_json(value));
  return cat("[", join(texts, ", "), "]");
}

std::string mode_text(int compute_mode) {
  switch (compute_mode) {
    case 0:
      return "default";
    case 1:
      return "exclusive thread";
    case 2:
      return "prohibited";
    case 3:
      return "exclusive process";
    default:
      return "";
  }
}

std::string gpu_json(const SystemGpu& gpu) {
  const GpuProfile& facts = gpu.profile;
  return cat("{\"name\": ", json_quote(facts.name), ", \"uuid\": ", quote_or_null(facts.uuid),
             ", \"address\": ", json_quote(facts.address), ", \"capability\": ",
             facts.capability == 0
                 ? "null"
                 : json_quote(cat(facts.capability / 10, ".", facts.capability % 10)),
             ", \"memory_bytes\": ", facts.memory_bytes,
             ", \"bar1_bytes\": ", number_or_null(facts.bar1_bytes),
             ", \"bar1_free\": ", number_or_null(facts.bar1_free),
             ", \"numa_node\": ", gpu.place.numa_node,
             ", \"compute_mode\": ", quote_or_null(mode_text(facts.compute_mode)),
             ", \"mig\": ", facts.is_mig ? "true" : "false",
             ", \"nvlink\": ", facts.has_nvlink ? "true" : "false",
             ", \"gpudirect\": ", known_json(facts.gpudirect),
             ", \"dma_buf\": ", known_json(facts.dma_buf), "}");
}

std::string nic_json(const NicPlace& nic) {
  return cat("{\"name\": ", json_quote(nic.name),
             ", \"address\": ", quote_or_null(nic.place.address),
             ", \"driver\": ", quote_or_null(nic.driver), ", \"numa_node\": ", nic.place.numa_node,
             ", \"active\": ", nic.is_active ? "true" : "false",
             ", \"software\": ", nic.is_software ? "true" : "false", "}");
}

std::string direction_json(const DirectionDecision& one) {
  return cat("{\"way\": ", json_quote(text(one.way)), ", \"cause\": ", json_quote(text(one.cause)),
             ", \"reason\": ", json_quote(one.reason()),
             ", \"change\": ", quote_or_null(one.change),
             ", \"lost\": ", one.is_loss ? "true" : "false", "}");
}

std::string cell_json(const Cell& cell) {
  const Decision& decision = cell.decision;
  return cat("{\"gpu\": ", cell.gpu, ", \"nic\": ", cell.nic,
             ", \"distance\": ", json_quote(text(cell.way.distance)),
             ", \"switch\": ", quote_or_null(cell.way.shared_switch),
             ", \"acs\": ", known_json(cell.way.redirects),
             ", \"iommu\": ", known_json(cell.way.is_translated),
             ", \"send\": ", direction_json(decision.send),
             ", \"receive\": ", direction_json(decision.receive),
             ", \"flush\": ", json_quote(text(decision.flush)),
             ", \"error\": ", quote_or_null(decision.status.ok() ? "" : decision.status.message()),
             "}");
}

}  // namespace

std::string gpu_report_json(const GpuSystem& system, const GpuDirectSetting& setting) {
  const std::vector<Cell> cells = decide_all(system, setting);
  const auto quote = [](const std::string& sentence) { return json_quote(sentence); };
  return cat("{\"driver\": ", quote_or_null(system.driver_version),
             ", \"cuda_problem\": ", quote_or_null(system.cuda_problem),
             ", \"nvml_problem\": ", quote_or_null(system.nvml_problem),
             ", \"gdrcopy\": ", quote_or_null(system.gdrcopy_version),
             ", \"gdrcopy_problem\": ", quote_or_null(system.gdrcopy_problem),
             ", \"peer_module\": ", quote_or_null(system.module_name),
             ", \"setting\": ", json_quote(setting.text()),
             ", \"gpus\": ", json_list(system.gpus, gpu_json),
             ", \"nics\": ", json_list(system.nics, nic_json),
             ", \"cells\": ", json_list(cells, cell_json),
             ", \"warnings\": ", json_list(warnings_of(system, cells), quote), "}");
}

}  // namespace rdmacoll::cuda
