// A response, and its head as HTTP/1.1 writes it.
#pragma once
#include <string>
#include <string_view>

namespace flow {

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::string fields = {};  // further header lines, each with CR LF at its end
};

/// {"error": message}
HttpResponse error_response(int status, std::string_view message);

/// The same for a client that should try again after a second.
HttpResponse busy_response(int status, std::string_view message);

/// The head with its empty line. `closes`: the connection ends after the response.
std::string response_head(const HttpResponse& response, bool closes);

}  // namespace flow
