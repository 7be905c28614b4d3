#include "engine/fetch/s3_upload.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/base/files.hpp"
#include "engine/crypto/file_digest.hpp"
#include "engine/fetch/parallel_transfers.hpp"
#include "engine/fetch/retry_delay.hpp"

namespace flow::fetch {

namespace {

constexpr uint64_t kPartsMax = 10'000;  // S3's own limit
constexpr uint64_t kRecordMax = 64 << 10;
constexpr const char* kDigestHeader = "x-amz-meta-flow-sha256";

class Uploader {
 public:
  Uploader(const UploadOrder& order, const S3Config& config, const FetchOptions& options)
      : order_(order), config_(config), options_(options), client_(options) {}
  ~Uploader() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  Result<UploadOutcome> run() {
    descriptor_ = ::open(order_.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) return unreadable();
    auto content = sha256_descriptor(descriptor_, order_.path,
                                     [&](std::string_view) { return options_.check_running(); });
    FLOW_TRY(content);
    content_ = *content;
    auto is_there = has_object();
    FLOW_TRY(is_there);
    if (*is_there) return UploadOutcome::already_there;
    if (content_.size <= options_.range_bytes)
      FLOW_TRY(put_whole());
    else
      FLOW_TRY(put_parts());
    return UploadOutcome::uploaded;
  }

 private:
  Error unreadable() const {
    return environment_error(
        fmt::format("cannot read `{}`: {}", order_.path, std::strerror(errno)));
  }

  Error refused(const HttpResponse& response) const {
    return environment_error(fmt::format("cannot write `{}`: {}", to_text(order_.location),
                                         s3_failure_text(response, config_)));
  }

  Result<HttpResponse> send(HttpClient& client, const FetchOptions& options,
                            const std::string& method, const QueryFields& query,
                            const Headers& headers, std::string_view body) const {
    return send_with_retries(client, options, [&] {
      return s3_request(config_, order_.location, method, query, headers, body);
    });
  }

  /// Whether the server has this content under the key.
  Result<bool> has_object() {
    auto response = send(client_, options_, "HEAD", {}, {}, "");
    FLOW_TRY(response);
    if (response->status == 404) return false;
    // Without the permission to list, S3 answers 403 for a missing object: try to write it.
    if (response->status == 403) return false;
    if (!response->ok()) return refused(*response);
    return response->header(kDigestHeader) == content_.digest.hex() &&
           response->header("content-length") == std::to_string(content_.size);
  }

  Result<std::string> read_range(uint64_t begin, uint64_t size) const {
    std::string bytes(size, '\0');
    for (uint64_t at = 0; at < size;) {
      ssize_t got =
          ::pread(descriptor_, bytes.data() + at, size - at, static_cast<off_t>(begin + at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return unreadable();
      if (got == 0)
        return environment_error(
            fmt::format("`{}` became shorter while it was copied", order_.path));
      at += static_cast<uint64_t>(got);
    }
    return bytes;
  }

  Status put_whole() {
    auto bytes = read_range(0, content_.size);
    FLOW_TRY(bytes);
    auto response =
        send(client_, options_, "PUT", {}, {{kDigestHeader, content_.digest.hex()}}, *bytes);
    FLOW_TRY(response);
    return response->ok() ? Status() : Status(refused(*response));
  }

  // ---- multipart

  uint64_t part_bytes() const {
    constexpr uint64_t kRound = 1 << 20;
    uint64_t least = (content_.size + kPartsMax - 1) / kPartsMax;
    if (least <= options_.range_bytes) return options_.range_bytes;
    return (least + kRound - 1) / kRound * kRound;
  }
  uint32_t part_count() const {
    return static_cast<uint32_t>((content_.size + part_bytes() - 1) / part_bytes());
  }
  uint64_t size_of(uint32_t number) const {
    return std::min(part_bytes(), content_.size - (number - 1) * part_bytes());
  }

  /// The upload that the record names, if it is of this content and the server still has it.
  Result<bool> resume_upload() {
    if (order_.record.empty()) return false;
    auto record = read_file(order_.record, kRecordMax);
    if (!record.ok()) return false;
    std::string expected = record_text("");
    if (!record->starts_with(expected)) return false;
    upload_id_ = record->substr(expected.size());
    uint32_t marker = 0;
    do {
      auto response =
          send(client_, options_, "GET",
               {{"uploadId", upload_id_}, {"part-number-marker", std::to_string(marker)}}, {}, "");
      FLOW_TRY(response);
      if (response->status == 404) return false;
      if (!response->ok()) return refused(*response);
      auto page = parse_parts(response->body);
      if (!page.ok()) return environment_error(page.error().message);
      for (const S3Part& part : page->parts) {
        if (part.number <= part_count() && part.size == size_of(part.number))
          etags_[part.number] = part.etag;
      }
      if (page->next != 0 && page->next <= marker)
        return environment_error(
            fmt::format("`{}`: the server repeats a page of parts", to_text(order_.location)));
      marker = page->next;
    } while (marker != 0);
    return true;
  }

  std::string record_text(const std::string& upload_id) const {
    return fmt::format("{}\n{}\n{}\n{}", to_text(order_.location), content_.digest.hex(),
                       part_bytes(), upload_id);
  }

  Status start_upload() {
    etags_.clear();
    auto response = send(client_, options_, "POST", {{"uploads", ""}},
                         {{kDigestHeader, content_.digest.hex()}}, "");
    FLOW_TRY(response);
    if (!response->ok()) return refused(*response);
    auto root = parse_xml(response->body);
    upload_id_ = root.ok() ? root->text_of("UploadId") : "";
    if (upload_id_.empty())
      return environment_error(fmt::format("cannot write `{}`: the server's answer names no upload",
                                           to_text(order_.location)));
    if (order_.record.empty()) return {};
    return write_file_atomic(order_.record, record_text(upload_id_));
  }

  Status put_parts() {
    auto is_resumed = resume_upload();
    FLOW_TRY(is_resumed);
    if (!*is_resumed) FLOW_TRY(start_upload());
    std::vector<uint32_t> missing;
    for (uint32_t number = 1; number <= part_count(); number++) {
      if (!etags_.contains(number)) missing.push_back(number);
    }
    FLOW_TRY(send_parts(missing));
    return complete();
  }

  Status send_parts(const std::vector<uint32_t>& numbers) {
    std::mutex mutex;
    auto send = [&](size_t at, HttpClient& client, const FetchOptions& options) -> Status {
      auto etag = send_part(numbers[at], client, options);
      FLOW_TRY(etag);
      std::lock_guard lock(mutex);
      etags_[numbers[at]] = *etag;
      return {};
    };
    return transfer_pieces(numbers.size(), options_, send);
  }

  Result<std::string> send_part(uint32_t number, HttpClient& client,
                                const FetchOptions& options) const {
    auto bytes = read_range((number - 1) * part_bytes(), size_of(number));
    FLOW_TRY(bytes);
    auto response =
        send(client, options, "PUT",
             {{"partNumber", std::to_string(number)}, {"uploadId", upload_id_}}, {}, *bytes);
    FLOW_TRY(response);
    std::string etag = response->header("etag");
    if (!response->ok() || etag.empty()) return refused(*response);
    return etag;
  }

  static std::string escaped(std::string_view text) {
    std::string out;
    for (char c : text) {
      if (c == '&')
        out += "&amp;";
      else if (c == '<')
        out += "&lt;";
      else if (c == '"')
        out += "&quot;";
      else
        out += c;
    }
    return out;
  }

  Status complete() {
    std::string body = "<CompleteMultipartUpload>";
    for (const auto& [number, etag] : etags_)
      body += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", number,
                          escaped(etag));
    body += "</CompleteMultipartUpload>";
    auto response = send(client_, options_, "POST", {{"uploadId", upload_id_}}, {}, body);
    FLOW_TRY(response);
    // S3 may answer 200 and report the failure in the body.
    bool is_done = response->ok() && parse_s3_failure(response->body).code.empty();
    if (!is_done) {
      // An earlier attempt may have completed it, whose answer was lost.
      auto is_there = has_object();
      if (!is_there.ok() || !*is_there) {
        HttpResponse failed = *response;
        if (failed.ok()) failed.failure = "the server could not join the parts";
        return refused(failed);
      }
    }
    if (!order_.record.empty()) ::unlink(order_.record.c_str());
    return {};
  }

  const UploadOrder& order_;
  const S3Config& config_;
  const FetchOptions& options_;
  HttpClient client_;
  int descriptor_ = -1;
  FileDigest content_;
  std::string upload_id_;
  std::map<uint32_t, std::string> etags_;  // of the parts that the server has
};

}  // namespace

Result<UploadOutcome> upload(const UploadOrder& order, const S3Config& config,
                             const FetchOptions& options) {
  return Uploader(order, config, options).run();
}

}  // namespace flow::fetch
