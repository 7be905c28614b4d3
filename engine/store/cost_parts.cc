#include "engine/store/cost_parts.hpp"

#include <algorithm>
#include <cmath>

#include "engine/store/record_parts.hpp"

namespace flow {

namespace {

void put_rates(const Rates& rates, journal::Rates& m) {
  if (rates.cpu_hour != kNoPrice) m.set_cpu_hour(rates.cpu_hour);
  if (rates.memory_gb_hour != kNoPrice) m.set_memory_gb_hour(rates.memory_gb_hour);
  if (rates.egress_gb != kNoPrice) m.set_egress_gb(rates.egress_gb);
  for (const auto& [model, price] : rates.gpu_hour) {
    journal::GpuRate& gpu = *m.add_gpu_hour();
    gpu.set_model(model);
    gpu.set_price(price);
  }
}

bool get_rates(const journal::Rates& m, Rates& rates) {
  if (m.has_cpu_hour()) rates.cpu_hour = m.cpu_hour();
  if (m.has_memory_gb_hour()) rates.memory_gb_hour = m.memory_gb_hour();
  if (m.has_egress_gb()) rates.egress_gb = m.egress_gb();
  bool is_sound = m.cpu_hour() >= 0 && m.memory_gb_hour() >= 0 && m.egress_gb() >= 0;
  for (const journal::GpuRate& gpu : m.gpu_hour()) {
    is_sound = is_sound && gpu.price() >= 0;
    rates.gpu_hour.emplace_back(gpu.model(), gpu.price());
  }
  return is_sound;
}

bool are_amounts(std::initializer_list<double> numbers) {
  return std::ranges::all_of(numbers,
                             [](double number) { return std::isfinite(number) && number >= 0; });
}

}  // namespace

void put_terms(const core::BudgetTerms& terms, journal::BudgetTerms& m) {
  m.set_currency(terms.prices.currency);
  put_rates(terms.prices.base, *m.mutable_base());
  for (const LabelRates& each : terms.prices.labels) {
    journal::LabelRates& label = *m.add_labels();
    label.set_name(each.name);
    label.set_value(each.value);
    put_rates(each.rates, *label.mutable_rates());
  }
  m.set_limit_nano(terms.limit_nano);
  m.set_before_nano(terms.before_nano);
}

bool get_terms(const journal::BudgetTerms& m, core::BudgetTerms& terms) {
  terms.prices.currency = m.currency();
  bool is_sound = get_rates(m.base(), terms.prices.base);
  for (const journal::LabelRates& label : m.labels()) {
    LabelRates& each = terms.prices.labels.emplace_back();
    each.name = label.name();
    each.value = label.value();
    is_sound = get_rates(label.rates(), each.rates) && is_sound;
  }
  terms.limit_nano = m.limit_nano();
  terms.before_nano = m.before_nano();
  return is_sound && !m.currency().empty() && m.limit_nano() > 0 && m.before_nano() >= 0;
}

void put_consumption(const Consumption& used, journal::Consumption& m) {
  m.set_outcome(static_cast<uint32_t>(used.outcome));
  put_labels(used.labels, *m.mutable_labels());
  m.set_attempts(used.attempts);
  m.set_rank_ms(used.rank_ms);
  m.set_cpu_milli_ms(used.cpu_milli_ms);
  m.set_memory_byte_ms(used.memory_byte_ms);
  for (const auto& [model, milli_ms] : used.gpus) {
    journal::GpuTime& gpu = *m.add_gpus();
    gpu.set_model(model);
    gpu.set_milli_ms(milli_ms);
  }
  m.set_cpu_used_us(used.cpu_used_us);
  m.set_unmeasured(used.unmeasured);
  m.set_gpu_stage_milli_ms(used.gpu_stage_milli_ms);
  m.set_gpu_used_milli_ms(used.gpu_used_milli_ms);
  m.set_gpu_measured_milli_ms(used.gpu_measured_milli_ms);
  m.set_gpu_energy_mj(used.gpu_energy_mj);
  if (used.gpu_rank_milli_ms >= 0) m.set_gpu_rank_milli_ms(used.gpu_rank_milli_ms);
  m.set_moved_bytes(used.moved_bytes);
}

bool get_consumption(const journal::Consumption& m, Consumption& used) {
  bool is_sound =
      m.outcome() < kOutcomes && get_labels(m.labels(), used.labels) &&
      are_amounts({m.rank_ms(), m.cpu_milli_ms(), m.memory_byte_ms(), m.cpu_used_us(),
                   m.gpu_stage_milli_ms(), m.gpu_used_milli_ms(), m.gpu_measured_milli_ms(),
                   m.gpu_energy_mj(), m.gpu_rank_milli_ms(), m.moved_bytes()});
  if (!is_sound) return false;
  used.outcome = static_cast<AttemptEnding>(m.outcome());
  used.attempts = m.attempts();
  used.rank_ms = m.rank_ms();
  used.cpu_milli_ms = m.cpu_milli_ms();
  used.memory_byte_ms = m.memory_byte_ms();
  used.cpu_used_us = m.cpu_used_us();
  used.unmeasured = m.unmeasured();
  used.gpu_stage_milli_ms = m.gpu_stage_milli_ms();
  used.gpu_used_milli_ms = m.gpu_used_milli_ms();
  used.gpu_measured_milli_ms = m.gpu_measured_milli_ms();
  used.gpu_energy_mj = m.gpu_energy_mj();
  if (m.has_gpu_rank_milli_ms()) used.gpu_rank_milli_ms = m.gpu_rank_milli_ms();
  used.moved_bytes = m.moved_bytes();
  for (const journal::GpuTime& gpu : m.gpus()) {
    if (!are_amounts({gpu.milli_ms()})) return false;
    add_gpu_time(used.gpus, gpu.model(), gpu.milli_ms());
  }
  return true;
}

void put_budget(const core::RunBudget& budget, journal::RunBudget& m) {
  put_terms(budget.terms, *m.mutable_terms());
  m.set_spent_nano(budget.spent_nano);
  m.mutable_longest_ms()->Add(budget.longest_ms.begin(), budget.longest_ms.end());
  m.set_has_warned(budget.has_warned);
  m.set_is_spent(budget.is_spent);
  m.set_serial(budget.serial);
  m.set_timer_at(budget.timer_at);
}

bool get_budget(const journal::RunBudget& m, core::RunBudget& budget) {
  budget.longest_ms.assign(m.longest_ms().begin(), m.longest_ms().end());
  budget.spent_nano = m.spent_nano();
  budget.has_warned = m.has_warned();
  budget.is_spent = m.is_spent();
  budget.serial = m.serial();
  budget.timer_at = m.timer_at();
  return get_terms(m.terms(), budget.terms) && are_amounts({budget.spent_nano}) &&
         std::ranges::all_of(budget.longest_ms, [](int64_t ms) { return ms >= 0; });
}

}  // namespace flow
