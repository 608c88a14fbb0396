#include "cuda/direct_ways.h"

#include <algorithm>

#include "base/small_range.h"
#include "base/text.h"

namespace rdmacoll::cuda {
namespace {

// A container may show no /sys. A NIC that is not found there has a place that is not known.
void add_missing_nics(std::span<const std::string> nics, GpuSystem& system) {
  for (const std::string& name : nics) {
    if (is_any_of(system.nics, [&](const NicPlace& nic) { return nic.name == name; })) continue;
    NicPlace& nic = system.nics.emplace_back();
    nic.name = name;
    nic.is_active = true;
  }
}

bool is_direct(const DirectionDecision& direction) { return direction.way != Way::staged; }

// Returns a warning if only some NICs have a direct way. The job then uses none, since each
// transfer may use all NICs.
std::string warning_of_mixture(const GpuSystem& system, const std::vector<Cell>& cells,
                               const SystemGpu& gpu) {
  const auto can = [](const Cell& cell) {
    return is_direct(cell.decision.send) || is_direct(cell.decision.receive);
  };
  const auto direct = std::find_if(cells.begin(), cells.end(), can);
  const auto staged = std::find_if_not(cells.begin(), cells.end(), can);
  if (direct == cells.end() || staged == cells.end()) return "";
  const std::string& name = system.nics[direct->nic].name;
  return cat(name, " does not access the memory of ", gpu.profile.name, " (", gpu.profile.uuid,
             ") itself, because each transfer also uses ", system.nics[staged->nic].name,
             ", which cannot: ", staged->decision.receive.why, ". Set RDMACOLL_DEVICE=", name, ".");
}

DirectWay way_of(const GpuSystem& system, const SystemGpu& gpu, const std::vector<Cell>& cells) {
  DirectWay way{.uuid = gpu.profile.uuid,
                .address = gpu.profile.address,
                .ways = {.sends = !cells.empty(), .receives = !cells.empty()},
                .registrable_bytes = usable_bar1(gpu.profile).value_or(0),
                .warning = {},
                .status = {}};
  for (const Cell& cell : cells) {
    const Decision& decision = cell.decision;
    way.ways.sends = way.ways.sends && is_direct(decision.send);
    way.ways.receives = way.ways.receives && is_direct(decision.receive);
    if (way.warning.empty()) way.warning = decision.warning;
    if (way.status.ok()) way.status = decision.status;
  }
  if (way.warning.empty()) way.warning = warning_of_mixture(system, cells, gpu);
  return way;
}

// A container may show the PCIe tree of its host, and only some of the GPUs.
void drop_gpus_of_others(GpuSystem& system) {
  const auto has_uuid = [](const SystemGpu& gpu) { return !gpu.profile.uuid.empty(); };
  if (!is_any_of(system.gpus, has_uuid)) return;
  std::erase_if(system.gpus, [&](const SystemGpu& gpu) { return !has_uuid(gpu); });
}

// dma-buf needs the open kernel modules.
void assume_the_best(GpuSystem& system) {
  for (SystemGpu& gpu : system.gpus) {
    gpu.profile.gpudirect = Known::yes;
    gpu.profile.dma_buf = system.is_open == Known::no ? Known::no : Known::yes;
  }
}

// The warning without the GPU's name: the same for all GPUs with one cause.
std::string of_any_gpu(const DirectWay& way) {
  std::string text = way.warning;
  const std::string& name = way.uuid.empty() ? way.address : way.uuid;
  const std::size_t at = name.empty() ? text.npos : text.find(name);
  return at == text.npos ? text : text.erase(at, name.size());
}

}  // namespace

std::string DirectWay::text() const {
  return cat("send ", ways.sends ? "direct" : "staged", ", receive ",
             ways.receives ? "direct" : "staged");
}

std::vector<DirectWay> direct_ways(GpuSystem system, const GpuDirectSetting& setting,
                                   std::span<const std::string> nics) {
  if (nics.empty()) return {};
  add_missing_nics(nics, system);
  const std::vector<Cell> all = decide_all(system, setting, nics);
  std::vector<DirectWay> ways;
  for (std::size_t gpu = 0; gpu < system.gpus.size(); ++gpu) {
    std::vector<Cell> cells;
    std::copy_if(all.begin(), all.end(), std::back_inserter(cells),
                 [&](const Cell& cell) { return cell.gpu == gpu; });
    ways.push_back(way_of(system, system.gpus[gpu], cells));
  }
  return ways;
}

CertainLosses certain_losses(GpuSystem system, const GpuDirectSetting& setting,
                             std::span<const std::string> nics) {
  drop_gpus_of_others(system);
  assume_the_best(system);
  const std::vector<DirectWay> ways = direct_ways(std::move(system), setting, nics);
  CertainLosses found;
  if (ways.empty()) return found;
  for (const DirectWay& way : ways) {
    if (of_any_gpu(way) == of_any_gpu(ways.front())) found.texts.push_back(way.warning);
  }
  if (are_all_of(ways, [](const DirectWay& way) { return !way.warning.empty(); })) {
    const std::string others =
        ways.size() == 1 ? "" : cat(" No other GPU here has the direct way either.");
    found.warning = ways.front().warning + others;
  }
  if (are_all_of(ways, [](const DirectWay& way) { return !way.status.ok(); })) {
    found.status = ways.front().status;
  }
  return found;
}

const DirectWay* find_way(std::span<const DirectWay> ways, const GpuFacts& gpu) {
  for (const DirectWay& way : ways) {
    if (way.uuid == gpu.uuid) return &way;
  }
  for (const DirectWay& way : ways) {
    if (!way.address.empty() && way.address == pci_address(gpu.pci)) return &way;
  }
  return nullptr;
}

}  // namespace rdmacoll::cuda
