#include "engine/exports/mlflow_client.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <unordered_set>

#include "engine/base/throwing.hpp"
#include "engine/blobs/mapped_file.hpp"
#include "engine/exports/json_fields.hpp"
#include "engine/fetch/retry_delay.hpp"
#include "engine/value/json.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr const char* kApi = "/api/2.0/mlflow/";
constexpr const char* kArtifacts = "/api/2.0/mlflow-artifacts/artifacts/";

/// The text of a field; "" if it is missing.
std::string text_of(const Value& object, std::string_view name) {
  const Value* field = object.find(name);
  return field != nullptr && field->kind() == Value::Kind::string ? field->as_string() : "";
}

/// The object of a field, or one without fields.
Value object_of(const Value& object, std::string_view name) {
  const Value* field = object.find(name);
  return field != nullptr && field->kind() == Value::Kind::table ? *field : Value::map({});
}

std::vector<Value> list_of(const Value& object, std::string_view name) {
  const Value* field = object.find(name);
  return field != nullptr && field->kind() == Value::Kind::table ? field->as_table().list
                                                                 : std::vector<Value>();
}

/// MLflow's JSON has 64-bit integers as numbers or strings, and NaN as a string.
std::string number_text(const Value* number) {
  if (number == nullptr) return "0";
  if (number->kind() == Value::Kind::string) return number->as_string();
  return to_json(*number);
}

/// A double as JSON has it: NaN and infinities as the strings of Protocol Buffers.
Value double_value(double number) {
  if (std::isnan(number)) return Value("NaN");
  if (std::isinf(number)) return Value(number > 0 ? "Infinity" : "-Infinity");
  return Value(number);
}

/// Equal for a point and what a server that has it answers: some keep infinities as the largest
/// numbers, and NaN as 0 with a mark.
std::string value_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::fabs(value) >= DBL_MAX) return value > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{}", value + 0.0);
}
std::string value_text(const Value* value) {
  if (value == nullptr) return "0";
  if (value->kind() == Value::Kind::string) return value->as_string();
  if (value->kind() == Value::Kind::integer)
    return value_text(static_cast<double>(value->as_integer()));
  return value->kind() == Value::Kind::number ? value_text(value->as_number()) : "NaN";
}

std::string point_text(std::string_view step, std::string_view at_ms, std::string_view value) {
  return fmt::format("{} {} {}", step, at_ms, value);
}

Value pair_value(const std::string& key, const std::string& value) {
  return Value::map({{"key", text_value(key)}, {"value", text_value(value)}});
}

std::vector<Value> pair_values(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::vector<Value> values;
  for (const auto& [key, value] : pairs) values.push_back(pair_value(key, value));
  return values;
}

std::string without_slash(std::string path) {
  while (path.ends_with('/')) path.pop_back();
  return path;
}

}  // namespace

MlflowClient::MlflowClient(const std::string& url, std::string authorization,
                           const fetch::FetchOptions& options)
    : options_(options),
      client_(options_),
      shown_(display_url(url)),
      authorization_(std::move(authorization)),
      url_(value_or_throw(parse_url(url))) {
  url_.path = without_slash(url_.path);
  url_.query.clear();
}

Failed MlflowClient::failure(const std::string& what, const fetch::HttpResponse& response) const {
  std::string why = fetch::failure_text(response);
  bool is_mlflow = false;
  if (auto body = from_json(response.body); response.failure.empty() && body.ok()) {
    std::string code = text_of(*body, "error_code"), message = text_of(*body, "message");
    is_mlflow = !code.empty();
    if (is_mlflow) why += fmt::format(" ({}: {})", code, to_line(cut_text(message, 300)));
  }
  std::string advice;
  if (response.status == 401 || response.status == 403)
    advice =
        ". Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN";
  else if (response.status == 404 && !is_mlflow)
    advice =
        ". It does not look like an MLflow tracking server: check the address of `mlflow server`";
  else if (!response.failure.empty())
    advice = ". Check that `mlflow server` runs there, then export again";
  return Failed(environment_error(
      fmt::format("cannot export to the MLflow server `{}`: {}: {}{}", shown_, what, why, advice)));
}

fetch::HttpResponse MlflowClient::exchange(const Request& request) {
  auto make_request = [&] {
    fetch::HttpRequest http;
    http.method = request.method;
    http.url = url_;
    http.url.path = url_.path + request.path;
    http.url.query = request.query;
    http.headers = {{"Content-Type", request.content_type}};
    if (!authorization_.empty()) http.headers.emplace_back("Authorization", authorization_);
    http.body = request.body;
    http.follows_redirects = false;
    http.shown = shown_;
    return http;
  };
  if (request.retries == Retries::no) return value_or_throw(client_.send(make_request()));
  return value_or_throw(fetch::send_with_retries(client_, options_, make_request));
}

Value MlflowClient::call(const Request& request) { return object_in(exchange(request), request); }

Value MlflowClient::object_in(const fetch::HttpResponse& response, const Request& request) const {
  if (!response.ok()) throw failure(request.method + " " + request.path, response);
  auto body = from_json(response.body);
  if (body.ok() && body->kind() == Value::Kind::table) return std::move(*body);
  throw Failed(environment_error(
      fmt::format("cannot export to the MLflow server `{}`: {} {}: the answer is not a JSON "
                  "object. Check the address of `mlflow server`",
                  shown_, request.method, request.path)));
}

Value MlflowClient::post(const std::string& name, const Value& body, Retries retries) {
  std::string json = to_plain_json(body);
  return call({"POST", kApi + name, "", "application/json", json, retries});
}

std::string MlflowClient::experiment_id(const std::string& name) {
  Request request{"GET", std::string(kApi) + "experiments/get-by-name"};
  request.query = "experiment_name=" + percent_encode(name, false);
  fetch::HttpResponse response = exchange(request);
  if (response.status == 404 && response.body.find("RESOURCE_DOES_NOT_EXIST") != std::string::npos)
    return text_of(post("experiments/create", Value::map({{"name", text_value(name)}})),
                   "experiment_id");
  Value experiment = object_of(object_in(response, request), "experiment");
  if (text_of(experiment, "lifecycle_stage") == "deleted")
    throw Failed(user_error(fmt::format(
        "the MLflow server `{}` has the experiment `{}` among the deleted ones: restore it with "
        "`mlflow experiments restore`, or name another with --experiment",
        shown_, name)));
  return text_of(experiment, "experiment_id");
}

Value MlflowClient::find_or_create(const MlflowRun& run) {
  std::string filter = fmt::format("tags.`flow.run` = '{}'", run.id);
  Value found = post("runs/search", Value::map({{"experiment_ids", Value::list({experiment_id_})},
                                                {"filter", text_value(filter)},
                                                {"max_results", 1}}));
  std::vector<Value> runs = list_of(found, "runs");
  is_new_ = runs.empty();
  if (!is_new_) return object_of(runs.front(), "info");
  // Not tried again: if the answer was lost, that would make a second run.
  Value created = post("runs/create",
                       Value::map({{"experiment_id", text_value(experiment_id_)},
                                   {"run_name", text_value(run.name)},
                                   {"start_time", run.started_ms},
                                   {"tags", Value::list({pair_value("flow.run", run.id)})}}),
                       Retries::no);
  return object_of(object_of(created, "run"), "info");
}

void MlflowClient::log_batch(const char* field, std::vector<Value> items, size_t max) {
  for (size_t at = 0; at < items.size(); at += max) {
    auto begin = items.begin() + static_cast<std::ptrdiff_t>(at);
    auto end = items.begin() + static_cast<std::ptrdiff_t>(std::min(at + max, items.size()));
    post("runs/log-batch", Value::map({{"run_id", text_value(run_id_)},
                                       {field, Value::list({std::make_move_iterator(begin),
                                                            std::make_move_iterator(end)})}}));
  }
}

std::vector<std::string> MlflowClient::stored_points(const std::string& key) {
  std::vector<std::string> points;
  std::string page;
  do {
    Request request{"GET", std::string(kApi) + "metrics/get-history"};
    request.query = fmt::format("run_id={}&metric_key={}&max_results=20000",
                                percent_encode(run_id_, false), percent_encode(key, false));
    if (!page.empty()) request.query += "&page_token=" + percent_encode(page, false);
    Value answer = call(request);
    for (const Value& point : list_of(answer, "metrics"))
      points.push_back(point_text(number_text(point.find("step")),
                                  number_text(point.find("timestamp")),
                                  value_text(point.find("value"))));
    page = text_of(answer, "next_page_token");
  } while (!page.empty());
  return points;
}

void MlflowClient::log_metrics(const MlflowMetric& metric) {
  std::unordered_set<std::string> stored;
  if (!is_new_) {
    std::vector<std::string> points = stored_points(metric.key);
    stored.insert(points.begin(), points.end());
  }
  std::vector<Value> items;
  for (const MetricPoint& point : metric.points) {
    std::string text = point_text(std::to_string(point.step), std::to_string(point.at_ms),
                                  value_text(point.value));
    if (stored.contains(text)) continue;
    items.push_back(Value::map({{"key", text_value(metric.key)},
                                {"value", double_value(point.value)},
                                {"timestamp", point.at_ms},
                                {"step", point.step}}));
  }
  log_batch("metrics", std::move(items), kMlflowMetricsPerRequest);
}

std::string MlflowClient::send(const MlflowRun& run, const std::string& experiment) {
  experiment_id_ = experiment_id(experiment);
  Value info = find_or_create(run);
  run_id_ = text_of(info, "run_id");
  artifact_uri_ = text_of(info, "artifact_uri");
  log_batch("params", pair_values(run.params), kMlflowParamsPerRequest);
  log_batch("tags", pair_values(run.tags), kMlflowTagsPerRequest);
  for (const MlflowMetric& metric : run.metrics) log_metrics(metric);
  JsonFields update = {{"run_id", text_value(run_id_)},
                       {"run_name", text_value(run.name)},
                       {"status", text_value(run.status)}};
  if (run.finished_ms != 0) update.emplace_back("end_time", run.finished_ms);
  post("runs/update", Value::map(std::move(update)));
  return run_id_;
}

bool MlflowClient::upload(const std::vector<MlflowArtifact>& artifacts) {
  constexpr std::string_view kScheme = "mlflow-artifacts:/";
  std::string_view uri = artifact_uri_;
  // With a host after the scheme another server takes them.
  if (!uri.starts_with(kScheme) || uri.substr(kScheme.size()).starts_with('/')) return false;
  std::string folder = kArtifacts + percent_encode(uri.substr(kScheme.size()), true);
  for (const MlflowArtifact& artifact : artifacts) {
    Bytes content = value_or_throw(map_file(artifact.file));
    Request request{"PUT", folder + "/" + percent_encode(artifact.path, true)};
    request.content_type = "application/octet-stream";
    request.body = *content;
    fetch::HttpResponse response = exchange(request);
    if (!response.ok()) throw failure("PUT " + request.path, response);
  }
  return true;
}

std::string MlflowClient::page_url() const {
  return fmt::format("{}/#/experiments/{}/runs/{}", without_slash(shown_), experiment_id_, run_id_);
}

}  // namespace flow
