// Costs and advice as JSON, as defined in docs/reference-cli.md.
#include <fmt/format.h>

#include <cmath>

#include "engine/value/json.hpp"
#include "flow/cost.hpp"

namespace flow {

namespace {

/// To the billionth, which is as exact as amounts are.
std::string exact_number_text(double value) {
  constexpr double kBillion = 1e9;
  return fmt::format("{}", std::round(value * kBillion) / kBillion);
}
std::string number_or_null(const std::optional<double>& value) {
  return value ? exact_number_text(*value) : "null";
}

std::string json_of(const CostFigures& figures) {
  return fmt::format(
      R"({{"attempts":{},"cpu_hours":{},"memory_gb_hours":{},"gpu_hours":{},"amount":{}}})",
      figures.attempts, exact_number_text(figures.cpu_hours),
      exact_number_text(figures.memory_gb_hours), exact_number_text(figures.gpu_hours),
      number_or_null(figures.amount()));
}

/// What is not measured is null.
std::string json_of(const CostRow& row) {
  std::string name = row.name.empty() ? "null" : text_to_json(row.name);
  std::string cpus = fmt::format(
      R"({{"asked":{},"held":{},"used":{},"unmeasured_attempts":{},"amount":{}}})",
      exact_number_text(row.cpu_hours_asked), exact_number_text(row.all.cpu_hours),
      number_or_null(row.cpu_hours_used), row.unmeasured, number_or_null(row.all.cpu_amount));
  std::string memory = fmt::format(
      R"({{"asked":{},"held":{},"used":{},"amount":{}}})",
      exact_number_text(row.memory_gb_hours_asked), exact_number_text(row.all.memory_gb_hours),
      number_or_null(row.memory_gb_hours_used), number_or_null(row.all.memory_amount));
  std::string gpus = fmt::format(
      R"({{"asked":{},"held":{},"used":{},"unmeasured":{},"idle":{{"total":{},"staging":{},"rank":{},"fragmentation":{},"queue_empty":{}}},"amount":{}}})",
      exact_number_text(row.gpu_hours_asked), exact_number_text(row.all.gpu_hours),
      number_or_null(row.gpu_hours_used), exact_number_text(row.gpu_hours_unmeasured),
      number_or_null(row.gpu_hours_idle), exact_number_text(row.gpu_hours_staging),
      number_or_null(row.gpu_hours_rank), number_or_null(row.gpu_hours_fragmented),
      number_or_null(row.gpu_hours_without_queue), number_or_null(row.all.gpu_amount));
  return fmt::format(
      R"({{"name":{},"tasks":{},"cached":{},"attempts":{},"amount":{},"cpu_hours":{},"memory_gb_hours":{},"gpu_hours":{},"energy_j":{},"egress_gb":{},"egress_amount":{},"failed":{},"lost":{},"stopped":{},"saved":{}}})",
      name, row.tasks, row.cached, row.all.attempts, number_or_null(row.all.amount()), cpus, memory,
      gpus, number_or_null(row.energy_j), number_or_null(row.egress_gb),
      row.egress_gb ? exact_number_text(row.all.egress_amount) : "null", json_of(row.failed),
      json_of(row.lost), json_of(row.stopped), json_of(row.saved));
}

}  // namespace

std::string CostReport::json() const {
  std::string ids, lines;
  for (const std::string& id : runs) ids += (ids.empty() ? "" : ",") + text_to_json(id);
  for (const CostRow& row : rows) lines += (lines.empty() ? "" : ",") + json_of(row);
  return fmt::format(R"({{"runs":[{}],"by":{},"currency":{},"rows":[{}],"total":{}}})", ids,
                     text_to_json(by), currency.empty() ? "null" : text_to_json(currency), lines,
                     json_of(total));
}

std::string AdviceReport::json() const {
  std::string lines;
  for (const Advice& each : advice)
    lines += fmt::format(
        R"({}{{"kind":{},"task":{},"change":{},"evidence":{},"gain":{},"attempts":{},"value":{}}})",
        lines.empty() ? "" : ",", text_to_json(each.kind), text_to_json(each.task),
        text_to_json(each.change), text_to_json(each.evidence), text_to_json(each.gain),
        each.attempts, each.value > 0 ? exact_number_text(each.value) : "null");
  return fmt::format(R"({{"run":{},"runs":{},"attempts":{},"advice":[{}]}})", text_to_json(run),
                     runs, attempts, lines);
}

}  // namespace flow
