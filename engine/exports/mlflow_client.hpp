// Sends a run to an MLflow tracking server through its REST API, version 2.0.
#pragma once
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "engine/exports/mlflow_run.hpp"
#include "engine/fetch/http_client.hpp"

namespace flow {

// Limits of one request, of the API.
constexpr size_t kMlflowMetricsPerRequest = 1000, kMlflowParamsPerRequest = 100,
                 kMlflowTagsPerRequest = 100;

/// A file of the result, and its path among the artifacts.
struct MlflowArtifact {
  std::string path;  // "report/plot.png"
  std::string file;  // a path on this machine
};

class MlflowClient {
 public:
  /// `url`: of the server, with a path if it is not at the root. `authorization`: value of the
  /// header, "" for none. `options` is borrowed. Throws Failed (user) if the URL is not valid.
  MlflowClient(const std::string& url, std::string authorization,
               const fetch::FetchOptions& options);

  /// Creates the run in the experiment, which it creates too if need be; updates it if an earlier
  /// export created it. Returns MLflow's id of the run. Throws Failed (environment) if the server
  /// cannot be reached or refuses a request.
  std::string send(const MlflowRun& run, const std::string& experiment);
  /// Replaces artifacts of the same path. Call send() before. False, and nothing is sent, if the
  /// server does not take artifacts itself. Throws Failed.
  bool upload(const std::vector<MlflowArtifact>& artifacts);
  std::string page_url() const;
  /// Where the server keeps the run's artifacts.
  const std::string& artifact_uri() const { return artifact_uri_; }

 private:
  enum class Retries : bool { no, yes };
  struct Request {
    std::string method, path;  // below the server's URL
    std::string query = {}, content_type = "application/json";
    std::string_view body = {};
    Retries retries = Retries::yes;
  };

  fetch::HttpResponse exchange(const Request& request);
  /// The answer's object. Throws Failed if it is not 2xx.
  Value call(const Request& request);
  Value object_in(const fetch::HttpResponse& response, const Request& request) const;
  Value post(const std::string& call, const Value& body, Retries retries = Retries::yes);
  Failed failure(const std::string& what, const fetch::HttpResponse& response) const;

  std::string experiment_id(const std::string& name);
  Value find_or_create(const MlflowRun& run);
  void log_batch(const char* field, std::vector<Value> items, size_t max);
  /// Leaves out the points that an earlier export has sent.
  void log_metrics(const MlflowMetric& metric);
  /// The points that the server has, as of point_text().
  std::vector<std::string> stored_points(const std::string& key);

  const fetch::FetchOptions& options_;
  fetch::HttpClient client_;
  std::string shown_, authorization_;
  Url url_;
  std::string experiment_id_, run_id_, artifact_uri_;  // set by send(), as the next
  bool is_new_ = false;
};

}  // namespace flow
