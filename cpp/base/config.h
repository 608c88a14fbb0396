// The values of the settings that code reads. cpp/settings reads them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/algorithm_range.h"
#include "base/gpudirect.h"
#include "base/log.h"

namespace rdmacoll {

// RDMACOLL_TUNE: when the engine measures which of several ways is faster.
enum class Tune : uint8_t { off, start, online };
// RDMACOLL_CUDA_IPC: whether ranks of a node read arrays on GPUs from each other.
enum class CudaIpc : uint8_t { automatic, off, always };

// Parsed and checked values. An empty optional means automatic.
struct Config {
  std::vector<std::string> transports;  // RDMACOLL_TRANSPORT; empty = auto
  bool names(std::string_view transport) const {
    return std::find(transports.begin(), transports.end(), transport) != transports.end();
  }
  bool allows(std::string_view transport) const { return transports.empty() || names(transport); }
  std::vector<AlgorithmRange> allreduce_algorithms;  // empty = auto
  bool canonical = false;                            // RDMACOLL_ORDER
  bool check_names = true;                           // compare the order of variables by name
  std::string interface;                             // "" = automatic
  uint16_t port = 0;                                 // 0: chosen by the system
  double start_timeout_s = 60;
  double peer_timeout_s = 5;
  double stall_warning_s = 10;
  double stall_error_s = 600;
  uint64_t plan_repeats = 3;
  std::vector<std::vector<int>> process_sets;  // sets that exist from the start, beside the world
  bool has_servers = false;                    // RDMACOLL_MODE=ps
  int servers = 1;                             // RDMACOLL_NUM_SERVERS
  bool is_colocated = false;                   // RDMACOLL_SERVER_PLACEMENT
  bool ps_sync = true;                         // RDMACOLL_PS_SYNC
  std::optional<uint64_t> ps_staleness;        // RDMACOLL_PS_STALENESS; any when unset
  // The number of ranks that are servers only.
  int dedicated_servers() const { return has_servers && !is_colocated ? servers : 0; }
  bool rdma_enabled = true;
  std::string rdma_device;
  std::string rdma_device_by = "RDMACOLL_DEVICE";  // the name of the variable that gave it
  // Attributes of the queue pairs; chosen automatically when unset.
  std::optional<int> rdma_gid_index;
  std::optional<int> rdma_port;
  std::optional<int> rdma_pkey_index;
  std::optional<uint32_t> rdma_queue_depth;
  std::optional<uint8_t> rdma_timeout;
  std::optional<uint8_t> rdma_retries;
  std::optional<uint8_t> rdma_service_level;
  std::optional<uint32_t> rdma_mtu;  // bytes
  std::optional<uint8_t> rdma_traffic_class;
  // The settings that request RDMA: "TF_RDMA_ENABLED=1 TF_RDMA_DEV_NAME=mlx5_0". If RDMA is then
  // unusable, that is an error. "": no setting does.
  std::string rdma_request;
  int tcp_streams = 1;                         // RDMACOLL_TCP_STREAMS
  std::string tcp_congestion;                  // RDMACOLL_TCP_CONGESTION; empty: the system's
  uint64_t chunk_bytes = 4'194'304;            // TF_RDMA_CHUNK_SIZE
  std::optional<uint64_t> accumulation_bytes;  // TF_RDMA_ACC_SIZE; measured when unset
  uint64_t pool_bytes = 1'073'741'824;         // TF_RDMA_BUF_SIZE
  bool pool_is_given = false;                  // set by the user: never made smaller
  std::optional<uint64_t> segment_bytes;       // RDMACOLL_SEGMENT_BYTES; automatic when unset
  std::optional<uint64_t> link_gbit;          // RDMACOLL_LINK_GBIT; read from the kernel when unset
  bool share_results = true;                  // RDMACOLL_SHARE_RESULTS
  std::optional<bool> one_copy;               // RDMACOLL_ONE_COPY: process_vm_readv; automatic
  Tune tune = Tune::start;                    // RDMACOLL_TUNE
  std::string profile;                        // RDMACOLL_PROFILE: "off" or a path; automatic
  std::string cache_folder;                   // this user's, for files that may be lost; "": none
  std::optional<int> compute_workers;         // RDMACOLL_COMPUTE_WORKERS; automatic
  std::optional<double> spin_us;              // RDMACOLL_SPIN_US; automatic
  std::string cuda_library = "libcuda.so.1";  // RDMACOLL_CUDA_LIBRARY
  GpuDirectSetting gpudirect;                 // RDMACOLL_GPUDIRECT
  CudaIpc cuda_ipc = CudaIpc::off;            // RDMACOLL_CUDA_IPC
  std::string nvml_library = "libnvidia-ml.so.1";  // RDMACOLL_NVML_LIBRARY
  std::string gdrcopy_library = "libgdrapi.so.2";  // RDMACOLL_GDRCOPY_LIBRARY; "": none
  LogLevel log_level = LogLevel::warning;

  bool operator==(const Config&) const = default;
};

}  // namespace rdmacoll
