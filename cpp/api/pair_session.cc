#include "api/pair_session.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>

#include "api/rdmacoll_c.h"
#include "api/session.h"
#include "base/text.h"
#include "settings/settings.h"

namespace rdmacoll {
namespace {

constexpr uint32_t kEpoch = 1;
// A measurement has no other work. It sleeps only if the peer is late, not between two messages.
constexpr Nanoseconds kSpin = 2 * kMillisecond;
// If both ranks share a core, a spinning rank keeps the other one from answering.
constexpr Nanoseconds kSharedSpin = 50 * kMicrosecond;

std::string times_json(std::string_view name, const probe::Times& times) {
  if (times.rounds == 0) return "";
  return cat(", \"", name, "_us\": ", times.median_us, ", \"", name, "_us_min\": ", times.min_us,
             ", \"", name, "_us_max\": ", times.max_us, ", \"", name, "_rounds\": ", times.rounds);
}

std::string speeds_json(const probe::Speeds& speeds) {
  if (speeds.forward == 0) return "";
  return cat(", \"GB_per_s_forward\": ", speeds.forward, ", \"GB_per_s_back\": ", speeds.back,
             ", \"GB_per_s_both\": ", speeds.both);
}

std::string row_json(const probe::Row& row) {
  return cat("{\"bytes\": ", row.bytes, times_json("latency", row.latency),
             times_json("exchange", row.exchange), speeds_json(row.speeds), "}");
}

}  // namespace

Status PairSession::open(int side, std::array<int, 2> numbers, std::string job,
                         std::vector<std::byte> secret, std::string_view arguments,
                         std::unique_ptr<PairSession>& session) {
  RC_ASSERT(side == 0 || side == 1, cat("side ", side));
  std::unique_ptr<PairSession> opened(new PairSession(side));
  std::vector<SettingValue> settings;
  RC_RETURN_IF_ERROR(read_config(arguments, environment, opened->config_, settings));
  std::string note;  // the engine of this rank has logged it
  RC_RETURN_IF_ERROR(create_pool(opened->config_, 2, opened->pool_, note));
  FabricOptions options{.rank = side,
                        .size = 2,
                        .numbers = {numbers.begin(), numbers.end()},
                        .job = std::move(job),
                        .secret = std::move(secret),
                        .epoch = kEpoch,
                        .config = opened->config_,
                        .abi = RC_ABI_VERSION,
                        .settings = world_settings(settings)};
  RC_RETURN_IF_ERROR(
      Fabric::open(std::move(options), *opened->pool_, opened->clock_, opened->fabric_));
  session = std::move(opened);
  return {};
}

Status PairSession::probe_node(const std::array<std::string, 2>& cards, int& leader) {
  return fabric_->probe_node({cards.begin(), cards.end()}, leader);
}

Status PairSession::run(const std::array<int, 2>& leaders, const probe::Plan& plan,
                        std::string& json) {
  RC_RETURN_IF_ERROR(fabric_->make_world({leaders.begin(), leaders.end()}, world_));
  RC_RETURN_IF_ERROR(fabric_->begin(world_));
  shares_a_core_ = world_.oversubscription(cores_allowed()).is_oversubscribed();
  const probe::Setting setting{
      clock_, [this](Nanoseconds since, Nanoseconds until) { idle(since, until); }, plan};
  probe::TaskRunner runner(*fabric_, world_, 1 - side_, *pool_, clock_);
  RC_RETURN_IF_ERROR(connect(runner, setting));
  std::vector<probe::Row> rows;
  RC_RETURN_IF_ERROR(side_ == 0 ? probe::lead(runner, setting, rows)
                                : probe::follow(runner, setting));
  json = report(rows);
  return {};
}

Status PairSession::connect(probe::TaskRunner& runner, const probe::Setting& setting) {
  // Connecting has its own deadlines, and its errors say what it waits for.
  probe::Setting patient = setting;
  patient.plan.progress_timeout = setting.plan.limit;
  fabric_->connect(1 - side_);
  return probe::turn_until(runner, patient, clock_.now() + setting.plan.limit, "connecting",
                           [&] { return fabric_->is_connected(1 - side_); });
}

void PairSession::idle(Nanoseconds since, Nanoseconds until) const {
  const Nanoseconds now = clock_.now();
  if (now - since < (shares_a_core_ ? kSharedSpin : kSpin)) {
    if (shares_a_core_) sched_yield();
    return;
  }
  if (!fabric_->arm()) return;
  const Nanoseconds left = std::min(until, fabric_->next_deadline()) - now;
  pollfd event{.fd = fabric_->wait_handle(), .events = POLLIN, .revents = 0};
  ::poll(&event, 1, static_cast<int>(std::clamp<Nanoseconds>(left / kMillisecond + 1, 0, 1000)));
}

std::string PairSession::report(const std::vector<probe::Row>& rows) const {
  std::vector<std::string> rails, texts;
  for (const std::string& port : fabric_->ports()) rails.push_back(json_quote(port));
  for (const probe::Row& row : rows) texts.push_back(row_json(row));
  return cat("{\"transport\": ", json_quote(fabric_->reach(1 - side_).transport), ", \"rails\": [",
             join(rails, ", "), "], \"acc_size\": ", fabric_->reach(1 - side_).eager_bytes,
             ", \"rows\": [", join(texts, ", "), "]}");
}

}  // namespace rdmacoll
