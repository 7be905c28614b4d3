// Sums of what task instances held, by task, user, queue or GPU model.
#pragma once
#include <string>
#include <vector>

#include "engine/costs/prices.hpp"
#include "flow/cost.hpp"

namespace flow {

/// A task instance of a run.
struct TaskConsumption {
  std::string task, user, queue;
  bool is_cached = false;
  std::vector<Consumption> used;
  std::vector<Consumption> saved;  // of a cached one: by the run that computed the result
  bool knows_traffic = false;      // of `used`
  // What each rank asks for.
  int32_t cpus_milli = 0;
  int64_t memory_bytes = 0;
  double peak_memory_byte_ms = -1;  // of all its attempts; below 0: unknown
};

class CostTable {
 public:
  /// `by`: task, user, queue or gpu.
  explicit CostTable(std::string by) : by_(std::move(by)) {}
  /// What is in another currency than the first one has no known amount.
  void add(const TaskConsumption& task, const Prices& prices);
  CostReport report(std::vector<std::string> runs) &&;

 private:
  std::string key_of(const TaskConsumption& task, const Consumption& used) const;
  CostRow& row(const std::string& name);
  void add_used(CostRow& row, const TaskConsumption& task, const Consumption& used,
                const Prices& prices) const;

  std::string by_, currency_;
  std::vector<CostRow> rows_;
  CostRow total_;
};

}  // namespace flow
