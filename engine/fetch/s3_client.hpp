// Signed requests to S3 and compatible servers, and lists of objects.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/fetch/aws_config.hpp"
#include "engine/fetch/http_client.hpp"
#include "engine/fetch/remote_object.hpp"
#include "engine/fetch/s3_xml.hpp"

namespace flow::fetch {

/// The request for the object, or for the bucket if the key is "". Signed with the time of the call
/// if there are credentials.
HttpRequest s3_request(const S3Config& config, const S3Location& location,
                       const std::string& method, const QueryFields& query, Headers headers,
                       std::string_view body = {});

std::unique_ptr<RemoteObject> s3_object(const S3Config& config, const S3Location& location);

/// Whether the key has `*`, `?`, `[` or `{a,b}`.
bool is_s3_pattern(const S3Location& location);
/// Whether the whole key matches. `*`, `?` and `[…]` match no `/`, and a leading dot only where the
/// pattern has it; `**` as a whole component is any number of components.
bool matches_key(std::string_view pattern, std::string_view key);

/// URLs of the objects that match the pattern, sorted bytewise, each once. Folder markers (keys
/// that end with `/`) are left out. Error if there are more than kS3MatchesMax.
Result<std::vector<std::string>> list_s3(const std::string& pattern_url, const S3Config& config,
                                         const FetchOptions& options);
constexpr size_t kS3MatchesMax = 1'000'000;

/// The error for a failed request to S3: what was done, why, and what to do.
std::string s3_failure_text(const HttpResponse& response, const S3Config& config);

}  // namespace flow::fetch
