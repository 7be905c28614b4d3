#include "engine/costs/cost_report.hpp"

#include <algorithm>
#include <utility>

#include "engine/costs/units.hpp"

namespace flow {

namespace {

std::optional<double> to_currency(const std::optional<int64_t>& nano) {
  if (!nano) return std::nullopt;
  return static_cast<double>(*nano) / static_cast<double>(kNano);
}

void add_to(std::optional<double>& sum, const std::optional<double>& more) {
  sum = sum && more ? std::optional(*sum + *more) : std::nullopt;
}

void add_figures(CostFigures& to, const Consumption& used, const Cost& cost) {
  to.attempts += used.attempts;
  to.cpu_hours += cpu_hours(used);
  to.memory_gb_hours += memory_gb_hours(used);
  to.gpu_hours += gpu_hours(used);
  add_to(to.cpu_amount, to_currency(cost.cpu));
  add_to(to.memory_amount, to_currency(cost.memory));
  add_to(to.gpu_amount, to_currency(cost.gpu));
  to.egress_amount += *to_currency(cost.egress);
}

/// Energy that was measured is above 0.
void add_gpu_use(CostRow& row, const Consumption& used) {
  constexpr double kMilli = 1000;
  auto add = [](std::optional<double>& sum, double more) { sum = sum.value_or(0) + more; };
  double held = gpu_hours(used), measured = gpu_hours(used.gpu_measured_milli_ms);
  double in_use = gpu_hours(used.gpu_used_milli_ms);
  row.gpu_hours_unmeasured += std::max(0.0, held - measured);
  if (measured > 0) add(row.gpu_hours_used, in_use);
  if (measured > 0) add(row.gpu_hours_idle, std::max(0.0, measured - in_use));
  if (used.gpu_energy_mj > 0) add(row.energy_j, used.gpu_energy_mj / kMilli);
  if (held > 0 && used.gpu_rank_milli_ms >= 0)
    add(row.gpu_hours_rank, std::min(held, gpu_hours(used.gpu_rank_milli_ms)));
}

/// The cost of a run in another currency than the report's: its amounts are unknown.
Cost unpriced(const Consumption& used) { return cost_of({}, used); }

}  // namespace

std::optional<double> CostFigures::amount() const {
  if (!cpu_amount || !memory_amount || !gpu_amount) return std::nullopt;
  return *cpu_amount + *memory_amount + *gpu_amount + egress_amount;
}

std::string CostTable::key_of(const TaskConsumption& task, const Consumption& used) const {
  if (by_ == "user") return task.user;
  if (by_ == "queue") return task.queue;
  if (by_ == "task") return task.task;
  std::string models;
  for (const auto& [model, milli_ms] : used.gpus) models += (models.empty() ? "" : " + ") + model;
  return models;
}

CostRow& CostTable::row(const std::string& name) {
  auto found = std::ranges::find(rows_, name, &CostRow::name);
  if (found != rows_.end()) return *found;
  rows_.emplace_back().name = name;
  return rows_.back();
}

void CostTable::add_used(CostRow& row, const TaskConsumption& task, const Consumption& used,
                         const Prices& prices) const {
  Cost cost = prices.currency == currency_ ? cost_of(prices, used) : unpriced(used);
  add_figures(row.all, used, cost);
  if (used.outcome == AttemptEnding::failed) add_figures(row.failed, used, cost);
  if (used.outcome == AttemptEnding::lost) add_figures(row.lost, used, cost);
  if (used.outcome == AttemptEnding::stopped) add_figures(row.stopped, used, cost);
  double rank_hours = used.rank_ms / kMsPerHour;
  row.cpu_hours_asked += task.cpus_milli / kMilliPerUnit * rank_hours;
  row.memory_gb_hours_asked += static_cast<double>(task.memory_bytes) / kBytesPerGb * rank_hours;
  row.gpu_hours_asked += gpu_hours(used);
  row.gpu_hours_staging += gpu_hours(used.gpu_stage_milli_ms);
  add_gpu_use(row, used);
  if (task.knows_traffic)
    row.egress_gb = row.egress_gb.value_or(0) + used.moved_bytes / kBytesPerGb;
  row.unmeasured += used.unmeasured;
  if (used.attempts > used.unmeasured)
    row.cpu_hours_used = row.cpu_hours_used.value_or(0) + used.cpu_used_us / kUsPerHour;
}

void CostTable::add(const TaskConsumption& task, const Prices& prices) {
  if (currency_.empty()) currency_ = prices.currency;
  auto add_task = [&](CostRow& to) {
    to.tasks++;
    if (task.is_cached) to.cached++;
    for (const Consumption& saved : task.saved)
      add_figures(to.saved, saved,
                  prices.currency == currency_ ? cost_of(prices, saved) : unpriced(saved));
    if (task.used.empty()) return;
    // The sum is known only while the peak of every task is.
    bool is_sum_known = to.memory_gb_hours_used || to.tasks - to.cached == 1;
    bool is_known = task.peak_memory_byte_ms >= 0 && is_sum_known;
    to.memory_gb_hours_used =
        is_known ? std::optional(to.memory_gb_hours_used.value_or(0) +
                                 task.peak_memory_byte_ms / kBytesPerGb / kMsPerHour)
                 : std::nullopt;
  };
  add_task(row(key_of(task, task.used.empty() ? Consumption{} : task.used.front())));
  add_task(total_);
  for (const Consumption& used : task.used) {
    add_used(row(key_of(task, used)), task, used, prices);
    add_used(total_, task, used, prices);
  }
}

CostReport CostTable::report(std::vector<std::string> runs) && {
  constexpr double kCpusPerGpu = 100;  // the order without prices
  auto weight = [](const CostRow& row) {
    return row.all.gpu_hours * kCpusPerGpu + row.all.cpu_hours;
  };
  std::ranges::stable_sort(rows_, [&](const CostRow& a, const CostRow& b) {
    double cost_a = a.all.amount().value_or(0), cost_b = b.all.amount().value_or(0);
    if (cost_a != cost_b) return cost_a > cost_b;
    return weight(a) > weight(b);
  });
  return {std::move(runs), by_, currency_, std::move(rows_), std::move(total_)};
}

}  // namespace flow
