// The rows of the table of settings. Documentation is printed from here. There are no other
// settings.
#include <sstream>

#include "base/text.h"
#include "bootstrap/transports.h"
#include "settings/algorithm_ranges.h"
#include "settings/settings.h"

namespace rdmacoll {
namespace {

constexpr double kKi = 1024.0;
constexpr double kMi = kKi * kKi;
constexpr double kGi = kKi * kMi;
// In nanoseconds this fits 63 bits.
constexpr double kSecondsMax = 1e9;

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> items;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) items.push_back(item);
  return items;
}

std::string transport_names() {
  std::vector<std::string_view> names;
  for (const TransportRow& row : transport_table()) names.push_back(row.name);
  return cat("auto, or a comma list of ", join(names, ", "));
}

constexpr Setting kSettings[] = {
    {"RDMACOLL_RANK", "", "", Unit::count, Scope::rank, "0 to RDMACOLL_SIZE - 1",
     "Start without MPI: the rank of this process.", 0, 1 << 20, nullptr},
    {"RDMACOLL_SIZE", "", "", Unit::count, Scope::rank, "1 or more",
     "Start without MPI: the number of ranks.", 1, 1 << 20, nullptr},
    {"RDMACOLL_RENDEZVOUS", "", "", Unit::text, Scope::rank, "host:port",
     "Start without MPI: where rank 0 listens and the others meet.", 0, 0, nullptr},
    {"RDMACOLL_JOB_ID", "", "", Unit::text, Scope::rank, "any text",
     "Start without MPI: the job's name, the same on all ranks; another job's ranks are refused.",
     0, 0, nullptr},
    {"RDMACOLL_SECRET_FILE", "", "~/.rdmacoll/secret", Unit::text, Scope::rank, "a path",
     "The job's secret where no launcher can carry it: mode 0600; the first process creates it.", 0,
     0, nullptr},
    {"RDMACOLL_INTERFACE", "HOROVOD_GLOO_IFACE", "automatic", Unit::text, Scope::rank,
     "a name (eth0) or a network (10.1.0.0/16)", "The interface to listen on.", 0, 0,
     [](Config& config, const ParsedValue& value) { config.interface = value.text; }},
    {"RDMACOLL_PORT", "", "automatic", Unit::count, Scope::rank, "1 to 65535",
     "The TCP port at which this rank listens, for a firewall that lets no other port through.", 1,
     65535,
     [](Config& config, const ParsedValue& value) {
       config.port = static_cast<uint16_t>(value.integer);
     }},
    {"RDMACOLL_START_TIMEOUT_S", "HOROVOD_START_TIMEOUT", "60", Unit::seconds, Scope::rank,
     "0.001 to 1e9",
     "How long the start waits for all ranks. Unset, a start by hand, by lists of hosts or of serve "
     "waits 1800 s since the last arrival, and MPI_Init waits without limit.",
     0.001, kSecondsMax,
     [](Config& config, const ParsedValue& value) { config.start_timeout_s = value.number; }},
    {"RDMACOLL_TRANSPORT", "", "auto", Unit::choice, Scope::world,
     "",  // settings_table() fills in the names of the transports
     "The transports that may carry data.", 0, 0,
     [](Config& config, const ParsedValue& value) { config.transports = split_list(value.text); }},
    {"RDMACOLL_ALLREDUCE_ALGORITHM", "HOROVOD_HIERARCHICAL_ALLREDUCE", "auto", Unit::choice,
     Scope::world,
     "",  // settings_table() fills in the names of the algorithms
     "Forces an algorithm for every allreduce, or one for those up to each size in bytes.", 0, 0,
     [](Config& config, const ParsedValue& value) {
       config.allreduce_algorithms = value.algorithms;
     }},
    {"RDMACOLL_ORDER", "", "run", Unit::choice, Scope::world, "run or canonical",
     "canonical: every element is summed in one order, whatever the algorithm and the transport.",
     0, 0,
     [](Config& config, const ParsedValue& value) {
       config.canonical = value.text == "canonical";
     }},
    {"RDMACOLL_BUCKET_BYTES", "HOROVOD_FUSION_THRESHOLD", "26214400", Unit::bytes, Scope::world,
     "1 B to 64 GiB", "The gradient list is cut into buckets of about this size.", 1, 64 * kGi,
     nullptr},
    {"RDMACOLL_CHECK_NAMES", "", "true", Unit::flag, Scope::world, "true or false",
     "Ranks compare the names of a model's variables. Ranks that list them in different orders get "
     "an error. false: for models whose names differ between ranks for good reason.",
     0, 0, [](Config& config, const ParsedValue& value) { config.check_names = value.flag; }},
    {"RDMACOLL_PEER_TIMEOUT_S", "", "5", Unit::seconds, Scope::world, "0.1 to 1e9",
     "A peer that is silent for this long has failed.", 0.1, kSecondsMax,
     [](Config& config, const ParsedValue& value) { config.peer_timeout_s = value.number; }},
    {"RDMACOLL_STALL_WARNING_S", "HOROVOD_STALL_CHECK_DISABLE HOROVOD_STALL_CHECK_TIME_SECONDS",
     "10", Unit::seconds, Scope::world, "0.001 to 1e9",
     "A tensor that some ranks have not submitted for this long causes a warning.", 0.001,
     kSecondsMax,
     [](Config& config, const ParsedValue& value) { config.stall_warning_s = value.number; }},
    {"RDMACOLL_STALL_ERROR_S", "HOROVOD_STALL_CHECK_DISABLE HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
     "600", Unit::seconds, Scope::world, "0.001 to 1e9",
     "A tensor that some ranks have not submitted for this long fails with StalledError.", 0.001,
     kSecondsMax,
     [](Config& config, const ParsedValue& value) { config.stall_error_s = value.number; }},
    {"RDMACOLL_PLAN_REPEATS", "", "3", Unit::count, Scope::world, "0 to 16",
     "After this many repetitions of the same order, ranks follow it without messages; 0: never.",
     0, 16, [](Config& config, const ParsedValue& value) { config.plan_repeats = value.integer; }},
    {"RDMACOLL_PROCESS_SETS", "", "none", Unit::choice, Scope::world,
     "none, or the ranks of each set, ascending, with semicolons between sets (0,2;1,3)",
     "Process sets that exist from the start, beside the world.", 0, 0,
     [](Config& config, const ParsedValue& value) { config.process_sets = value.ranks; }},
    {"RDMACOLL_CHECK_WEIGHTS", "", "epoch", Unit::choice, Scope::world,
     "first, epoch, off, or a number of updates (100)",
     "When ranks compare the weights, slots and learning rates of a wrapped optimizer: after its "
     "first update, after each epoch too, or each time after this number of updates; off: never.",
     1, 1e9, nullptr},
    {"RDMACOLL_CHECK_WEIGHTS_TOLERANCE", "", "1e-05", Unit::ratio, Scope::world, "0 to 1e9",
     "The allowed difference between values of two ranks, as a share of the variable's largest "
     "value: processors of different kinds round differently.",
     0, 1e9, nullptr},
    {"RDMACOLL_OBJECTS", "", "pickle", Unit::choice, Scope::world, "pickle or json",
     "How broadcast_object and allgather_object write objects. Pickles are signed with the job's "
     "secret and run code when they are read; json refuses objects that JSON cannot express.",
     0, 0, nullptr},
    {"RDMACOLL_MODE", "", "allreduce", Unit::choice, Scope::world, "allreduce or ps",
     "ps: parameter servers sum what the workers push, and the workers pull the sums.", 0, 0,
     [](Config& config, const ParsedValue& value) { config.has_servers = value.text == "ps"; }},
    {"RDMACOLL_NUM_SERVERS", "", "1", Unit::count, Scope::world, "1 to 4096",
     "The number of parameter servers, which are the last ranks. Colocated servers need no number.", 1,
     4096,
     [](Config& config, const ParsedValue& value) {
       config.servers = static_cast<int>(value.integer);
     }},
    {"RDMACOLL_SERVER_PLACEMENT", "", "dedicated", Unit::choice, Scope::world,
     "dedicated or colocated",
     "dedicated: parameter servers are ranks of their own. colocated: every worker serves a part.",
     0, 0,
     [](Config& config, const ParsedValue& value) {
       config.is_colocated = value.text == "colocated";
     }},
    {"RDMACOLL_PS_SYNC", "", "true", Unit::flag, Scope::world, "true or false",
     "false: parameter servers own the variables and update them at each push; workers do not wait "
     "for each other.",
     0, 0, [](Config& config, const ParsedValue& value) { config.ps_sync = value.flag; }},
    {"RDMACOLL_PS_STALENESS", "", "automatic", Unit::count, Scope::world, "0 to 1000000000",
     "With RDMACOLL_PS_SYNC=false: how many updates the fastest worker may be ahead of the "
     "slowest; when unset, any number.",
     0, 1e9, [](Config& config, const ParsedValue& value) { config.ps_staleness = value.integer; }},
    {"RDMACOLL_RDMA", "TF_RDMA_ENABLED", "true", Unit::flag, Scope::world, "true or false",
     "false: TCP is used in place of RDMA. Set to true: unusable RDMA is an error.", 0, 0,
     [](Config& config, const ParsedValue& value) { config.rdma_enabled = value.flag; }},
    {"RDMACOLL_DEVICE", "TF_RDMA_DEV_NAME RDMA_DEVICE", "automatic", Unit::text, Scope::rank,
     "a device (mlx5_0), a port of it (mlx5_0:2), or several, comma separated",
     "The RDMA device, or several that share the data; when unset, the first one with an active "
     "port.",
     0, 0,
     [](Config& config, const ParsedValue& value) { config.rdma_device = value.text; }},
    {"RDMACOLL_GID_INDEX", "RDMA_GID_INDEX", "automatic", Unit::count, Scope::rank, "0 to 255",
     "The GID of the port, by its index; when unset, the one of RoCE v2 with an IP address.", 0,
     255,
     [](Config& config, const ParsedValue& value) {
       config.rdma_gid_index = static_cast<int>(value.integer);
     }},
    {"RDMACOLL_DEVICE_PORT", "RDMA_DEVICE_PORT", "automatic", Unit::count, Scope::rank, "1 to 255",
     "The port of a device that is named without one; when unset, the first active one.", 1, 255,
     [](Config& config, const ParsedValue& value) {
       config.rdma_port = static_cast<int>(value.integer);
     }},
    {"RDMACOLL_PKEY", "RDMA_PKEY RDMA_QP_PKEY_INDEX", "automatic", Unit::count, Scope::rank,
     "0 to 65535",
     "The partition key, by its index; when unset, the first one with full membership.", 0, 65535,
     [](Config& config, const ParsedValue& value) {
       config.rdma_pkey_index = static_cast<int>(value.integer);
     }},
    {"RDMACOLL_QUEUE_DEPTH", "RDMA_QUEUE_DEPTH RDMA_QP_QUEUE_DEPTH", "automatic", Unit::count,
     Scope::rank, "32 to 32768", "Send requests that one queue pair holds; when unset, 128.", 32,
     32768,
     [](Config& config, const ParsedValue& value) {
       config.rdma_queue_depth = static_cast<uint32_t>(value.integer);
     }},
    {"RDMACOLL_TIMEOUT", "RDMA_TIMEOUT RDMA_QP_TIMEOUT", "automatic", Unit::count, Scope::rank,
     "1 to 31",
     "A queue pair repeats requests that are not acknowledged within 4.096 us times 2 to this "
     "power; when unset, 17 (0.5 s).",
     1, 31,
     [](Config& config, const ParsedValue& value) {
       config.rdma_timeout = static_cast<uint8_t>(value.integer);
     }},
    {"RDMACOLL_RETRY_CNT", "RDMA_RETRY_CNT RDMA_QP_RETRY_COUNT", "automatic", Unit::count,
     Scope::rank, "0 to 7",
     "The repetitions of a request after which the peer has failed; when unset, 6. Soft-RoCE repeats "
     "for ever with 7, so it gets 6.",
     0, 7,
     [](Config& config, const ParsedValue& value) {
       config.rdma_retries = static_cast<uint8_t>(value.integer);
     }},
    {"RDMACOLL_SL", "RDMA_SL RDMA_QP_SL", "automatic", Unit::count, Scope::rank, "0 to 15",
     "The service level of the packets; when unset, 0.", 0, 15,
     [](Config& config, const ParsedValue& value) {
       config.rdma_service_level = static_cast<uint8_t>(value.integer);
     }},
    {"RDMACOLL_MTU", "RDMA_MTU RDMA_QP_MTU", "automatic", Unit::choice, Scope::rank,
     "256, 512, 1024, 2048, 4096 or auto",
     "The largest packet in bytes. The active MTU of the ports at both ends limits it further.", 0, 0,
     [](Config& config, const ParsedValue& value) {
       config.rdma_mtu = static_cast<uint32_t>(std::stoul(value.text));
     }},
    {"RDMACOLL_TRAFFIC_CLASS", "RDMA_TRAFFIC_CLASS", "automatic", Unit::count, Scope::rank,
     "0 to 255", "The traffic class of the packets (RoCE: their DSCP and ECN bits); when unset, 0.",
     0, 255,
     [](Config& config, const ParsedValue& value) {
       config.rdma_traffic_class = static_cast<uint8_t>(value.integer);
     }},
    {"RDMACOLL_GPUDIRECT", "", "auto", Unit::choice, Scope::rank,
     "auto, off or force, or one of them for each direction (send:off,receive:force)",
     "Whether NICs read (send) and write (receive) GPU memory themselves: auto decides for each "
     "GPU and NIC (`rdmacoll doctor` explains it); off stages in host memory; force is an error on "
     "a machine where they cannot.",
     0, 0, [](Config& config, const ParsedValue& value) { config.gpudirect = value.gpudirect; }},
    {"RDMACOLL_NVML_LIBRARY", "", "libnvidia-ml.so.1", Unit::text, Scope::rank, "a name or a path",
     "The library of the GPU driver that tells BAR1 and PCIe addresses of GPUs.", 0, 0,
     [](Config& config, const ParsedValue& value) { config.nvml_library = value.text; }},
    {"RDMACOLL_GDRCOPY_LIBRARY", "", "libgdrapi.so.2", Unit::text, Scope::rank,
     "a name or a path, or off",
     "The library of GDRCopy, by which the processor writes small results to memory of GPUs where "
     "that is measured to be faster than a copy; off copies all.",
     0, 0,
     [](Config& config, const ParsedValue& value) {
       config.gdrcopy_library = value.text == "off" ? "" : value.text;
     }},
    {"RDMACOLL_CHUNK_SIZE", "TF_RDMA_CHUNK_SIZE", "4194304", Unit::bytes, Scope::world,
     "64 B to 1 GiB", "Large tensors are cut into chunks of this size.", 64, kGi,
     [](Config& config, const ParsedValue& value) { config.chunk_bytes = value.integer; }},
    {"RDMACOLL_TCP_STREAMS", "", "1", Unit::count, Scope::world, "1 to 8",
     "The number of TCP connections between two ranks, which share each large transfer. More than "
     "one is faster if one does not fill the link: measure it.",
     1, 8,
     [](Config& config, const ParsedValue& value) {
       config.tcp_streams = static_cast<int>(value.integer);
     }},
    {"RDMACOLL_TCP_CONGESTION", "", "automatic", Unit::text, Scope::rank, "reno, cubic, ...",
     "The congestion control of connections between ranks (see tcp(7), TCP_CONGESTION); when "
     "unset, the system's. If that is bbr, another one may be faster: bbr takes pauses between "
     "messages for a slow network.",
     0, 0, [](Config& config, const ParsedValue& value) { config.tcp_congestion = value.text; }},
    {"RDMACOLL_ACC_SIZE", "TF_RDMA_ACC_SIZE", "automatic", Unit::bytes, Scope::world,
     "0 B to 64 MiB",
     "Small payloads are accumulated into one message of up to this size. Larger ones wait for a "
     "grant of the receiver. When unset, two ranks measure it when they connect: 8 to 64 KiB.",
     0, 64 * kMi,
     [](Config& config, const ParsedValue& value) { config.accumulation_bytes = value.integer; }},
    {"RDMACOLL_BUF_SIZE", "TF_RDMA_BUF_SIZE", "1073741824", Unit::bytes, Scope::world,
     "16 MiB to 16 TiB",
     "The limit of the engine's own buffer memory, which is pinned with RDMA. When unset, with RDMA, "
     "it is at most what the limit on pinned memory allows.",
     16 * kMi, 16 * 1024 * kGi,
     [](Config& config, const ParsedValue& value) { config.pool_bytes = value.integer; }},
    {"RDMACOLL_SEGMENT_BYTES", "", "automatic", Unit::bytes, Scope::world, "64 B to 1 GiB",
     "A batch is cut into segments of this size, several of which are in flight.", 64, kGi,
     [](Config& config, const ParsedValue& value) { config.segment_bytes = value.integer; }},
    {"RDMACOLL_LINK_GBIT", "", "automatic", Unit::count, Scope::world, "1 to 10000",
     "The rate of a node's links to other nodes, for the choice of algorithms; when unset, the rate "
     "that the kernel reports for the interface or the device; if it reports none, 10, with RDMA "
     "100.",
     1, 10'000, [](Config& config, const ParsedValue& value) { config.link_gbit = value.integer; }},
    {"RDMACOLL_ONE_COPY", "", "automatic", Unit::flag, Scope::world, "true or false",
     "Read a neighbour's memory directly (process_vm_readv) within a node: in large alltoalls and "
     "scatters, and in other large collectives where RDMACOLL_TUNE finds it faster; true: in all of "
     "4 MiB or more; false: never.",
     0, 0, [](Config& config, const ParsedValue& value) { config.one_copy = value.flag; }},
    {"RDMACOLL_TUNE", "", "start", Unit::choice, Scope::world, "start, online or off",
     "start: the first sums of each size within a node try the next cheapest algorithms, "
     "and large ones both the pool and RDMACOLL_ONE_COPY; later sums take what is clearly the "
     "fastest; GPUs are measured when they are first used, and data that is staged from them has "
     "segments by that; online: as start, and all sizes are tried again when sums of a plan begin "
     "to take another time; off: all take the cheapest algorithm by the costs of this machine, and "
     "the pool, and nothing is measured on GPUs.",
     0, 0,
     [](Config& config, const ParsedValue& value) {
       config.tune = value.text == "off"      ? Tune::off
                     : value.text == "online" ? Tune::online
                                              : Tune::start;
     }},
    {"RDMACOLL_PROFILE", "", "auto", Unit::text, Scope::rank, "auto, off or a path",
     "What copies and signals cost on this machine, for the choice of algorithms within a node. "
     "auto: kept in the user's cache folder, and measured when it is missing there (20 ms at the "
     "first start on a machine); off: usual figures; a path: kept in this file. `rdmacoll tune` "
     "measures longer, and memory too.",
     0, 0, [](Config& config, const ParsedValue& value) { config.profile = value.text; }},
    {"RDMACOLL_SHARE_RESULTS", "", "true", Unit::flag, Scope::world, "true or false",
     "A node keeps one copy of each large sum of TensorFlow operations, which all its ranks read.",
     0, 0, [](Config& config, const ParsedValue& value) { config.share_results = value.flag; }},
    {"RDMACOLL_COMPUTE_WORKERS", "", "automatic", Unit::count, Scope::rank, "0 to 256",
     "Threads that help the driving thread to reduce and copy.", 0, 256,
     [](Config& config, const ParsedValue& value) {
       config.compute_workers = static_cast<int>(value.integer);
     }},
    {"RDMACOLL_SPIN_US", "", "automatic", Unit::microseconds, Scope::rank, "0 to 1000000",
     "The time for which a waiting thread polls before it sleeps.", 0, 1e6,
     [](Config& config, const ParsedValue& value) { config.spin_us = value.number; }},
    {"RDMACOLL_CUDA_LIBRARY", "", "libcuda.so.1", Unit::text, Scope::rank, "a name or a path",
     "The library of the CUDA driver, which is opened for the first array on a GPU.", 0, 0,
     [](Config& config, const ParsedValue& value) { config.cuda_library = value.text; }},
    {"RDMACOLL_CUDA_IPC", "", "off", Unit::choice, Scope::world, "auto, off or always",
     "Within a node, ranks read arrays on GPUs from each other (CUDA IPC), and GPUs sum them: auto "
     "does so with large arrays, always with those from 4 KiB on; off stages them in host memory.",
     0, 0,
     [](Config& config, const ParsedValue& value) {
       config.cuda_ipc = value.text == "auto"     ? CudaIpc::automatic
                         : value.text == "always" ? CudaIpc::always
                                                  : CudaIpc::off;
     }},
    {"RDMACOLL_TIMELINE", "HOROVOD_TIMELINE", "none", Unit::text, Scope::rank,
     "a path, DYNAMIC or none",
     "The file to which rank 0 writes each operation with its times, in Chrome's trace format. "
     "DYNAMIC: start_timeline() will name the file; it also works without this setting.",
     0, 0, nullptr},
    {"RDMACOLL_LOG", "HOROVOD_LOG_LEVEL", "warning", Unit::choice, Scope::rank,
     "error, warning, info or debug", "The lowest level of the lines on stderr.", 0, 0,
     [](Config& config, const ParsedValue& value) {
       config.log_level = value.text == "error"   ? LogLevel::error
                          : value.text == "info"  ? LogLevel::info
                          : value.text == "debug" ? LogLevel::debug
                                                  : LogLevel::warning;
     }},
};

}  // namespace

std::span<const Setting> settings_table() {
  static const std::string kTransports = transport_names();
  static const std::string kAlgorithms = allowed_algorithm_ranges();
  static const std::vector<Setting> kTable = [] {
    std::vector<Setting> table(std::begin(kSettings), std::end(kSettings));
    for (Setting& setting : table) {
      if (setting.name == "RDMACOLL_TRANSPORT") setting.allowed = kTransports;
      if (setting.name == "RDMACOLL_ALLREDUCE_ALGORITHM") setting.allowed = kAlgorithms;
    }
    return table;
  }();
  return kTable;
}

}  // namespace rdmacoll
