#include "engine/front/front.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "engine/base/files.hpp"
#include "engine/base/size_units.hpp"
#include "engine/front/forwarding_version.hpp"
#include "engine/serve/model_version.hpp"

namespace flow {

namespace {

using std::chrono::milliseconds;
using Clock = Front::Clock;

constexpr auto kRejoinTime = std::chrono::seconds(10);   // for the replicas of a version that died
constexpr auto kLastResponses = milliseconds(200);       // for those that are sent at a drain's end
constexpr auto kUnusedLease = std::chrono::seconds(10);  // of a front that never listened
constexpr uint32_t kPercentMax = 100;
constexpr size_t kTrafficFileMax = 1 << 20;  // bytes
constexpr auto kNever = Clock::time_point::max();

std::string text_of(Clock::duration duration) {
  return format_duration(std::chrono::duration_cast<milliseconds>(duration).count());
}

/// Whether a replica that died may still join again.
bool awaits_rejoin(const ServiceVersion& version, Clock::time_point now) {
  return version.lost() > 0 && now < version.lost_at() + kRejoinTime;
}

constexpr std::string_view kMeasured = "measured ";

struct Traffic {
  TrafficWeights weights;
  std::string measured;  // as in Front
};

/// One line for each version: percent, a blank, and its id; and one for the measured version.
std::string text_of(const Traffic& traffic) {
  std::string text;
  for (const auto& [version, percent] : traffic.weights)
    text += fmt::format("{} {}\n", percent, version);
  if (!traffic.measured.empty()) text += fmt::format("{}{}\n", kMeasured, traffic.measured);
  return text;
}

Traffic traffic_of(std::string_view text) {
  Traffic traffic;
  for (size_t end = 0; (end = text.find('\n')) != std::string_view::npos;
       text.remove_prefix(end + 1)) {
    std::string_view line = text.substr(0, end);
    if (line.starts_with(kMeasured)) traffic.measured = line.substr(kMeasured.size());
    uint32_t percent = 0;
    auto [at, error] = std::from_chars(line.data(), line.data() + line.size(), percent);
    bool is_sound = error == std::errc() && at != line.data() + line.size() && *at == ' ';
    if (is_sound && percent <= kPercentMax)
      traffic.weights[std::string(at + 1, line.data() + line.size())] = percent;
  }
  return traffic;
}

}  // namespace

Result<std::unique_ptr<Front>> Front::start(EventLoop& loop, FrontOptions options) {
  // Apart, so that a response never waits for requests that take long to decode.
  auto decoder = ThreadPool::start({.name = "flow-decode"});
  FLOW_TRY(decoder);
  auto encoder = ThreadPool::start({.name = "flow-encode"});
  FLOW_TRY(encoder);
  if (!options.log) options.log = [](const std::string&) {};
  return std::unique_ptr<Front>(
      new Front(loop, std::move(options), std::move(*decoder), std::move(*encoder)));
}

Front::Front(EventLoop& loop, FrontOptions options, std::unique_ptr<ThreadPool> decoder,
             std::unique_ptr<ThreadPool> encoder)
    : loop_(loop),
      options_(std::move(options)),
      requests_(loop, {.path = options_.access_log}),
      canary_until_(Clock::now() + milliseconds(options_.canary_wait_ms)),
      idle_since_(Clock::now()),
      routes_(loop, *decoder, versions_,
              {.route = [this](const std::string& model,
                               const std::string& version) { return route(model, version); },
               .admitted = [this] { wake_in_time(); },
               .is_ready = [this] { return is_ready(); },
               .is_draining = [this] { return is_draining(); }}),
      backend_(loop, versions_, requests_,
               {.route = [this](const std::string& model,
                                const std::string& version) { return route(model, version); },
                .admitted = [this] { wake_in_time(); },
                .describe = [this](Endpoint endpoint) { return routes_.describe(endpoint); }}),
      listener_(loop, backend_, requests_, {options_.port_file, options_.grpc_port_file},
                {.handle =
                     [this](HttpRequest request, HttpReply reply) {
                       routes_.handle(std::move(request), std::move(reply));
                     },
                 .authorize = [this](std::string_view path,
                                     std::string_view key) { return routes_.permits(path, key); },
                 .refusal = [this](const HttpRequest& head) { return routes_.refusal(head); },
                 .log =
                     [this](const std::string& line) {
                       const VersionSet::Entry* primary = versions_.primary();
                       primary == nullptr ? options_.log(line) : primary->version->log(line);
                     }}),
      decoder_(std::move(decoder)),
      encoder_(std::move(encoder)),
      timer_(loop, [this] { update(); }) {
  if (!options_.traffic_file.empty()) {
    auto stored = read_file(options_.traffic_file, kTrafficFileMax);
    if (stored.ok()) {
      Traffic traffic = traffic_of(*stored);
      versions_.restore_traffic(std::move(traffic.weights),
                                Clock::now() + milliseconds(options_.rejoin_ms));
      measured_ = std::move(traffic.measured);
      restores_traffic_ = true;
    }
  }
  loop_.post([this] { update(); });
}

Front::~Front() { backend_.close(); }

// ---- Replicas

Status Front::join(FrontReplica& replica, JoinRequest request) {
  if (is_draining() || has_ended_)
    return Error{ErrorKind::interrupted, "the front of the service ends"};
  FLOW_TRY(check_listener(request));
  ServiceVersion* version = versions_.find(request.version);
  const bool is_first = version == nullptr;
  if (is_first) {
    if (versions_.all().size() >= VersionSet::kVersionsMax)
      return user_error(
          fmt::format("the service `{}` has {} versions already, and may have {}: "
                      "stop the runs that serve old ones",
                      request.options.name, versions_.all().size(), VersionSet::kVersionsMax));
    if (!listener_.is_open()) FLOW_TRY(listener_.open(request.options));
    version = &versions_.add(new_version(request));
  } else {
    versions_.set_options(*version, std::move(request.options));
  }
  forgotten_.erase(version->id());
  replica.joined(listener_.url());
  version->add(replica, std::move(request.replica));
  if (is_first && !listener_.grpc_address().empty())
    version->log("gRPC: " + listener_.grpc_address());
  update();
  return {};
}

/// An only version that was resumed with another address or kind needs another listener: the next
/// front opens it.
Status Front::check_listener(const JoinRequest& request) {
  if (!listener_.is_open()) return {};
  Status fits = listener_.check_kind(request.options);
  if (fits.ok()) fits = listener_.check(request.options);
  bool is_only = versions_.all().size() == 1 && versions_.find(request.version) != nullptr;
  if (fits.ok() || !is_only) return fits;
  options_.log(fmt::format("the front ends, because version {} was resumed with other options: {}",
                           request.version, fits.error().message));
  start_drain({{}, Clock::now()});
  return Error{ErrorKind::interrupted, "the front of the service ends"};
}

std::shared_ptr<ServiceVersion> Front::new_version(const JoinRequest& request) {
  auto changed = [this] { update_soon(); };
  if (request.options.forwards)
    return std::make_shared<ForwardingVersion>(request.version, request.options, loop_,
                                               options_.log, changed);
  return std::make_shared<ModelVersion>(request.version, request.options,
                                        FrontThreads{loop_, *encoder_}, options_.log, changed);
}

void Front::renew(FrontReplica& replica, JoinRequest request) {
  ServiceVersion* version = versions_.find(replica);
  if (version == nullptr || !check_listener(request).ok()) return;
  versions_.set_options(*version, std::move(request.options));
  if (version->options().forwards)
    static_cast<ForwardingVersion&>(*version).add_socket(replica, request.replica.server_socket);
  speak_for_primary();
}

void Front::leave(FrontReplica& replica, Clock::duration grace, bool is_replaced) {
  ServiceVersion* version = versions_.find(replica);
  if (version == nullptr) return;
  if (version->id() != measured_ && !is_replaced)
    measured_.clear();  // the version of the canary has taken over
  auto known = leaving_.find(version->id());
  bool are_replaced = is_replaced && (known == leaving_.end() || known->second.is_replaced);
  leaving_[version->id()] = {grace, Clock::now() + grace, are_replaced};
  leave_by_[&replica] = Clock::now() + grace;
  version->set_leaving(replica, is_replaced);
  update();
}

void Front::remove(FrontReplica& replica) {
  leave_by_.erase(&replica);
  ServiceVersion* version = versions_.find(replica);
  if (version == nullptr) return;
  version->remove(replica);
  update();
}

bool Front::finish(FrontReplica& replica, uint64_t batch, Result<Tensors> outputs,
                   ResponseParameters parameters) {
  ServiceVersion* version = versions_.find(replica);
  if (version == nullptr || version->options().forwards) return false;
  auto& model = static_cast<ModelVersion&>(*version);
  bool is_known = model.finish(replica, batch, std::move(outputs), std::move(parameters));
  if (leaving_.empty() && !drain_) {
    wake_in_time();
  } else {
    update();
  }
  return is_known;
}

// ---- Engines

void Front::add_engine() { engines_++; }

void Front::remove_engine() {
  engines_--;
  idle_since_ = Clock::now();
  if (engines_ == 0) give_up_canary();
  if (engines_ == 0 && is_unused()) return begin_drain({});
  update();
}

bool Front::is_unused() const { return !listener_.is_open() && !restores_traffic_; }

/// No engine is left that decides about the version of a canary: the one before it has all traffic.
void Front::give_up_canary() {
  if (measured_.empty()) return;
  const VersionSet::Entry* before = nullptr;
  for (const VersionSet::Entry& each : versions_.all()) {
    if (each.version->id() == measured_ || !each.version->has_staying()) continue;
    if (before == nullptr || each.percent > before->percent) before = &each;
  }
  if (before == nullptr) return;
  std::string id = before->version->id();
  options_.log(fmt::format("the engine has ended during a canary: version {} has all traffic", id));
  Status set = set_traffic({{id, kPercentMax}}, "");
  if (!set.ok()) options_.log(set.error().message);
}

Status Front::set_traffic(TrafficWeights weights, const std::string& measured) {
  for (const auto& [version, percent] : weights)
    if (percent > kPercentMax)
      return user_error(fmt::format("a version has a weight of {}, which is above {} percent",
                                    percent, kPercentMax));
  ServiceVersion* version = measured.empty() ? nullptr : versions_.find(measured);
  if (!measured.empty() && version == nullptr)
    return user_error(
        "the version to measure is not there: none of its replicas has joined, or all have left");
  if (!options_.traffic_file.empty()) {
    Status written = write_file_atomic(options_.traffic_file, text_of(Traffic{weights, measured}));
    if (!written.ok()) options_.log(written.error().message);
  }
  versions_.set_traffic(std::move(weights));
  measured_ = measured;
  if (version != nullptr) version->counters().restart_step();
  update();
  return {};
}

void Front::complete_step(const std::string& id, uint32_t requests) {
  ServiceVersion* version = versions_.find(id);
  if (version == nullptr || requests == 0) return;
  version->complete_step(requests);
  wake_in_time();
}

void Front::forget(const std::string& version) {
  if (versions_.find(version) == nullptr) {
    // The run ended before a replica of it had joined. Whoever still needs a front starts the next.
    if (is_unused()) begin_drain({});
    return;
  }
  forgotten_.insert(version);
  update();
}

void Front::drain(const std::string& id, Clock::duration grace) {
  const ServiceVersion* version = versions_.find(id);
  if (version == nullptr) return;
  const auto replicas = version->replicas();
  for (const ServiceVersion::ReplicaEntry& each : replicas)
    if (!each.state.is_leaving) leave(*each.replica, grace);
}

void Front::begin_drain(Clock::duration grace) {
  if (!drain_ && !has_ended_) start_drain({grace, Clock::now() + grace});
}

void Front::start_drain(const Leaving& leaving) {
  Clock::duration delay{};
  if (const VersionSet::Entry* primary = versions_.primary())
    delay = milliseconds(primary->version->options().drain_delay_ms);
  drain_ = Drain{leaving.grace, std::min(Clock::now() + delay, leaving.until), leaving.until};
  update_soon();
}

// ---- Requests

Result<std::shared_ptr<ServiceVersion>> Front::route(const std::string& model,
                                                     const std::string& version) {
  const VersionSet::Entry* primary = versions_.primary();
  if (primary == nullptr) return user_error("no version of the service is here");
  FLOW_TRY(VersionSet::check_model(primary->version->options().name, model, version));
  return versions_.choose();
}

// ---- What follows from a change

/// For callers that may be called by a version.
void Front::update_soon() {
  if (std::exchange(is_update_posted_, true)) return;
  loop_.post([this] {
    is_update_posted_ = false;
    update();
  });
}

void Front::update() {
  if (has_ended_) return;
  Clock::time_point now = Clock::now();
  versions_.run_due(now);
  // The engine may have ended together with the front before this one.
  if (engines_ == 0 && now >= canary_until_) give_up_canary();
  if (has_ended_) return;
  if (!drain_) {
    std::vector<std::shared_ptr<ServiceVersion>> all;
    for (const VersionSet::Entry& each : versions_.all()) all.push_back(each.version);
    for (const auto& version : all) update_version(*version, now);
  }
  if (drain_) continue_drain(now);
  if (versions_.has_replicas() || engines_ > 0) idle_since_ = now;
  bool is_abandoned = now >= idle_since_ + idle_lease();
  if (!drain_ && (is_abandoned || (has_stopped_ && versions_.all().empty())))
    start_drain({{}, now});
  if (has_ended_) return;
  speak_for_primary();
  wake_in_time();
}

void Front::speak_for_primary() {
  const VersionSet::Entry* primary = versions_.primary();
  bool logs = std::ranges::any_of(versions_.all(), [](const VersionSet::Entry& each) {
    return each.version->options().access_log > 0;
  });
  requests_.set_on(logs, primary == nullptr ? 0 : primary->version->options().access_log);
  if (primary == nullptr) return;
  listener_.set_hosts(primary->version->options());
  backend_.set_primary(*primary);
}

void Front::update_version(ServiceVersion& version, Clock::time_point now) {
  if (!version.has_replicas()) return update_without_replicas(version, now);
  if (is_replacing(version)) return release_leaving(version, now);
  if (!is_stopped(version, now)) return;
  const Leaving& leaving = leaving_.at(version.id());
  has_stopped_ = true;
  if (is_only_active(version, now)) return start_drain(leaving);
  if (version.is_idle() || now >= leaving.until) end_version(version, leaving.grace);
}

/// The replicas of the version died or have left. Others may join until its lease is over.
void Front::update_without_replicas(ServiceVersion& version, Clock::time_point now) {
  versions_.relieve(version);
  bool was_stopped = is_stopped(version, now) || forgotten_.contains(version.id());
  has_stopped_ = has_stopped_ || was_stopped;
  bool is_lease_over = now >= *version.alone_since() + milliseconds(options_.lease_ms);
  if (!was_stopped && !is_lease_over) return;
  if (!is_only_active(version, now)) return end_version(version, {});
  if (was_stopped) start_drain({{}, now});
}

/// Whether replicas of the version leave, while others stay or will take their place.
bool Front::is_replacing(const ServiceVersion& version) const {
  auto leaving = leaving_.find(version.id());
  if (leaving == leaving_.end()) return false;
  return version.has_staying() || leaving->second.is_replaced;
}

/// Whether all replicas were asked to leave, and none that has died instead may join again.
bool Front::is_stopped(const ServiceVersion& version, Clock::time_point now) const {
  auto leaving = leaving_.find(version.id());
  bool is_leaving = leaving != leaving_.end() && !leaving->second.is_replaced;
  return is_leaving && !version.has_staying() && !awaits_rejoin(version, now);
}

/// Whether no other version has replicas, or had some a short time ago.
bool Front::is_only_active(const ServiceVersion& version, Clock::time_point now) const {
  if (versions_.has_staying_besides(version)) return false;
  return std::ranges::none_of(versions_.all(), [&](const VersionSet::Entry& each) {
    auto since = each.version->alone_since();
    return each.version.get() != &version && since && now < *since + kRejoinTime;
  });
}

/// Releases the replicas that leave and have no more to do, or no more time.
void Front::release_leaving(ServiceVersion& version, Clock::time_point now) {
  for (const ServiceVersion::ReplicaEntry& each : version.replicas()) {
    if (!each.state.is_leaving) continue;
    bool is_late = now >= leave_by_[each.replica];
    bool is_done = !each.state.is_busy || (is_late && version.stop_running(*each.replica));
    if (is_done) release(version, *each.replica);
  }
  auto states = version.replicas();
  if (std::ranges::none_of(states, [](const auto& each) { return each.state.is_leaving; }))
    leaving_.erase(version.id());
}

void Front::release(ServiceVersion& version, FrontReplica& replica) {
  leave_by_.erase(&replica);
  version.remove(replica);
  replica.release();
}

/// Removes a version whose replicas leave or are gone. Another version gets the new requests, and
/// those that may run again.
void Front::end_version(ServiceVersion& version, Clock::duration grace) {
  const auto replicas = version.replicas();
  for (const ServiceVersion::ReplicaEntry& each : replicas)
    version.set_leaving(*each.replica, true);  // none of them gets what another one had
  for (const ServiceVersion::ReplicaEntry& each : replicas) {
    if (each.state.is_busy) version.stop_running(*each.replica);
    release(version, *each.replica);
  }
  versions_.relieve(version);
  close(version, grace);
  leaving_.erase(version.id());
  forgotten_.erase(version.id());
  versions_.remove(version);
}

/// Rejects the requests that have no answer yet.
void Front::close(ServiceVersion& version, Clock::duration grace) {
  size_t count = version.close();
  if (count == 0) return;
  version.log(
      fmt::format("requests that were not answered within {} after the stop of the service "
                  "and got status 503: {}",
                  text_of(grace), count));
}

// ---- The end

void Front::continue_drain(Clock::time_point now) {
  bool is_over = now >= drain_->until || !versions_.has_replicas();
  if (listener_.is_open() && !drain_->has_begun && (is_over || now >= drain_->accepts_until))
    drain_listener(is_over ? Clock::duration{} : drain_->until - now);
  if (!listener_.is_open()) drain_->is_drained = true;
  bool is_idle = std::ranges::all_of(
      versions_.all(), [](const VersionSet::Entry& each) { return each.version->is_idle(); });
  if (!drain_->is_closed && (is_over || (drain_->is_drained && is_idle))) close_all(now);
  if (drain_->is_closed && (drain_->is_drained || now >= drain_->until)) end();
}

/// `grace`: the time that requests still have.
void Front::drain_listener(Clock::duration grace) {
  drain_->has_begun = true;
  // Calls over gRPC get the answers of the drain's end before they are cancelled.
  listener_.begin_drain(std::chrono::ceil<milliseconds>(grace) + kLastResponses, [this] {
    drain_->is_drained = true;
    update_soon();
  });
}

void Front::close_all(Clock::time_point now) {
  drain_->is_closed = true;
  drain_->until = drain_->is_drained ? now : now + kLastResponses;
  for (const VersionSet::Entry& each : versions_.all()) close(*each.version, drain_->grace);
}

void Front::end() {
  has_ended_ = true;
  for (const VersionSet::Entry& version : versions_.all())
    for (const ServiceVersion::ReplicaEntry& each : version.version->replicas())
      release(*version.version, *each.replica);
  if (options_.ended) options_.ended();
}

/// A front that never listened has no address to keep.
Clock::duration Front::idle_lease() const {
  const Clock::duration lease = milliseconds(options_.lease_ms);
  return listener_.is_open() ? lease : std::min<Clock::duration>(lease, kUnusedLease);
}

Clock::time_point Front::next_event() const {
  if (has_ended_) return kNever;
  Clock::time_point next = versions_.next_event();
  if (drain_) return std::min(next, drain_->has_begun ? drain_->until : drain_->accepts_until);
  const Clock::duration lease = milliseconds(options_.lease_ms);
  if (engines_ == 0 && !versions_.has_replicas()) next = std::min(next, idle_since_ + idle_lease());
  Clock::time_point now = Clock::now();
  auto consider = [&](Clock::time_point time) {
    if (time > now) next = std::min(next, time);
  };
  if (engines_ == 0 && !measured_.empty()) consider(canary_until_);
  for (const auto& [replica, time] : leave_by_) consider(time);
  for (const VersionSet::Entry& each : versions_.all()) {
    if (auto since = each.version->alone_since()) {
      consider(*since + lease);
      consider(*since + kRejoinTime);
    }
    auto leaving = leaving_.find(each.version->id());
    if (leaving == leaving_.end()) continue;
    consider(leaving->second.until);
    consider(each.version->lost_at() + kRejoinTime);
  }
  return next;
}

}  // namespace flow
