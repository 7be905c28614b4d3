#include "engine/fetch/s3_client.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <set>

#include "engine/base/clock.hpp"
#include "engine/base/glob.hpp"
#include "engine/fetch/retry_delay.hpp"
#include "flow/digest.hpp"

namespace flow::fetch {

namespace {

/// The server and the path of a bucket. A bucket with a dot would not match the certificate of its
/// own host name.
Url bucket_url(const S3Config& config, const std::string& bucket) {
  Url url;
  if (config.endpoint) {
    url = *config.endpoint;
    url.path += "/" + bucket;
    return url;
  }
  url.scheme = "https";
  std::string domain = config.region.starts_with("cn-") ? "amazonaws.com.cn" : "amazonaws.com";
  std::string server = fmt::format("s3.{}.{}", config.region, domain);
  bool is_path_style = bucket.find_first_of("._") != std::string::npos ||
                       std::ranges::any_of(bucket, [](char c) { return 'A' <= c && c <= 'Z'; });
  url.host = is_path_style ? server : bucket + "." + server;
  url.path = is_path_style ? "/" + bucket : "";
  return url;
}

class SignedObject : public RemoteObject {
 public:
  SignedObject(S3Config config, S3Location location)
      : config_(std::move(config)), location_(std::move(location)), shown_(to_text(location_)) {}
  HttpRequest request(const std::string& method, Headers headers) const override {
    return s3_request(config_, location_, method, {}, std::move(headers));
  }
  const std::string& shown() const override { return shown_; }

 private:
  S3Config config_;
  S3Location location_;
  std::string shown_;
};

class HttpObject : public RemoteObject {
 public:
  HttpObject(Url url, std::string shown) : url_(std::move(url)), shown_(std::move(shown)) {}
  HttpRequest request(const std::string& method, Headers headers) const override {
    HttpRequest request;
    request.method = method;
    request.url = url_;
    request.headers = std::move(headers);
    request.shown = shown_;
    return request;
  }
  const std::string& shown() const override { return shown_; }

 private:
  Url url_;
  std::string shown_;
};

/// The component that `text` begins with, which is removed with its `/`.
std::string take_component(std::string_view& text) {
  size_t end = std::min(text.find('/'), text.size());
  std::string component(text.substr(0, end));
  text.remove_prefix(std::min(end + 1, text.size()));
  return component;
}

std::vector<std::string> components_of(std::string_view text) {
  std::vector<std::string> out;
  bool has_more = true;
  while (has_more) {
    has_more = text.find('/') != std::string_view::npos;
    out.push_back(take_component(text));
  }
  return out;
}

/// The keys that can match begin with this.
std::string literal_prefix(std::string_view pattern) {
  return std::string(pattern.substr(0, pattern.find_first_of("*?[\\")));
}

}  // namespace

HttpRequest s3_request(const S3Config& config, const S3Location& location,
                       const std::string& method, const QueryFields& query, Headers headers,
                       std::string_view body) {
  HttpRequest request;
  request.method = method;
  request.follows_redirects = false;  // the signature is for this host
  request.shown = to_text(location);
  request.ca_file = config.ca_file;
  request.body = body;
  request.url = bucket_url(config, location.bucket);
  if (!location.key.empty()) request.url.path += "/" + percent_encode(location.key, true);
  if (request.url.path.empty()) request.url.path = "/";
  request.url.query = canonical_query(query);
  request.headers = headers;
  if (!config.credentials) return request;
  UnsignedRequest unsigned_request{method, host_header(request.url), request.url.path,
                                   query,  std::move(headers),       sha256(body).hex()};
  request.headers =
      sign_request(unsigned_request, *config.credentials, config.region, signing_time(now_ms()))
          .headers;
  return request;
}

std::unique_ptr<RemoteObject> s3_object(const S3Config& config, const S3Location& location) {
  return std::make_unique<SignedObject>(config, location);
}

Result<std::unique_ptr<RemoteObject>> open_remote(const std::string& url,
                                                  const EnvironmentVariables& environment) {
  if (!is_s3_url(url)) {
    auto parsed = parse_url(url);
    FLOW_TRY(parsed);
    return std::unique_ptr<RemoteObject>(
        std::make_unique<HttpObject>(std::move(*parsed), display_url(url)));
  }
  auto location = parse_s3_url(url);
  FLOW_TRY(location);
  if (location->key.empty() || location->key.ends_with('/'))
    return user_error(fmt::format("`{}` does not name an object: write s3://BUCKET/KEY", url));
  auto config = read_s3_config(environment);
  FLOW_TRY(config);
  return s3_object(*config, *location);
}

bool is_s3_pattern(const S3Location& location) { return is_glob(location.key); }

bool matches_key(std::string_view pattern, std::string_view key) {
  std::vector<std::string> wanted = components_of(pattern), given = components_of(key);
  // reaches[j]: the components of the pattern so far match the first j components of the key.
  std::vector<bool> reaches(given.size() + 1);
  reaches[0] = true;
  for (const std::string& part : wanted) {
    std::vector<bool> next(given.size() + 1);
    if (part == "**") {
      next[0] = reaches[0];
      for (size_t j = 0; j < given.size(); j++)
        next[j + 1] = reaches[j + 1] || (next[j] && !given[j].starts_with('.'));
    } else {
      for (size_t j = 0; j < given.size(); j++)
        next[j + 1] = reaches[j] && fnmatch(part.c_str(), given[j].c_str(), FNM_PERIOD) == 0;
    }
    reaches = std::move(next);
  }
  return reaches.back();
}

std::string s3_failure_text(const HttpResponse& response, const S3Config& config) {
  std::string region = response.header("x-amz-bucket-region");
  if (!region.empty() && region != config.region)
    return fmt::format("the bucket is in the region {}: set AWS_REGION={}", region, region);
  std::string text = failure_text(response);
  if (response.status == 401 || response.status == 403)
    text += config.credentials
                ? ": check the credentials and what they may do"
                : ": the request was not signed, because no credentials were found. Set "
                  "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE";
  return text;
}

Result<std::vector<std::string>> list_s3(const std::string& pattern_url, const S3Config& config,
                                         const FetchOptions& options) {
  auto location = parse_s3_url(pattern_url);
  FLOW_TRY(location);
  auto patterns = expand_braces(location->key);
  FLOW_TRY(patterns);
  std::set<std::string> keys;
  HttpClient client(options);
  for (const std::string& pattern : *patterns) {
    std::string token;
    do {
      QueryFields query{
          {"list-type", "2"}, {"prefix", literal_prefix(pattern)}, {"encoding-type", "url"}};
      if (!token.empty()) query.emplace_back("continuation-token", token);
      auto response = send_with_retries(client, options, [&] {
        return s3_request(config, {location->bucket, ""}, "GET", query, {});
      });
      FLOW_TRY(response);
      if (!response->ok())
        return user_error(
            fmt::format("cannot list `{}`: {}", pattern_url, s3_failure_text(*response, config)));
      auto page = parse_listing(response->body);
      if (!page.ok())
        return user_error(fmt::format("cannot list `{}`: {}", pattern_url, page.error().message));
      for (const S3Object& object : page->objects) {
        if (object.key.ends_with('/') || !matches_key(pattern, object.key)) continue;
        keys.insert(object.key);
        if (keys.size() > kS3MatchesMax)
          return user_error(
              fmt::format("`{}` matches more than {} objects: write a narrower pattern",
                          pattern_url, kS3MatchesMax));
      }
      if (!page->next.empty() && page->next == token)
        return user_error(fmt::format("cannot list `{}`: the server repeats a page", pattern_url));
      token = page->next;
    } while (!token.empty());
  }
  std::vector<std::string> urls;
  for (const std::string& key : keys) urls.push_back(to_text({location->bucket, key}));
  return urls;
}

}  // namespace flow::fetch
