#include "api/session.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>

#include "api/quota_share.h"
#include "api/rdmacoll_c.h"
#include "base/cgroup.h"
#include "base/fd.h"
#include "base/text.h"
#include "bootstrap/numa.h"
#include "cuda/cuda_memory.h"
#include "memory/process_limits.h"

namespace rdmacoll {
namespace {

// The goodbye limit of a world that is not connected: ranks without a connection hear nothing.
constexpr Nanoseconds kEarlyGoodbyeLimit = 200 * kMillisecond;
constexpr uint32_t kFirstEpoch = 1;
constexpr Nanoseconds kLogWaitingEvery = 10 * kSecond;

// The size of the ring of work memory (execution/ring_allocator.h): twice a second-level cache. The
// limits hold for caches that the C library takes for unknown, or that a hypervisor invents.
uint64_t ring_bytes() {
  constexpr long kLeast = 256 << 10, kMost = 4 << 20, kUsual = 1 << 20;
  const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return 2 * static_cast<uint64_t>(bytes > 0 ? std::clamp(bytes, kLeast, kMost) : kUsual);
}

// Global, since fork() copies descriptors of the whole process.
std::atomic<bool> forked_child{false};

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] {
      // Otherwise a child with open sockets would hide this process's death from other ranks.
      close_all_descriptors_in_child();
      forked_child.store(true);
    });
  });
}

// SIGUSR1 prints the state, which shows what this rank waits for. If the program handles the
// signal, its handler stays.
std::atomic<Driver*> signalled_driver{nullptr};

void listen_for_state_signal(Driver* driver) {
  signalled_driver.store(driver);
  struct sigaction current {};
  if (sigaction(SIGUSR1, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
  struct sigaction action {};
  action.sa_handler = [](int) {
    const int saved = errno;
    Driver* const driver = signalled_driver.load();
    if (driver != nullptr && !forked_child.load()) driver->request_state();
    errno = saved;
  };
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
}

void forget_state_signal(Driver* driver) {
  signalled_driver.compare_exchange_strong(driver, nullptr);
}

// The file that the settings name, or "".
std::string timeline_from(const std::vector<SettingValue>& settings) {
  const auto found = std::find_if(settings.begin(), settings.end(), [](const SettingValue& value) {
    return value.setting->name == "RDMACOLL_TIMELINE";
  });
  const bool is_path = found->value != found->setting->default_value && found->value != "DYNAMIC";
  return is_path ? found->value : "";
}

Status check_servers(const Config& config, int size) {
  const int servers = config.dedicated_servers();
  if (servers < size) return {};
  return {Code::invalid, cat("RDMACOLL_NUM_SERVERS=", servers, " leaves no worker among ", size,
                             size == 1 ? " rank" : " ranks", ": start ", servers + 1,
                             " or more, or set RDMACOLL_SERVER_PLACEMENT=colocated.")};
}

}  // namespace

Status create_pool(Config& config, int ranks, std::unique_ptr<MemoryPool>& pool,
                   std::string& note) {
  // The node has at most as many ranks as processors, unless it is oversubscribed.
  const int ranks_here = std::min(ranks, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  const PoolRequest request{config.pool_bytes, config.pool_is_given, ranks_here};
  RC_RETURN_IF_ERROR(fit_pool(request, process_limits(), config.pool_bytes, note));
  return MemoryPool::create(config.pool_bytes, pool);
}

Status refuse_forked_child() {
  if (!is_forked_child()) return {};
  return {Code::uninitialized,
          "this process was forked from one that runs rdmacoll and cannot use it. Start workers "
          "with the \"spawn\" method, or call init() only after forking."};
}

bool is_forked_child() { return forked_child.load(std::memory_order_relaxed); }

int cores_allowed() { return std::max(1, static_cast<int>(allowed_cpus().size())); }

Status Session::open(int rank, int size, std::string job, std::vector<std::byte> secret,
                     std::string_view arguments, std::unique_ptr<Session>& session,
                     SessionMachine machine) {
  RC_RETURN_IF_ERROR(refuse_forked_child());
  if (size < 1 || rank < 0 || rank >= size) {
    return {Code::invalid, cat("rank ", rank, " of ", size, " ranks is not possible.")};
  }
  watch_forks();
  std::unique_ptr<Session> opened(new Session);
  opened->machine_ = std::move(machine);
  RC_RETURN_IF_ERROR(read_config(arguments, environment, opened->config_, opened->settings_));
  RC_RETURN_IF_ERROR(check_servers(opened->config_, size));
  opened->rank_ = rank;
  opened->size_ = size;
  opened->log_ = Log(opened->config_.log_level, rank);
  if (rank == 0) {
    for (const SettingValue& value : opened->settings_) {
      if (!value.warning.empty()) opened->log_.warning(value.warning);
      if (!value.note.empty()) opened->log_.info(value.note);
    }
  }
  if (rank == 0) RC_RETURN_IF_ERROR(opened->set_timeline(timeline_from(opened->settings_)));
  std::unique_ptr<MemoryPool> pool;
  std::string note;
  RC_RETURN_IF_ERROR(create_pool(opened->config_, size, pool, note));
  opened->pool_ = std::move(pool);
  if (!note.empty()) opened->log_.warning(note);
  FabricOptions options{.rank = rank,
                        .size = size,
                        .job = std::move(job),
                        .secret = std::move(secret),
                        .epoch = kFirstEpoch,
                        .config = opened->config_,
                        .abi = RC_ABI_VERSION,
                        .settings = world_settings(opened->settings_),
                        .transports = opened->machine_.transports};
  RC_RETURN_IF_ERROR(
      Fabric::open(std::move(options), *opened->pool_, opened->clock_, opened->fabric_));
  session = std::move(opened);
  return {};
}

Status Session::probe_node(const std::vector<std::string>& cards, int& leader) {
  RC_RETURN_IF_ERROR(fabric_->probe_node(cards, leader));
  leads_node_ = leader == rank_ && fabric_->has_neighbours();
  return {};
}

Status Session::start(const std::vector<int>& leaders, Nanoseconds timeout) {
  if (set_up_result_.is_busy()) set_up_result_ = set_up(leaders);
  RC_RETURN_IF_ERROR(set_up_result_);
  const Nanoseconds left = std::max<Nanoseconds>(0, start_deadline_ - clock_.now());
  const Status status = driver_->connect(std::min(timeout, left));
  if (status.is_busy() && clock_.now() >= start_deadline_) {
    return {Code::failed, cat("the connections to the other ranks did not stand within ",
                              config_.start_timeout_s, " s:\n", state())};
  }
  if (status.is_busy()) log_waiting();
  RC_RETURN_IF_ERROR(status);
  if (is_started_) return {};
  RC_RETURN_IF_ERROR(driver_->start());
  is_started_ = true;
  listen_for_state_signal(driver_.get());
  return {};
}

void Session::log_waiting() {
  const Nanoseconds now = clock_.now();
  if (now < waiting_logged_at_ + kLogWaitingEvery) return;
  waiting_logged_at_ = now;
  const Nanoseconds since = start_deadline_ - from_seconds(config_.start_timeout_s);
  const std::string peers = driver_->inspect([&](Engine&) { return fabric_->waiting(); });
  if (peers.empty()) return;
  log_.warning(
      cat("waiting for ", peers, " (for ", (now - since) / kSecond,
          " s). Does a firewall let these ports through (RDMACOLL_PORT sets this rank's), and "
          "are they addresses of the right interface (RDMACOLL_INTERFACE)?"));
}

int Session::forward_rendezvous() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return -1;
  fabric_->forward_rendezvous_to(Fd(ends[1]));
  return ends[0];
}

// Everything except the connections.
Status Session::set_up(const std::vector<int>& leaders) {
  RC_RETURN_IF_ERROR(fabric_->make_world(leaders, world_));
  world_.servers = config_.dedicated_servers();
  if (config_.has_servers && !config_.ps_sync) {
    const int first = config_.is_colocated ? 0 : world_.workers();
    for (int rank = first; rank < world_.size(); ++rank) world_.members[rank].stores = true;
  }
  RC_RETURN_IF_ERROR(fabric_->begin(world_));
  if (rank_ == 0) log_transport();
  RC_RETURN_IF_ERROR(look_at_gpus());
  const int cores = cores_allowed();
  if (cores == 1 && sysconf(_SC_NPROCESSORS_ONLN) > 1 && world_.size() > 1) {
    log_.warning(
        "this rank may use one core only, where TensorFlow and the engine fight over it. Give each "
        "rank several: mpirun --bind-to none (Open MPI), -bind-to none (MPICH), srun "
        "--cpu-bind=none, or a wider taskset around another launcher.");
  }
  const Oversubscription oversubscription = world_.oversubscription(cores);
  const double quota = quota_share(world_, group_cores());
  // More threads would only use the quota up earlier in each period.
  const int granted = static_cast<int>(std::min<double>(cores, std::max(1.0, quota)));
  LinkModel links = this->links();
  links.memory.cores = world_.local_size() * std::min(oversubscription.cores_per_rank(), quota);
  const int share = oversubscription.cpus / oversubscription.ranks;
  compute_ = make_compute(std::min(granted, share), links);
  Tuning tuning = tuning_for(links);
  if (config_.one_copy == true) {
    tuning.one_copy_bytes = tuning.one_copy_bytes_exchange = tuning.one_copy_bytes_scattered;
  }
  engine_ = std::make_unique<Engine>(EngineParts{world_, config_, *fabric_, *compute_, *pool_,
                                                 clock_, log_, tuning, ring_bytes()});
  engine_->record_to(std::move(first_timeline_));
  for (const std::vector<int>& ranks : config_.process_sets) {
    uint32_t number = 0;
    RC_RETURN_IF_ERROR(engine_->add_set({ranks.begin(), ranks.end()}, number));
  }
  driver_ = std::make_unique<Driver>(*engine_, *fabric_, clock_,
                                     driver_options(oversubscription, granted));
  waiting_logged_at_ = clock_.now();
  start_deadline_ = waiting_logged_at_ + from_seconds(config_.start_timeout_s);
  return driver_->open();
}

// The usual model of this kind of link, with the known rate, and with the measured costs within a
// node.
LinkModel Session::links() const {
  const double gbit =
      config_.link_gbit ? static_cast<double>(*config_.link_gbit) : fabric_->link_gbit_per_s();
  return probe::with_profile(usual_links(fabric_->via_nic(), gbit), profile_);
}

void Session::log_transport() const {
  for (const std::string& choice : fabric_->choices()) log_.say(choice);
  for (const std::string& note : fabric_->notes()) log_.warning(note);
}

Status Session::usable() const {
  RC_RETURN_IF_ERROR(refuse_forked_child());
  if (driver_ == nullptr) return {Code::uninitialized, "rdmacoll was not started: call init()."};
  return {};
}

Status Session::resolve(JobRank root, Request& request) const {
  request.shares_results = request.shares_results && config_.share_results;
  if (!is_known(request.kind) || !row_of(request.kind).has_root) return {};
  // In the world both ranks are equal. check() refuses one that does not exist.
  request.root = request.set == 0 ? SetRank(root.value()) : engine_->rank_in(request.set, root);
  if (request.set != 0 && request.root.is_none()) {
    return {Code::invalid, cat("root_rank ", root, " is not in process set ", request.set,
                               ": the root of its operations is one of its ranks.")};
  }
  return {};
}

void Session::refuse(Request request) {
  if (!is_known(request.kind) || request.kind == Kind::join) return;
  if (request.name.size() > kNameBytesMax) return;  // no rank can have submitted it
  // An error means that this rank takes no part. Its caller knows the reason.
  (void)driver_->submit(std::make_shared<Operation>(std::move(request)));
}

Status Session::serve(Nanoseconds timeout, std::string& left) {
  if (!world_.is_server(world_.rank)) {
    return {Code::invalid, cat(world_.describe(world_.rank), " is no parameter server.")};
  }
  RC_RETURN_IF_ERROR(driver_->serve(timeout));
  std::vector<std::string> causes;
  driver_->inspect([&](Engine& engine) {
    for (const auto& [rank, cause] : engine.left()) {
      causes.push_back(cat("\"", rank, "\": ", json_quote(cause)));
    }
  });
  left = cat("{", join(causes, ", "), "}");
  return {};
}

bool Session::blame(int rank, const std::string& sentence, const std::string& cause) {
  if (!usable().ok() || rank < 0 || rank >= world_.size()) return false;
  return driver_->inspect([&](Engine& engine) {
    engine.blame(world_.blaming(rank, sentence, cause));
    return engine.failure().detail().rank == JobRank(rank);
  });
}

void Session::close(const std::string& cause) {
  if (closed_ || is_forked_child()) return;
  closed_ = true;
  if (driver_ == nullptr) return;
  forget_state_signal(driver_.get());
  if (const std::string summary = rank_ == 0 ? gpu_summary() : ""; !summary.empty()) {
    log_.info(cat("this rank", summary, "."));
  }
  const Nanoseconds limit = goodbye_limit(from_seconds(config_.peer_timeout_s));
  driver_->stop(cause, is_started_ ? limit : kEarlyGoodbyeLimit);
  Compute* compute = nullptr;
  {
    const std::lock_guard lock(device_memory_mutex_);
    if (device_memory_ != nullptr) device_memory_->close();  // no waker of it calls the driver
    compute = compute_.get();
  }
  compute->finish_tasks();  // memory of callbacks may be freed after close()
}

Session::~Session() {
  if (is_forked_child()) {  // threads and descriptors belong to the parent
    (void)driver_.release();
    (void)engine_.release();
    (void)compute_.release();
    (void)device_memory_.release();
    (void)fabric_.release();
    new std::shared_ptr<MemoryPool>(std::move(pool_));
    return;
  }
  close("");
  driver_.reset();
  engine_.reset();
  compute_.reset();
  cuda::CudaMemory::end(std::move(device_memory_), pool_);
  fabric_.reset();
}

void Session::topology(int32_t out[6]) const {
  const World world = world_.is_server(world_.rank) ? world_ : world_.of_workers();
  out[0] = world.rank;
  out[1] = world.size();
  out[2] = world.local_rank();
  out[3] = world.local_size();
  out[4] = world.cross_rank();
  out[5] = world.cross_size();
}

std::string Session::metrics() {
  return driver_->inspect([this](Engine& engine) { return engine.metrics_json(driver_->waits()); });
}

std::string Session::describe() {
  const std::string transport = fabric_->transport_name();
  std::vector<std::string> nodes;  // by worker
  for (const int node : world_.of_workers().nodes()) nodes.push_back(cat(node));
  return cat(
      "{\"transport\": ", json_quote(transport), ", \"determinism\": \"",
      config_.canonical ? "canonical" : "run", "\", \"servers\": ", world_.servers,
      ", \"is_server\": ", world_.is_server(rank_) ? "true" : "false", ", \"summary\": ",
      json_quote(cat("rank ", rank_, " of ", world_.size(), " over ", transport, gpu_summary())),
      ", \"nodes\": [", join(nodes, ", "), "]}");
}

std::string Session::state() {
  return driver_->inspect([](Engine& engine) { return engine.state(); });
}

}  // namespace rdmacoll
