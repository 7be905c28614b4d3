// What runs cost, and what would make them cheaper.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flow/flow.hpp"

namespace flow {

/// Resource-hours of ended attempts, and of running attempts until now.
struct CostFigures {
  uint32_t attempts = 0;
  double cpu_hours = 0, memory_gb_hours = 0, gpu_hours = 0;  ///< held; a GB is 10^9 bytes
  /// In units of the report's currency. Nothing where a price is missing for what was held.
  std::optional<double> cpu_amount = 0, memory_amount = 0, gpu_amount = 0;
  double egress_amount = 0;              ///< of `CostRow::egress_gb`; 0 without a price
  std::optional<double> amount() const;  ///< the sum; nothing if one is missing
};

/// A line of a report.
struct CostRow {
  std::string name;     ///< of the task, user, queue or GPU model; "" for none
  uint32_t tasks = 0;   ///< task instances
  uint32_t cached = 0;  ///< of these, those whose result came from the cache
  CostFigures all;      ///< of all attempts
  double cpu_hours_asked = 0, memory_gb_hours_asked = 0, gpu_hours_asked = 0;
  /// CPU time that was measured; nothing if none was. `unmeasured`: attempts without it.
  std::optional<double> cpu_hours_used;
  uint32_t unmeasured = 0;
  /// Sum of each attempt's peak times its duration; nothing if a peak is unknown.
  std::optional<double> memory_gb_hours_used;
  /// The part of the GPU-hours before the function or command began, while inputs were staged.
  double gpu_hours_staging = 0;
  /// Parts of the GPU-hours: used = utilisation times time; idle = measured time less used. Nothing
  /// if the utilisation was never measured. `gpu_hours_unmeasured`: held without a measurement.
  std::optional<double> gpu_hours_used, gpu_hours_idle;
  double gpu_hours_unmeasured = 0;
  /// The part of the GPU-hours in which ranks of a gang waited for others, as far as measured.
  std::optional<double> gpu_hours_rank;
  /// Only in the total: GPU-hours that no attempt held while tasks ran or waited for a slot.
  /// `without_queue`: none of them waited for a GPU; `fragmented`: one did, but what was free did
  /// not suit it. Nothing if that is not known.
  std::optional<double> gpu_hours_without_queue, gpu_hours_fragmented;
  /// GB of files and large values that were sent between machines; nothing if not recorded.
  std::optional<double> egress_gb;
  std::optional<double> energy_j;  ///< of GPUs, as far as it was measured
  CostFigures failed;              ///< attempts whose task failed or was retried because of them
  CostFigures lost;                ///< attempts whose worker, GPU or engine ended
  CostFigures stopped;             ///< attempts that were stopped, such as by Ctrl-C
  CostFigures saved;               ///< what the cached results had cost the runs that computed them
};

struct CostOptions {
  std::string run{};        ///< as Reader::show; "": the newest
  int64_t since_ms = 0;     ///< if > 0: all runs that were started since then, instead of `run`
  std::string by = "task";  ///< task, user, queue or gpu
  /// Prices for runs that were submitted without any.
  ConfigOptions config{};
};
struct CostReport {
  std::vector<std::string> runs;  ///< their ids, oldest first
  std::string by;
  std::string currency;  ///< "": there are no prices
  /// The most expensive first; without prices by the CPU-hours and 100 times the GPU-hours.
  std::vector<CostRow> rows;
  CostRow total;
  std::string json() const;  ///< the object described in docs/reference-cli.md
};
/// Reads the state of `options` next to its writer. A run is charged by the prices with which it
/// was submitted. Throws Failed (user) for an unknown run, and for prices that are invalid.
CostReport cost_report(const EngineOptions& options, const CostOptions& how = {});

struct Advice {
  std::string kind;  ///< memory, cpus, ranks, cache, worker or straggler
  std::string task;
  std::string change;     ///< what to write in the script, or to do
  std::string evidence;   ///< the measured values
  std::string gain;       ///< what that is expected to save
  uint32_t attempts = 0;  ///< that were measured
  double value = 0;       ///< of memory: bytes; of cpus and ranks: their number; else 0
};
struct AdviceReport {
  std::string run;
  uint32_t runs = 0;      ///< runs of the pipeline that were compared, with this one
  uint32_t attempts = 0;  ///< successful ones that were looked at
  std::vector<Advice> advice;
  std::string json() const;
};
/// Advice from the successful attempts of the run that `selector` selects and of the newest 20 runs
/// of its pipeline before it. Throws Failed (user) for an unknown run.
AdviceReport advise(const EngineOptions& options, const std::string& selector = "");

}  // namespace flow
