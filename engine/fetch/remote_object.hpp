// An object at a URL: makes the requests for it.
#pragma once
#include <memory>
#include <string>

#include "engine/base/environment_variables.hpp"
#include "engine/fetch/http_client.hpp"

namespace flow::fetch {

/// Thread-safe.
class RemoteObject {
 public:
  virtual ~RemoteObject() = default;
  virtual HttpRequest request(const std::string& method, Headers headers) const = 0;
  virtual const std::string& shown() const = 0;  // the URL without secrets
};

/// For http, https and s3 URLs; credentials of S3 are from `environment`.
Result<std::unique_ptr<RemoteObject>> open_remote(const std::string& url,
                                                  const EnvironmentVariables& environment);

}  // namespace flow::fetch
