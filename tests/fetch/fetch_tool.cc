// The library's functions as commands for the tests in Python. Each prints one JSON object per
// line.
//   sign                        signs the requests that it reads, one JSON object per line
//   get URL FILE [SHA256 [ETAG]]  downloads into FILE
//   list URL                    objects that match
//   put FILE URL RECORD         uploads
// FLOW_TEST_PIECE and FLOW_TEST_BACKOFF change range_bytes and backoff_ms.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "engine/fetch/object_download.hpp"
#include "engine/fetch/s3_upload.hpp"
#include "flow/value.hpp"

extern char** environ;

namespace {

using namespace flow;
using namespace flow::fetch;

EnvironmentVariables environment() {
  EnvironmentVariables all;
  for (char** entry = environ; *entry != nullptr; entry++) {
    std::string text = *entry;
    if (size_t equals = text.find('='); equals != std::string::npos)
      all.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return all;
}

template <typename T>
T valid(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "error: %s\n", result.error().message.c_str());
  std::exit(result.error().kind == ErrorKind::user ? 2 : 4);
}

FetchOptions options() {
  FetchOptions all = valid(read_fetch_options(environment()));
  all.backoff_ms = 1;
  if (const char* text = std::getenv("FLOW_TEST_PIECE"))
    all.range_bytes = std::strtoull(text, nullptr, 10);
  if (const char* text = std::getenv("FLOW_TEST_BACKOFF")) all.backoff_ms = std::atoll(text);
  return all;
}

std::string text_of(const Value& value, std::string_view name) {
  return value.find(name)->as_string();
}

std::vector<std::pair<std::string, std::string>> pairs_of(const Value& value,
                                                          std::string_view name) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const Value& each : value.find(name)->as_table().list)
    pairs.emplace_back(each.as_table().list[0].as_string(), each.as_table().list[1].as_string());
  return pairs;
}

void sign() {
  for (std::string line; std::getline(std::cin, line);) {
    Value given = valid(from_json(line));
    UnsignedRequest request{text_of(given, "method"),
                            text_of(given, "host"),
                            percent_encode(text_of(given, "path"), true),
                            pairs_of(given, "query"),
                            pairs_of(given, "headers"),
                            sha256(text_of(given, "body")).hex()};
    AwsCredentials credentials{text_of(given, "key"), text_of(given, "secret"),
                               text_of(given, "token")};
    Signature made =
        sign_request(request, credentials, text_of(given, "region"), text_of(given, "time"));
    Value out = Value::map({{"canonical", made.canonical_request},
                            {"to_sign", made.string_to_sign},
                            {"authorization", made.headers.back().second}});
    std::puts(to_json(out).c_str());
  }
}

void get(int count, char** words) {
  auto object = valid(open_remote(words[0], environment()));
  std::string etag = count > 3 ? words[3] : "";
  DownloadOrder order{*object, std::string(words[1]) + ".part", {}, {}, {}};
  if (Digest expected; count > 2 && Digest::parse_hex(words[2], expected))
    order.expected = expected;
  order.known = [&]() -> std::optional<ObjectVersion> {
    if (etag.empty()) return std::nullopt;
    return ObjectVersion{etag, "", "", std::nullopt};
  };
  order.keep = [&](const DownloadedFile& file) -> Status {
    if (::rename(file.path.c_str(), words[1]) != 0) return environment_error("rename failed");
    Value out = Value::map({{"etag", file.version.etag},
                            {"size", static_cast<int64_t>(file.size)},
                            {"sha256", file.digest.hex()}});
    std::puts(to_json(out).c_str());
    return {};
  };
  if (valid(download(order, options())) == DownloadOutcome::unchanged)
    std::puts("{\"unchanged\":true}");
}

}  // namespace

int main(int argc, char** argv) {
  std::string command = argc > 1 ? argv[1] : "";
  if (command == "sign") {
    sign();
  } else if (command == "get" && argc >= 4) {
    get(argc - 2, argv + 2);
  } else if (command == "list" && argc == 3) {
    S3Config config = valid(read_s3_config(environment()));
    for (const std::string& url : valid(list_s3(argv[2], config, options())))
      std::puts(to_json(Value(url)).c_str());
  } else if (command == "put" && argc == 5) {
    S3Config config = valid(read_s3_config(environment()));
    UploadOrder order{valid(parse_s3_url(argv[3])), argv[2], argv[4]};
    bool is_sent = valid(upload(order, config, options())) == UploadOutcome::uploaded;
    std::puts(is_sent ? "\"uploaded\"" : "\"already there\"");
  } else {
    std::fputs("unknown command\n", stderr);
    return 2;
  }
  return 0;
}
