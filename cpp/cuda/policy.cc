#include "cuda/policy.h"

#include <algorithm>

#include "base/text.h"

namespace rdmacoll::cuda {
namespace {

enum class Direction : uint8_t { send, receive };

// GPUs below this capability answer a NIC's reads far slower than they take its writes, unless the
// platform has NVLink.
constexpr int kFastReads = 80;
// From this capability on a GPU keeps a NIC's writes in order by itself.
constexpr int kOrderedWrites = 90;
constexpr int kOrderedForOwner = 100;  // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
constexpr int kFlushByDriver = 1;      // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST
// The first drivers with nvidia_peermem and with dma-buf. NVIDIA's open kernel modules, which
// dma-buf needs, run GPUs from Turing on.
constexpr int kDriverWithModule = 465;
constexpr int kDriverWithDmaBuf = 515;
constexpr int kDmaBufCapability = 75;
constexpr int kKepler = 37;                   // the last capability without dma-buf in any driver
constexpr uint64_t kBar1Reserved = 32 << 20;  // by the driver, for itself

struct Obstacle {
  Cause cause = Cause::none;
  std::string why;
  std::string change;
};

DirectionDecision staged(Obstacle obstacle, bool is_loss) {
  return {.way = Way::staged,
          .cause = obstacle.cause,
          .why = std::move(obstacle.why),
          .change = std::move(obstacle.change),
          .is_loss = is_loss};
}

constexpr std::string_view kLoadModule =
    "Load it with \"modprobe nvidia_peermem\", which needs an InfiniBand stack with peer-memory "
    "clients (MLNX_OFED, DOCA-OFED)";

bool has_dma_buf(const PolicyFacts& facts) {
  return facts.gpu.dma_buf == Known::yes && facts.ability.dma_buf != Known::no &&
         (facts.host.driver_major == 0 || facts.host.driver_major >= kDriverWithDmaBuf) &&
         (facts.gpu.capability == 0 || facts.gpu.capability > kKepler);
}

// The kernel keeps dma-buf consistent by its own rules, so it comes before the module.
Way registration(const PolicyFacts& facts) {
  if (has_dma_buf(facts)) return Way::dma_buf;
  const bool has_module =
      facts.host.peer_module == Known::yes && facts.ability.peer_memory != Known::no;
  return has_module ? Way::peer_memory : Way::staged;
}

// Neither way of registration is there. Names the missing part that is nearest to a cure.
Obstacle missing_registration(const PolicyFacts& facts) {
  const HostFacts& host = facts.host;
  const int driver = host.driver_major;
  const bool may_have_dma_buf =
      facts.gpu.capability >= kDmaBufCapability && facts.ability.dma_buf != Known::no;
  if (host.peer_module == Known::unknown) {
    return {Cause::no_sys, "/proc/modules cannot be read here, so no peer-memory module is known",
            "Give the container /proc and /sys of the host (read-only is enough)"};
  }
  if (facts.ability.peer_memory == Known::no) {
    return {
        Cause::no_dma_buf,
        cat(facts.nic, " takes GPU memory as dma-buf only, and the GPU's driver exports none"),
        "Install driver 515 or newer with NVIDIA's open kernel modules, on Linux 5.12 or newer"};
  }
  if (driver > 0 && driver < kDriverWithModule) {
    return {Cause::old_driver,
            cat("driver ", driver,
                " has no nvidia_peermem, which came with 465, and nv_peer_mem is not "
                "loaded"),
            "Install driver 470 or newer, then load nvidia_peermem"};
  }
  if (may_have_dma_buf && driver > 0 && driver < kDriverWithDmaBuf) {
    return {
        Cause::old_driver,
        cat("driver ", driver,
            " has no dma-buf, which came with 515, and nvidia_peermem is not "
            "loaded"),
        "Install driver 515 or newer with NVIDIA's open kernel modules, or load nvidia_peermem"};
  }
  if (may_have_dma_buf && facts.gpu.dma_buf == Known::unknown) {
    return {
        Cause::no_dma_buf,
        "CUDA's driver does not tell whether there is dma-buf, and nvidia_peermem is not loaded",
        "Give this process libcuda.so.1 and the GPU (CUDA_VISIBLE_DEVICES), or load "
        "nvidia_peermem"};
  }
  if (may_have_dma_buf && facts.gpu.dma_buf == Known::no) {
    return {Cause::no_dma_buf,
            "the GPU's driver exports no dma-buf, and nvidia_peermem is not loaded",
            "Install NVIDIA's open kernel modules on Linux 5.12 or newer, or load nvidia_peermem"};
  }
  return {Cause::module_missing, "nvidia_peermem is not loaded", std::string(kLoadModule)};
}

// Things that make a direct way impossible. They hold for `force`, too.
Obstacle hard_obstacle(const PolicyFacts& facts) {
  const GpuProfile& gpu = facts.gpu;
  if (facts.nic_is_software) {
    return {Cause::software_nic,
            cat(facts.nic, " is a device in software, which reaches host memory only"),
            "Use an RDMA adapter in hardware"};
  }
  if (gpu.gpudirect == Known::no && gpu.is_mig) {
    return {Cause::mig, "the GPU is divided by MIG, and this instance has no GPUDirect RDMA",
            "Turn MIG off with \"nvidia-smi -mig 0\""};
  }
  if (gpu.gpudirect == Known::no) {
    return {Cause::gpu_unsupported, cat(gpu.name, " has no GPUDirect RDMA"),
            "Use a GPU of the Tesla, Quadro or data-centre series"};
  }
  if (facts.ability.peer_memory == Known::no && facts.ability.dma_buf == Known::no) {
    return {Cause::nic_unsupported, cat("the driver of ", facts.nic, " registers no GPU memory"),
            "Use an adapter whose driver does (ConnectX), or a newer kernel and driver"};
  }
  const Way way = registration(facts);
  if (way == Way::staged) return missing_registration(facts);
  if (way == Way::peer_memory && facts.way.is_translated == Known::yes) {
    return {Cause::iommu,
            "an IOMMU translates addresses, which the peer-memory module does not know",
            "Boot with iommu=pt, or turn the IOMMU off in the firmware"};
  }
  const std::optional<uint64_t> usable = usable_bar1(gpu);
  if (!usable) {
    return {Cause::bar1_unknown, "NVML does not tell the size of BAR1, which bounds registrations",
            "Give this process libnvidia-ml.so.1 (RDMACOLL_NVML_LIBRARY)"};
  }
  if (*usable >= facts.registered_bytes) return {};
  return {Cause::bar1_too_small,
          cat("BAR1 has ", bytes_text(*usable), " free, and ", bytes_text(facts.registered_bytes),
              " are to be registered"),
          "Turn on above-4G decoding in the firmware, and Resizable BAR where there is one"};
}

std::string nearer(const PolicyFacts& facts, std::string otherwise) {
  if (facts.nearer_nic.empty()) return otherwise;
  return cat("Use ", facts.nearer_nic, ", which is nearer (RDMACOLL_DEVICE=", facts.nearer_nic,
             ")");
}

Obstacle unknown_distance(const PolicyFacts& facts) {
  constexpr std::string_view kForce =
      "set RDMACOLL_GPUDIRECT=force if one PCIe switch connects them";
  if (!facts.host.sys_is_readable) {
    return {Cause::no_sys,
            "this container shows no PCIe tree in /sys, so their distance is not known",
            cat("Give the container /sys of the host, or ", kForce)};
  }
  if (facts.way.is_flat) {
    return {Cause::flat_tree,
            "this virtual machine shows a flat PCIe tree, so their distance is not known",
            cat("Ask the provider, and ", kForce)};
  }
  return {Cause::unknown_distance, "the PCIe tree does not tell their distance",
          cat("Look at \"nvidia-smi topo -m\", and ", kForce)};
}

std::string place_text(const PciWay& way) {
  switch (way.distance) {
    case Distance::pix:
      return "same PCIe switch";
    case Distance::pxb:
      return "PCIe switches only";
    case Distance::unknown:
      return "distance not known";
    default:
      return std::string(text(way.distance));
  }
}

std::string slow_reads(const GpuProfile& gpu) {
  if (gpu.capability == 0) {
    return "the GPU's capability is not known, and a NIC reads older GPUs' memory slowly";
  }
  return cat("a NIC reads a ", gpu.name, "'s memory far slower than it writes it");
}

// The decision without a setting. Obstacles that no cure of another one would remove come first, so
// that a cure that is named does help.
DirectionDecision decide_automatically(const PolicyFacts& facts, Direction direction) {
  const GpuProfile& gpu = facts.gpu;
  const PciWay& way = facts.way;
  const bool is_expected = facts.is_used || facts.nearer_nic.empty();
  Obstacle hard = hard_obstacle(facts);
  if (hard.cause == Cause::software_nic || hard.cause == Cause::gpu_unsupported) {
    return staged(std::move(hard), false);
  }
  if (direction == Direction::send && gpu.capability < kFastReads && !gpu.has_nvlink) {
    return staged({Cause::slow_reads, slow_reads(gpu),
                   "Use a GPU of capability 8.0 or newer, or try RDMACOLL_GPUDIRECT=send:force"},
                  false);
  }
  if (way.distance == Distance::sys) {
    return staged({Cause::far_socket, "the GPU and the NIC are at different sockets (SYS)",
                   nearer(facts, "Put the NIC into a slot at the GPU's socket")},
                  is_expected);
  }
  if (way.distance == Distance::phb || way.distance == Distance::node) {
    return staged({Cause::no_shared_switch,
                   cat("no PCIe switch connects the GPU and the NIC (", text(way.distance), ")"),
                   nearer(facts, "Put both below one PCIe switch")},
                  false);
  }
  if (hard.cause != Cause::none) return staged(std::move(hard), is_expected);
  if (way.distance == Distance::unknown) return staged(unknown_distance(facts), is_expected);
  if (way.redirects == Known::yes) {
    return staged(
        {Cause::acs, "ACS of their PCIe switch sends the data up to the processor",
         "Turn ACS off in the firmware or with setpci (in a virtual machine: ATS on in the "
         "NIC)"},
        is_expected);
  }
  if (way.is_translated == Known::yes) {
    return staged(
        {Cause::iommu, "an IOMMU translates addresses, so the data goes up to the processor",
         "Boot with iommu=pt, or turn the IOMMU off in the firmware"},
        is_expected);
  }
  return {.way = registration(facts), .why = place_text(way)};
}

std::string_view verb_of(Direction direction) {
  return direction == Direction::send ? "read" : "write";
}

std::string gpu_text(const GpuProfile& gpu) {
  const std::string name = gpu.name.empty() ? "the GPU" : gpu.name;
  const std::string& which = gpu.uuid.empty() ? gpu.address : gpu.uuid;
  return which.empty() ? name : cat(name, " (", which, ")");
}

DirectionDecision decide_direction(const PolicyFacts& facts, Direction direction, Status& status) {
  const GpuDirectMode mode =
      direction == Direction::send ? facts.setting.send : facts.setting.receive;
  const std::string setting = cat("RDMACOLL_GPUDIRECT=", facts.setting.text());
  if (mode == GpuDirectMode::automatic) return decide_automatically(facts, direction);
  if (mode == GpuDirectMode::off) {
    const bool is_loss = decide_automatically(facts, direction).way != Way::staged;
    return staged({Cause::turned_off, cat(setting, " turns the direct way off"),
                   cat("Unset RDMACOLL_GPUDIRECT")},
                  is_loss && (facts.is_used || facts.nearer_nic.empty()));
  }
  Obstacle hard = hard_obstacle(facts);
  if (hard.cause == Cause::none) {
    return {.way = registration(facts),
            .why = cat("as ", setting, " demands (", place_text(facts.way), ")")};
  }
  if (status.ok()) {
    status =
        Status(Code::invalid, cat(setting, ", but ", facts.nic, " cannot ", verb_of(direction),
                                  " the memory of ", gpu_text(facts.gpu), " itself: ", hard.why,
                                  ". ", hard.change, ", or set RDMACOLL_GPUDIRECT=auto."));
  }
  return staged(std::move(hard), false);
}

std::string warning_of(const PolicyFacts& facts, const Decision& decision) {
  const auto sentence = [&](std::string_view verbs, const DirectionDecision& one) {
    return cat(facts.nic, " does not ", verbs, " the memory of ", gpu_text(facts.gpu),
               " itself, because ", one.why, ". ", one.change, ".");
  };
  const DirectionDecision& send = decision.send;
  const DirectionDecision& receive = decision.receive;
  if (send.is_loss && receive.is_loss && send.cause == receive.cause) {
    return sentence("read and write", send);
  }
  std::string warning;
  if (receive.is_loss) warning = sentence("write", receive);
  if (send.is_loss) warning += cat(warning.empty() ? "" : " ", sentence("read", send));
  return warning;
}

}  // namespace

// The driver reserves a part of it, which also counts as free.
std::optional<uint64_t> usable_bar1(const GpuProfile& gpu) {
  if (!gpu.bar1_bytes) return {};
  return std::min(gpu.bar1_free.value_or(*gpu.bar1_bytes),
                  *gpu.bar1_bytes - std::min(*gpu.bar1_bytes, kBar1Reserved));
}

WriteFlush write_flush_of(int capability, std::optional<int> writes_ordering,
                          std::optional<int> flush_options) {
  const bool is_ordered =
      writes_ordering ? *writes_ordering >= kOrderedForOwner : capability >= kOrderedWrites;
  if (is_ordered) return WriteFlush::none;
  return (flush_options.value_or(0) & kFlushByDriver) != 0 ? WriteFlush::call : WriteFlush::read;
}

std::string DirectionDecision::reason() const {
  if (way == Way::dma_buf) return cat("direct by dma-buf, ", why);
  if (way == Way::peer_memory) return cat("direct by the peer-memory module, ", why);
  return cat("staged through pinned host memory, because ", why);
}

Decision decide(const PolicyFacts& facts) {
  Decision decision;
  decision.send = decide_direction(facts, Direction::send, decision.status);
  decision.receive = decide_direction(facts, Direction::receive, decision.status);
  if (decision.receive.way != Way::staged) {
    decision.flush =
        write_flush_of(facts.gpu.capability, facts.gpu.writes_ordering, facts.gpu.flush_options);
  }
  decision.warning = warning_of(facts, decision);
  return decision;
}

}  // namespace rdmacoll::cuda
