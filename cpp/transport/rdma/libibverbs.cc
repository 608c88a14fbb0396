#include "transport/rdma/libibverbs.h"

#include <cerrno>
#include <filesystem>

#include "base/runtime_library.h"
#include "base/system_error.h"
#include "base/text.h"
#include "transport/rdma/error_texts.h"

namespace rdmacoll::rdma {
namespace {

// The library keeps its first interface under the same names, and a lookup without a version may
// find it. Two functions are the same in both interfaces and have only the first version.
constexpr const char* kSymbolVersion = "IBVERBS_1.1";
constexpr const char* kFirstVersion = "IBVERBS_1.0";

Status find_functions(RuntimeLibrary& opened, Library& library) {
  const auto need = [&](const char* name, auto& function, const char* version = kSymbolVersion) {
    opened.need(name, function, version);
  };
  need("ibv_get_device_list", library.device_list);
  need("ibv_free_device_list", library.free_device_list);
  need("ibv_open_device", library.open_device);
  need("ibv_close_device", library.close_device);
  need("ibv_query_device", library.query_device);
  need("ibv_query_port", library.query_port);
  need("ibv_query_gid", library.query_gid);
  need("ibv_query_pkey", library.query_pkey);
  need("ibv_alloc_pd", library.allocate_domain);
  need("ibv_dealloc_pd", library.free_domain);
  need("ibv_reg_mr", library.register_memory);
  need("ibv_dereg_mr", library.deregister_memory);
  need("ibv_create_cq", library.create_queue);
  need("ibv_destroy_cq", library.destroy_queue);
  need("ibv_get_cq_event", library.take_queue_event);
  need("ibv_ack_cq_events", library.acknowledge_queue_events);
  need("ibv_create_qp", library.create_pair);
  need("ibv_modify_qp", library.modify_pair);
  need("ibv_destroy_qp", library.destroy_pair);
  need("ibv_get_async_event", library.take_async_event);
  need("ibv_ack_async_event", library.acknowledge_async_event);
  need("ibv_event_type_str", library.event_text);
  need("ibv_fork_init", library.fork_init);
  need("ibv_create_comp_channel", library.create_channel, kFirstVersion);
  need("ibv_destroy_comp_channel", library.destroy_channel, kFirstVersion);
  opened.take_if_there("_ibv_query_gid_table", library.query_gid_table);
  opened.take_if_there("ibv_is_fork_initialized", library.fork_status);
  opened.take_if_there("ibv_reg_dmabuf_mr", library.register_dma_buf);
  if (opened.missing().empty()) return {};
  return library_missing(cat("it lacks the function ", opened.missing()));
}

// Pages that a device knows must not move when the process forks. Newer kernels ensure this
// themselves.
std::string prepare_for_forks(const Library& library) {
  const int error = library.fork_init();
  if (error == 0) return "";
  return cat("registered memory is not protected when this process forks (ibv_fork_init: ",
             error_text(error),
             "; this happens if another library has registered memory before). Set "
             "RDMAV_FORK_SAFE=1 before the start, or do not fork.");
}

struct Loaded {
  Library library{};
  Status status;

  Loaded() {
    RuntimeLibrary opened("libibverbs.so.1");
    status = opened.problem().empty() ? find_functions(opened, library)
                                      : library_missing(opened.problem());
    if (status.ok()) library.warning = prepare_for_forks(library);
  }
};

std::vector<std::string> device_files() {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/dev/infiniband", error), end;
       !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().string().rfind("uverbs", 0) == 0) names.push_back(entry->path());
  }
  return names;
}

KernelView kernel_view(const Sysfs& sysfs) {
  std::error_code error;
  return {.devices = sysfs.devices(),
          .has_verbs_class = std::filesystem::exists("/sys/class/infiniband_verbs", error),
          .device_files = device_files()};
}

// The library's list of devices, freed at destruction. Open devices survive that.
class DeviceList {
 public:
  explicit DeviceList(const Library& library) : library_(library) {
    list_ = library.device_list(&count_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ~DeviceList() {
    if (list_ != nullptr) library_.free_device_list(list_);
  }
  ibv_device** begin() const { return list_; }
  ibv_device** end() const { return list_ + count_; }
  bool is_empty() const { return list_ == nullptr || count_ == 0; }

 private:
  const Library& library_;
  ibv_device** list_ = nullptr;
  int count_ = 0;
};

class SystemVerbs final : public Verbs {
 public:
  explicit SystemVerbs(const Library& library) : library_(library) {}

  Status list(std::vector<DeviceFacts>& devices) override {
    devices.clear();
    const DeviceList present(library_);
    if (present.is_empty()) return nothing_listed(kernel_view(sysfs_));
    for (ibv_device* device : present) devices.push_back(look_at(device));
    return {};
  }

  Status open(const OpenOptions& options, std::unique_ptr<Device>& device) override {
    const DeviceList present(library_);
    if (present.is_empty()) RC_RETURN_IF_ERROR(nothing_listed(kernel_view(sysfs_)));
    for (ibv_device* each : present) {
      if (each->name != options.device) continue;
      ibv_context* opened = library_.open_device(each);
      if (opened == nullptr) return {Code::failed, cat(each->name, " ", not_opened(errno), ".")};
      auto context = std::make_unique<Context>(library_, opened);
      DeviceFacts facts = facts_of(*context, sysfs_);
      return open_verbs_device(std::move(context), std::move(facts), options.completions, device);
    }
    return {Code::failed, cat("the RDMA device ", options.device,
                              " is not there any more: look at rdma link, and start again.")};
  }

  std::string warning() const override { return library_.warning; }

  bool copies_for_forks() const override {
    return library_.fork_status != nullptr && library_.fork_status() == IBV_FORK_UNNEEDED;
  }

 private:
  DeviceFacts look_at(ibv_device* device) const {
    DeviceFacts facts{.name = device->name};
    facts.firmware = sysfs_.firmware(facts.name);
    facts.node_guid = sysfs_.node_guid(facts.name);
    facts.is_software = sysfs_.is_software(facts.name);
    facts.numa_node = sysfs_.numa_node(facts.name);
    if (device->transport_type == IBV_TRANSPORT_IWARP) {
      facts.unusable = "is an iWARP device, which has no writes with immediate data";
      return facts;
    }
    if (device->transport_type != IBV_TRANSPORT_IB) {
      facts.unusable = "has no reliable connections";
      return facts;
    }
    ibv_context* opened = library_.open_device(device);
    if (opened == nullptr) {
      facts.unusable = not_opened(errno);
      return facts;
    }
    return facts_of(Context(library_, opened), sysfs_);
  }

  const Library& library_;
  Sysfs sysfs_;
};

}  // namespace

Status load_library(const Library*& library) {
  // One per process, as the library itself.
  static const Loaded* loaded = new Loaded;
  library = &loaded->library;
  return loaded->status;
}

Status system_verbs(Verbs*& verbs) {
  const Library* library = nullptr;
  RC_RETURN_IF_ERROR(load_library(library));
  static SystemVerbs system(*library);
  verbs = &system;
  return {};
}

}  // namespace rdmacoll::rdma
