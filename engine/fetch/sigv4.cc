#include "engine/fetch/sigv4.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>

#include "engine/base/remote_url.hpp"
#include "engine/crypto/hmac.hpp"
#include "engine/fetch/text.hpp"
#include "flow/digest.hpp"

namespace flow::fetch {

namespace {

constexpr std::string_view kService = "s3", kAlgorithm = "AWS4-HMAC-SHA256";

/// Without spaces at both ends; inner ones become one.
std::string header_value(std::string_view value) {
  std::string out;
  for (char c : value) {
    bool is_space = c == ' ' || c == '\t';
    if (!is_space)
      out += c;
    else if (!out.empty() && out.back() != ' ')
      out += ' ';
  }
  if (out.ends_with(' ')) out.pop_back();
  return out;
}

}  // namespace

std::string signing_time(int64_t time_ms) {
  std::time_t seconds = static_cast<std::time_t>(time_ms / 1000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:%Y%m%dT%H%M%SZ}", parts);
}

std::string canonical_query(const QueryFields& query) {
  std::vector<std::pair<std::string, std::string>> encoded;
  for (const auto& [name, value] : query)
    encoded.emplace_back(percent_encode(name, false), percent_encode(value, false));
  std::ranges::sort(encoded);
  std::string out;
  for (const auto& [name, value] : encoded) {
    if (!out.empty()) out += '&';
    out.append(name).append("=").append(value);
  }
  return out;
}

Signature sign_request(const UnsignedRequest& request, const AwsCredentials& credentials,
                       std::string_view region, std::string_view time) {
  Signature out;
  out.headers = request.headers;
  out.headers.emplace_back("X-Amz-Date", time);
  if (!credentials.token.empty())
    out.headers.emplace_back("X-Amz-Security-Token", credentials.token);
  out.headers.emplace_back("X-Amz-Content-SHA256", request.payload);

  std::multimap<std::string, std::string> signed_headers{{"host", request.host}};
  for (const auto& [name, value] : out.headers)
    signed_headers.emplace(lower_case(name), header_value(value));
  std::string lines, names;
  for (auto at = signed_headers.begin(); at != signed_headers.end();) {
    const std::string& name = at->first;
    std::string values;
    auto end = signed_headers.upper_bound(name);
    if (!names.empty()) names += ';';
    names += name;
    for (auto each = at; each != end; ++each) values += (each == at ? "" : ",") + each->second;
    lines += name + ":" + values + "\n";
    at = end;
  }
  out.canonical_request =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.path,
                  canonical_query(request.query), lines, names, request.payload);

  std::string_view date = time.substr(0, 8);
  std::string scope = fmt::format("{}/{}/{}/aws4_request", date, region, kService);
  out.string_to_sign =
      fmt::format("{}\n{}\n{}\n{}", kAlgorithm, time, scope, sha256(out.canonical_request).hex());
  Digest key = hmac_sha256("AWS4" + credentials.secret, date);
  for (std::string_view part : {region, kService, std::string_view("aws4_request")})
    key = hmac_sha256(key.view(), part);
  out.headers.emplace_back("Authorization",
                           fmt::format("{} Credential={}/{}, SignedHeaders={}, Signature={}",
                                       kAlgorithm, credentials.key_id, scope, names,
                                       hmac_sha256(key.view(), out.string_to_sign).hex()));
  return out;
}

}  // namespace flow::fetch
