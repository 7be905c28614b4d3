#include "engine/exports/mlflow_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "engine/exports/unique_names.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/value/utf8.hpp"
#include "flow/tags.hpp"

namespace flow {

namespace {

constexpr const char* kTagOfRun = "flow.run";

std::string status_of(const std::string& status) {
  if (status == "succeeded") return "FINISHED";
  if (status == "failed") return "FAILED";
  if (status == "cancelled" || status == "interrupted") return "KILLED";
  return status == "pending" ? "SCHEDULED" : "RUNNING";
}

std::string text_of(const Value& value) {
  return value.kind() == Value::Kind::string ? to_utf8(value.as_string()) : to_json(value);
}

/// Not beyond a limit of bytes, and between two characters.
std::string cut_to(const std::string& text, size_t max) {
  return text.size() <= max ? text : text.substr(0, character_begin(text, max));
}

class RunWriter {
 public:
  explicit RunWriter(const Provenance& from) : provenance_(from) {
    run_.id = from.info.id;
    run_.name = from.info.name.empty() ? from.info.id : to_utf8(from.info.name);
    run_.status = status_of(from.info.status);
    run_.started_ms = from.info.started_ms;
    run_.finished_ms = is_over(from.info.status) ? from.info.finished_ms : 0;
  }

  void add_params() {
    const Value& params = provenance_.info.params;
    if (params.kind() != Value::Kind::table) return;
    for (const auto& [name, value] : params.as_table().fields) {
      std::string key = unique(params_, text_of(name)), text = text_of(value);
      if (text.size() > kMlflowParamMax)
        run_.warnings.push_back(
            fmt::format("the parameter `{}` has {} bytes, and MLflow takes {}: the rest is cut",
                        key, text.size(), kMlflowParamMax));
      run_.params.emplace_back(key, cut_to(text, kMlflowParamMax));
    }
  }

  void add_tags(const std::string& user) {
    const RunInfo& info = provenance_.info;
    const Counts& counts = info.counts;
    add_tag("mlflow.user", user);
    add_tag("mlflow.source.name", info.script);
    add_tag("mlflow.source.type", "LOCAL");
    add_tag(kTagOfRun, info.id);
    add_tag("flow.name", info.name);
    add_tag("flow.pipeline", info.pipeline);
    add_tag("flow.status", info.status);
    add_tag("flow.version", version());
    add_tag("flow.code", provenance_.opened.loaded.record.bundle_digest.hex());
    add_tag("flow.directory", info.directory);
    add_tag("flow.tasks",
            fmt::format("{} succeeded, {} cached, {} failed, {} retries", counts.succeeded,
                        counts.cached, counts.failed, info.retried));
    for (const ProvenanceTask& task : provenance_.tasks) {
      if (task.info.status != "failed" || task.info.ignored) continue;
      add_tag("flow.error", task.id + ": " + task.info.error);
      break;
    }
  }

  void add_metrics(const std::vector<MetricSeries>& series) {
    for (const MetricSeries& each : series) {
      std::string name = tagged_name(each.task, each.tag) + "/" + each.metric;
      run_.metrics.push_back({unique(metrics_, name), each.points});
    }
  }

  MlflowRun run() { return std::move(run_); }

 private:
  /// Two names of flow may be one key.
  static std::string unique(UniqueNames& names, const std::string& name) {
    std::string key = mlflow_key(name);
    return names.add(key, [&](int n) { return mlflow_key(fmt::format("{}.{}", key, n)); });
  }

  void add_tag(const std::string& key, const std::string& text) {
    if (!text.empty()) run_.tags.emplace_back(key, cut_to(to_utf8(text), kMlflowTagMax));
  }

  const Provenance& provenance_;
  MlflowRun run_;
  UniqueNames params_, metrics_;
};

bool is_key_character(char c) {
  auto byte = static_cast<unsigned char>(c);
  return byte < 0x80 &&
         (std::isalnum(byte) != 0 || std::string_view("_-. ").find(c) != std::string_view::npos);
}

}  // namespace

std::string mlflow_key(const std::string& name) {
  std::string key, part;
  auto end_part = [&] {
    bool is_bad = part.empty() || part == "." || part == "..";
    key += (key.empty() ? "" : "/") + (is_bad ? std::string("_") : part);
    part.clear();
  };
  for (char c : name) {
    if (c == '/') {
      end_part();
    } else if (c == '[') {
      part += '.';
    } else if (c != ']') {
      part += is_key_character(c) ? c : '_';
    }
  }
  end_part();
  // Numbers at the end tell instances apart, so the begin is cut.
  if (key.size() > kMlflowKeyMax) key = "_" + key.substr(key.size() - kMlflowKeyMax + 1);
  return key;
}

MlflowRun mlflow_run_of(const Provenance& provenance, const std::vector<MetricSeries>& series,
                        const std::string& user) {
  RunWriter writer(provenance);
  writer.add_params();
  writer.add_tags(user);
  writer.add_metrics(series);
  return writer.run();
}

}  // namespace flow
