// A run in the terms of MLflow (mlflow.org): parameters, metrics, tags, within the limits of its
// API.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/exports/provenance.hpp"

namespace flow {

// Limits of MLflow, in bytes. A longer text is cut, and a warning says so.
constexpr size_t kMlflowKeyMax = 250, kMlflowParamMax = 6000, kMlflowTagMax = 5000;

struct MlflowMetric {
  std::string key;  // "train/loss", "train.2/loss"
  std::vector<MetricPoint> points;
};

struct MlflowRun {
  std::string id;                           // of flow; the tag `flow.run` identifies it
  std::string name;                         // that people see
  std::string status;                       // RUNNING, SCHEDULED, FINISHED, FAILED, KILLED
  int64_t started_ms = 0, finished_ms = 0;  // 0: it has not ended
  std::vector<std::pair<std::string, std::string>> params, tags;
  std::vector<MlflowMetric> metrics;
  std::vector<std::string> warnings;
};

MlflowRun mlflow_run_of(const Provenance& provenance, const std::vector<MetricSeries>& series,
                        const std::string& user);

/// A name that MLflow takes: letters, digits, and `_`, `-`, `.`, ` `, `/`; at most kMlflowKeyMax
/// bytes, and a path without empty parts. "train[2]" is "train.2".
std::string mlflow_key(const std::string& name);

}  // namespace flow
