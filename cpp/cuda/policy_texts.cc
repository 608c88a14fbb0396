// Names of the values in policy.h, and what is known of NICs' drivers.
#include <array>

#include "cuda/policy.h"

namespace rdmacoll::cuda {
namespace {

// The first kernel whose driver takes dma-buf; 0: none does. Drivers with peer memory have it with
// the stack of their vendor.
struct NicDriver {
  std::string_view name;
  Known peer_memory;
  int kernel_major;
  int kernel_minor;
};

constexpr std::array kNicDrivers = {
    NicDriver{"mlx5_core", Known::yes, 5, 12}, NicDriver{"mlx4_core", Known::yes, 0, 0},
    NicDriver{"bnxt_en", Known::yes, 6, 6},    NicDriver{"efa", Known::no, 5, 16},
    NicDriver{"irdma", Known::no, 6, 3},       NicDriver{"ice", Known::no, 6, 3},
    NicDriver{"i40e", Known::no, 6, 3},        NicDriver{"hfi1", Known::no, 0, 0},
    NicDriver{"ib_qib", Known::no, 0, 0},      NicDriver{"cxgb4", Known::no, 0, 0},
    NicDriver{"be2net", Known::no, 0, 0},      NicDriver{"enic", Known::no, 0, 0},
    NicDriver{"vmw_pvrdma", Known::no, 0, 0},
};

}  // namespace

NicAbility ability_of(std::string_view driver, int kernel_major, int kernel_minor) {
  for (const NicDriver& row : kNicDrivers) {
    if (row.name != driver) continue;
    if (row.kernel_major == 0) return {row.peer_memory, Known::no};
    if (kernel_major == 0) return {row.peer_memory, Known::unknown};
    const bool is_new = kernel_major > row.kernel_major ||
                        (kernel_major == row.kernel_major && kernel_minor >= row.kernel_minor);
    return {row.peer_memory, is_new ? Known::yes : Known::no};
  }
  return {};
}

std::string_view text(Way way) {
  switch (way) {
    case Way::staged:
      return "staged";
    case Way::peer_memory:
      return "peer_memory";
    case Way::dma_buf:
      return "dma_buf";
  }
  return "";
}

std::string_view text(WriteFlush flush) {
  switch (flush) {
    case WriteFlush::none:
      return "none";
    case WriteFlush::call:
      return "driver";
    case WriteFlush::read:
      return "read";
  }
  return "";
}

std::string_view text(Cause cause) {
  constexpr std::array<std::string_view, 19> kNames = {"none",
                                                       "module_missing",
                                                       "bar1_too_small",
                                                       "far_socket",
                                                       "acs",
                                                       "iommu",
                                                       "no_sys",
                                                       "mig",
                                                       "old_driver",
                                                       "no_dma_buf",
                                                       "turned_off",
                                                       "nic_unsupported",
                                                       "flat_tree",
                                                       "unknown_distance",
                                                       "bar1_unknown",
                                                       "software_nic",
                                                       "gpu_unsupported",
                                                       "slow_reads",
                                                       "no_shared_switch"};
  static_assert(kNames.size() == static_cast<std::size_t>(Cause::no_shared_switch) + 1);
  return kNames[static_cast<std::size_t>(cause)];
}

}  // namespace rdmacoll::cuda
