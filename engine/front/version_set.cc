#include "engine/front/version_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/serve/service_metadata.hpp"

namespace flow {

namespace {

/// Smooth weighted round robin, as nginx has it: each gets its share of any run of choices, spread
/// evenly. Null if all weights are 0.
VersionSet::Entry* choose_by_weight(const std::vector<VersionSet::Entry*>& entries) {
  VersionSet::Entry* chosen = nullptr;
  int64_t total = 0;
  for (VersionSet::Entry* each : entries) {
    if (each->percent == 0) continue;
    total += each->percent;
    each->credit += each->percent;
    if (chosen == nullptr || each->credit > chosen->credit) chosen = each;
  }
  if (chosen != nullptr) chosen->credit -= total;
  return chosen;
}

}  // namespace

ServiceVersion& VersionSet::add(std::shared_ptr<ServiceVersion> version) {
  FLOW_CHECK(entries_.size() < kVersionsMax);
  uint32_t percent = 0;
  if (auto found = traffic_.find(version->id()); found != traffic_.end())
    percent = found->second;
  else if (!is_traffic_set_ && entries_.empty())
    percent = 100;
  if (percent > 0) restored_until_.reset();
  entries_.push_back({version, ApiKeys(version->options().keys), percent});
  return *version;
}

void VersionSet::set_options(ServiceVersion& version, ServiceOptions options) {
  auto entry = std::ranges::find_if(
      entries_, [&](const Entry& each) { return each.version.get() == &version; });
  if (entry != entries_.end()) entry->keys = ApiKeys(options.keys);
  version.set_options(std::move(options));
}

void VersionSet::remove(const ServiceVersion& version) {
  auto entry = std::ranges::find_if(
      entries_, [&](const Entry& each) { return each.version.get() == &version; });
  if (entry == entries_.end()) return;
  retired_.push_back(std::move(entry->version));
  entries_.erase(entry);
  if (version.running() > 0) retired_.back()->hand_over([this] { return choose(); });
  drop_retired();
}

void VersionSet::drop_retired() {
  std::erase_if(retired_, [&](const auto& each) {
    if (each->running() > 0) return false;
    ended_.add(each->metrics());
    return true;
  });
}

ServiceVersion* VersionSet::find(const std::string& id) const {
  for (const Entry& each : entries_)
    if (each.version->id() == id) return each.version.get();
  return nullptr;
}

ServiceVersion* VersionSet::find(const FrontReplica& replica) const {
  for (const Entry& each : entries_)
    if (each.version->has(replica)) return each.version.get();
  return nullptr;
}

// ---- Traffic

void VersionSet::restore_traffic(TrafficWeights weights, ServiceVersion::Clock::time_point until) {
  if (weights.empty()) return;
  traffic_ = std::move(weights);
  is_traffic_set_ = true;
  restored_until_ = until;
}

void VersionSet::drop_restored() {
  restored_until_.reset();
  traffic_.clear();
  is_traffic_set_ = false;
  entries_.front().percent = 100;
}

void VersionSet::set_traffic(TrafficWeights weights) {
  traffic_ = std::move(weights);
  is_traffic_set_ = true;
  restored_until_.reset();
  for (Entry& each : entries_) {
    auto found = traffic_.find(each.version->id());
    each.percent = found == traffic_.end() ? 0 : found->second;
    each.credit = 0;
  }
}

std::shared_ptr<ServiceVersion> VersionSet::choose() {
  std::vector<Entry*> candidates;
  auto collect = [&](auto is_candidate) {
    candidates.clear();
    for (Entry& each : entries_)
      if (is_candidate(*each.version)) candidates.push_back(&each);
    return !candidates.empty();
  };
  // Requests rather wait for one that is to be replaced than for one that is not there.
  bool found = collect([](const ServiceVersion& each) { return each.has_staying(); }) ||
               collect([](const ServiceVersion& each) { return each.has_replicas(); }) ||
               collect([](const ServiceVersion&) { return true; });
  if (!found) return nullptr;
  Entry* chosen = choose_by_weight(candidates);
  return chosen == nullptr ? candidates.front()->version : chosen->version;
}

const VersionSet::Entry* VersionSet::primary() const {
  auto first = std::ranges::max_element(entries_, {}, &Entry::percent);
  return first == entries_.end() ? nullptr : &*first;
}

void VersionSet::relieve(ServiceVersion& version) {
  if (version.has_replicas() || !has_staying_besides(version)) return;
  version.hand_over([this] { return choose(); });
}

// ---- State

Status VersionSet::check_model(const std::string& name, const std::string& model,
                               const std::string& version) {
  if (model != name)
    return user_error(fmt::format("there is no model `{}` here, only `{}`", model, name));
  if (!version.empty() && version != kModelVersion)
    return user_error(
        fmt::format("`{}` has no version `{}`, only `{}`", name, version, kModelVersion));
  return {};
}

bool VersionSet::has_keys() const {
  return std::ranges::any_of(
      entries_, [](const Entry& each) { return !each.version->options().keys.empty(); });
}

bool VersionSet::has_replicas() const {
  return std::ranges::any_of(entries_,
                             [](const Entry& each) { return each.version->has_replicas(); });
}

bool VersionSet::has_staying_besides(const ServiceVersion& version) const {
  return std::ranges::any_of(entries_, [&](const Entry& each) {
    return each.version.get() != &version && each.version->has_staying();
  });
}

bool VersionSet::is_ready() const {
  return std::ranges::any_of(entries_, [](const Entry& each) { return each.version->is_ready(); });
}

ServiceVersion::Clock::time_point VersionSet::next_event() const {
  auto next = ServiceVersion::Clock::time_point::max();
  if (restored_until_ && !entries_.empty()) next = *restored_until_;
  for (const Entry& each : entries_) next = std::min(next, each.version->next_event());
  return next;
}

void VersionSet::run_due(ServiceVersion::Clock::time_point now) {
  if (restored_until_ && now >= *restored_until_ && !entries_.empty()) drop_restored();
  for (const Entry& each : entries_) each.version->run_due(now);
  drop_retired();
}

std::string VersionSet::metrics_text(bool is_draining) const {
  std::vector<ServiceMetrics::Series> series;
  for (const Entry& each : entries_) {
    const ServiceVersion& version = *each.version;
    series.push_back({version.options().name,
                      version.id(),
                      &version.metrics(),
                      {.queued = version.queued(),
                       .replicas = version.replicas().size(),
                       .is_ready = !is_draining && version.is_ready()}});
  }
  return ServiceMetrics::text(series);
}

ServiceMetrics VersionSet::total() const {
  ServiceMetrics sum = ended_;
  for (const Entry& each : entries_) sum.add(each.version->metrics());
  for (const auto& each : retired_) sum.add(each->metrics());
  return sum;
}

}  // namespace flow
