#include "engine/worker/gpu_accounts.hpp"

#include <algorithm>
#include <cmath>

namespace flow {

namespace {

constexpr double kPercent = 100;
constexpr double kUsPerSecond = 1e6;

double length_us(int64_t from_us, int64_t to_us) { return static_cast<double>(to_us - from_us); }

}  // namespace

void GpuAccounts::close_span(Device& device, int64_t now_us) {
  if (now_us > device.since_us) device.spans.push_back({device.since_us, now_us, device.holders});
  device.since_us = std::max(device.since_us, now_us);
}

void GpuAccounts::begin(const RankId& id, const std::vector<std::string>& uuids, double part,
                        int64_t now_us) {
  if (has(id)) {
    end(id, now_us);
    take(id);
  }
  Account& account = accounts_[id];
  account.uuids = uuids;
  account.part = part;
  for (const std::string& uuid : uuids) {
    auto [found, is_new] = devices_.try_emplace(uuid);
    Device& device = found->second;
    if (is_new) device.since_us = now_us;
    close_span(device, now_us);
    device.holders.emplace_back(id, part);
  }
}

void GpuAccounts::end(const RankId& id, int64_t now_us) {
  auto found = accounts_.find(id);
  if (found == accounts_.end() || found->second.has_ended) return;
  found->second.has_ended = true;
  for (const std::string& uuid : found->second.uuids) {
    Device& device = devices_.at(uuid);
    close_span(device, now_us);
    std::erase_if(device.holders, [&](const auto& holder) { return holder.first == id; });
  }
}

void GpuAccounts::divide(const Device& device, const GpuSample& sample,
                         std::optional<double> energy_mj, const RankId* only) {
  double whole_us = 0;
  for (const Span& span : device.spans) whole_us += length_us(span.from_us, span.to_us);
  for (const Span& span : device.spans) {
    double held_us = length_us(span.from_us, span.to_us);
    double parts = 0;
    for (const auto& [id, part] : span.holders) parts += part;
    for (const auto& [id, part] : span.holders) {
      auto found = accounts_.find(id);
      bool is_meant = found != accounts_.end() && (only == nullptr || *only == id);
      if (!is_meant) continue;
      Account& account = found->second;
      double share = part / parts;
      if (sample.utilization_percent) {
        account.has_use = true;
        account.used_us += *sample.utilization_percent / kPercent * share * held_us;
        account.measured_us += part * held_us;
      }
      if (energy_mj)
        account.energy_mj += *energy_mj * share * held_us / whole_us;
      else if (sample.power_milliwatts)
        account.energy_mj += *sample.power_milliwatts / kUsPerSecond * share * held_us;
      account.has_energy = account.has_energy || energy_mj || sample.power_milliwatts;
    }
  }
}

void GpuAccounts::add(const GpuSample& sample, int64_t at_us) {
  auto found = devices_.find(sample.uuid);
  if (found == devices_.end()) return;
  Device& device = found->second;
  close_span(device, at_us);
  // A driver that was loaded again counts from 0.
  bool has_counters = device.newest && device.newest->energy_millijoules &&
                      sample.energy_millijoules &&
                      *sample.energy_millijoules >= *device.newest->energy_millijoules;
  std::optional<double> energy_mj;
  if (has_counters)
    energy_mj =
        static_cast<double>(*sample.energy_millijoules - *device.newest->energy_millijoules);
  divide(device, sample, energy_mj);
  device.spans.clear();
  device.newest = sample;
  device.newest_us = at_us;
}

bool GpuAccounts::lacks_sample_since(const RankId& id, int64_t us) const {
  auto found = accounts_.find(id);
  if (found == accounts_.end()) return false;
  return std::ranges::any_of(found->second.uuids, [&](const std::string& uuid) {
    const Device& device = devices_.at(uuid);
    return !device.newest || device.newest_us < us;
  });
}

core::AttemptUsage GpuAccounts::take(const RankId& id) {
  core::AttemptUsage usage;
  auto found = accounts_.find(id);
  if (found == accounts_.end()) return usage;
  for (const std::string& uuid : found->second.uuids) {
    const Device& device = devices_.at(uuid);
    if (device.newest) divide(device, *device.newest, std::nullopt, &id);
  }
  Account account = std::move(found->second);
  accounts_.erase(found);
  release(account);
  if (account.has_use) usage.gpu_used_us = std::llround(account.used_us);
  if (account.has_use) usage.gpu_measured_us = std::llround(account.measured_us);
  if (account.has_energy) usage.gpu_energy_mj = std::llround(account.energy_mj);
  return usage;
}

void GpuAccounts::release(const Account& account) {
  for (const std::string& uuid : account.uuids) {
    bool is_held = std::ranges::any_of(accounts_, [&](const auto& each) {
      return std::ranges::find(each.second.uuids, uuid) != each.second.uuids.end();
    });
    if (!is_held) devices_.erase(uuid);
  }
}

std::vector<std::string> GpuAccounts::gpus() const {
  std::vector<std::string> all;
  for (const auto& [uuid, device] : devices_) all.push_back(uuid);
  return all;
}

}  // namespace flow
