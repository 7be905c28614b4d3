// AWS Signature Version 4 of a request's headers, for S3.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flow::fetch {

using Headers = std::vector<std::pair<std::string, std::string>>;      // name, value
using QueryFields = std::vector<std::pair<std::string, std::string>>;  // name, value; not encoded

struct AwsCredentials {
  std::string key_id, secret, token;  // `token` is "" for permanent credentials
  bool operator==(const AwsCredentials&) const = default;
};

struct UnsignedRequest {
  std::string method;   // upper case
  std::string host;     // the header `Host`
  std::string path;     // percent-encoded once, begins with `/`
  QueryFields query;    // any order
  Headers headers;      // further headers to sign
  std::string payload;  // SHA-256 of the body, in hexadecimal
};

/// "20130524T000000Z" of a time in ms since the Unix epoch.
std::string signing_time(int64_t time_ms);

/// What is hashed and signed, exposed for tests.
struct Signature {
  std::string canonical_request, string_to_sign;
  Headers headers;  // to be sent: those of the request, x-amz-*, and Authorization
};
Signature sign_request(const UnsignedRequest& request, const AwsCredentials& credentials,
                       std::string_view region, std::string_view time);

/// `a=1&b=` with names and values encoded, sorted by encoded name, then by encoded value.
std::string canonical_query(const QueryFields& query);

}  // namespace flow::fetch
