#include "engine/fetch/object_download.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/crypto/file_digest.hpp"
#include "engine/fetch/parallel_transfers.hpp"
#include "engine/fetch/retry_delay.hpp"
#include "flow/value.hpp"

namespace flow::fetch {

namespace {

constexpr uint64_t kPiecesMax = 1000;                 // of one object
constexpr uint64_t kSaveEveryBytes = 8 << 20;         // progress is saved after this many bytes,
constexpr auto kSaveEvery = std::chrono::seconds(2);  // or after this time
constexpr int kChangesMax = 3;  // restarts because the object changed meanwhile
constexpr uint64_t kProgressFileMax = 1 << 20;
constexpr std::string_view kProgressSuffix = ".progress";

/// The locked file of a download.
class PartialFile {
 public:
  explicit PartialFile(std::string path) : path_(std::move(path)) {}
  ~PartialFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  /// Waits for processes that have the file.
  Status open(const FetchOptions& options) {
    while (true) {
      descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
      if (descriptor_ < 0) return failed("create");
      while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        FLOW_TRY(options.check_running());
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      if (is_named()) return {};
      ::close(std::exchange(descriptor_, -1));  // its last owner moved it away
    }
  }
  Status write(std::string_view bytes, uint64_t offset) {
    while (!bytes.empty()) {
      ssize_t written =
          ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return failed("write");
      bytes.remove_prefix(static_cast<size_t>(written));
      offset += static_cast<uint64_t>(written);
    }
    return {};
  }
  uint64_t size() const {
    struct stat info {};
    return ::fstat(descriptor_, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
  }
  Status resize(uint64_t size) {
    if (::ftruncate(descriptor_, static_cast<off_t>(size)) != 0) return failed("write");
    return {};
  }
  /// Opens an existing file that no process has and that was last written before `until`, in
  /// seconds of Unix time. Returns its size; nullopt if it is another one.
  std::optional<uint64_t> open_abandoned(int64_t until) {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor_ < 0 || ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) return std::nullopt;
    struct stat info {};
    bool is_abandoned = ::fstat(descriptor_, &info) == 0 && S_ISREG(info.st_mode) &&
                        info.st_mtime < until && is_named();
    return is_abandoned ? std::optional(static_cast<uint64_t>(info.st_size)) : std::nullopt;
  }
  /// Unless the file was moved away: another process may have a new one there.
  void remove() {
    if (is_named()) ::unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  bool is_named() const {
    struct stat held {
    }, named{};
    return ::fstat(descriptor_, &held) == 0 && ::stat(path_.c_str(), &named) == 0 &&
           held.st_ino == named.st_ino && held.st_dev == named.st_dev;
  }
  Error failed(const char* what) const {
    return environment_error(fmt::format("cannot {} `{}`: {}", what, path_, std::strerror(errno)));
  }
  std::string path_;
  int descriptor_ = -1;
};

/// What is known about the content in the file.
struct Progress {
  ObjectVersion version;
  uint64_t size = 0, range_bytes = 0;
  std::vector<uint64_t> done;  // bytes from the begin of each piece

  uint64_t begin_of(size_t piece) const { return piece * range_bytes; }
  uint64_t end_of(size_t piece) const { return std::min(size, (piece + 1) * range_bytes); }
  bool is_complete(size_t piece) const { return begin_of(piece) + done[piece] == end_of(piece); }
  /// The size that the file has at least.
  uint64_t bytes_to_last() const {
    uint64_t bytes = 0;
    for (size_t piece = 0; piece < done.size(); piece++)
      if (done[piece] > 0) bytes = begin_of(piece) + done[piece];
    return bytes;
  }
  /// The first incomplete piece, or their number.
  size_t first_incomplete() const {
    size_t piece = 0;
    while (piece < done.size() && is_complete(piece)) piece++;
    return piece;
  }
};

std::string encode_progress(const Progress& progress) {
  std::vector<Value> done;
  for (uint64_t each : progress.done) done.emplace_back(static_cast<int64_t>(each));
  return encode_value(Value::map({{"boot", boot_id()},
                                  {"etag", progress.version.etag},
                                  {"version", progress.version.version_id},
                                  {"modified", progress.version.last_modified},
                                  {"size", static_cast<int64_t>(progress.size)},
                                  {"piece", static_cast<int64_t>(progress.range_bytes)},
                                  {"done", Value::list(std::move(done))}}));
}

/// Progress of this boot, if the bytes can be used: after a power cut the file may lack some.
std::optional<Progress> decode_progress(std::string_view bytes) {
  auto value = decode_value(bytes);
  if (!value.ok() || value->kind() != Value::Kind::table) return std::nullopt;
  auto text = [&](std::string_view name) {
    const Value* found = value->find(name);
    return found != nullptr && found->kind() == Value::Kind::string ? found->as_string()
                                                                    : std::string();
  };
  auto number = [](const Value* found) {
    return found != nullptr && found->kind() == Value::Kind::integer ? found->as_integer()
                                                                     : int64_t{-1};
  };
  Progress progress;
  progress.version = {text("etag"), text("version"), text("modified"), std::nullopt};
  int64_t size = number(value->find("size")), piece = number(value->find("piece"));
  const Value* done = value->find("done");
  bool is_usable = text("boot") == boot_id() && progress.version.has_strong_etag() && size > 0 &&
                   piece > 0 && done != nullptr && done->kind() == Value::Kind::table;
  if (!is_usable) return std::nullopt;
  progress.size = static_cast<uint64_t>(size);
  progress.version.size = progress.size;
  progress.range_bytes = static_cast<uint64_t>(piece);
  for (const Value& each : done->as_table().list) {
    size_t at = progress.done.size();
    int64_t bytes = number(&each);
    if (bytes < 0 || progress.begin_of(at) >= progress.size ||
        static_cast<uint64_t>(bytes) > progress.end_of(at) - progress.begin_of(at))
      return std::nullopt;
    progress.done.push_back(static_cast<uint64_t>(bytes));
  }
  if (progress.done.size() != (progress.size + progress.range_bytes - 1) / progress.range_bytes)
    return std::nullopt;
  return progress;
}

/// Whether two answers may be of one version. The time of the last change counts only without an
/// ETag, and sizes only if both answers give one.
bool is_same_version(const ObjectVersion& one, const ObjectVersion& other) {
  if (one.size && other.size && *one.size != *other.size) return false;
  if (one.etag != other.etag) return false;
  return !one.etag.empty() || one.last_modified == other.last_modified;
}

/// The condition of a request that needs no content if the version is current.
Headers unless_current(const ObjectVersion& known) {
  if (!known.etag.empty()) return {{"If-None-Match", known.etag}};
  if (!known.last_modified.empty()) return {{"If-Modified-Since", known.last_modified}};
  return {};
}

class Downloader {
 public:
  Downloader(const DownloadOrder& order, const FetchOptions& options)
      : order_(order), options_(options), file_(order.partial), client_(options) {}

  Result<DownloadOutcome> run() {
    FLOW_TRY(file_.open(options_));
    if (order_.known) known_ = order_.known();
    for (int changes = 0; changes <= kChangesMax; changes++) {
      load_progress();
      auto round = run_round();
      FLOW_TRY(round);
      if (*round == Round::unchanged) {
        forget();
        return DownloadOutcome::unchanged;
      }
      if (*round == Round::complete) {
        FLOW_TRY(finish());
        return DownloadOutcome::kept;
      }
      progress_ = {};
      ::unlink(progress_path().c_str());
    }
    return user_error(fmt::format(
        "`{}` changed {} times while it was fetched: fetch it when it is no longer written",
        order_.object.shown(), kChangesMax + 1));
  }

 private:
  enum class Round : uint8_t { complete, unchanged, changed };

  std::string progress_path() const { return file_.path() + std::string(kProgressSuffix); }

  void forget() {
    file_.remove();
    ::unlink(progress_path().c_str());
  }

  void load_progress() {
    progress_ = {};
    auto bytes = read_file(progress_path(), kProgressFileMax);
    if (!bytes.ok()) return;
    auto progress = decode_progress(*bytes);
    if (progress && progress->bytes_to_last() <= file_.size()) progress_ = std::move(*progress);
  }

  /// With the mutex.
  Status save_progress() {
    unsaved_ = 0;
    saved_at_ = std::chrono::steady_clock::now();
    if (!progress_.version.has_strong_etag()) return {};
    return write_file_atomic(progress_path(), encode_progress(progress_));
  }

  Error server_error(const HttpResponse& response, uint32_t attempts) const {
    return user_error(fmt::format(
        "cannot fetch `{}`: {}{}{}", order_.object.shown(), failure_text(response),
        attempts > 0 ? fmt::format(" ({} attempts)", attempts + 1) : "",
        is_transient(response) ? ". Check the URL and the network, or use the copy in the state "
                                 "with --offline"
                               : advice(response)));
  }
  std::string advice(const HttpResponse& response) const {
    std::string region = response.header("x-amz-bucket-region");
    if (response.status == 301 && !region.empty())
      return fmt::format(": the bucket is in the region {}: set AWS_REGION={}", region, region);
    if (response.status == 401 || response.status == 403)
      return ": check the credentials and what they may read";
    if (response.status == 404) return ": check the URL";
    return "";
  }

  Result<Round> run_round() {
    auto first = fetch_first();
    FLOW_TRY(first);
    if (*first != Round::complete) return first;
    if (!is_whole_) {
      auto rest = fetch_rest();
      FLOW_TRY(rest);
      if (*rest != Round::complete) return rest;
    }
    return check_version();
  }

  // ---- the first exchange: learns version, size and whether the server has ranges

  Result<Round> fetch_first() {
    RetryDelay delay(options_);
    bool with_range = true;
    is_whole_ = false;
    while (true) {
      bool is_resumed = !progress_.done.empty();
      size_t piece = is_resumed ? progress_.first_incomplete() : 0;
      if (is_resumed && piece == progress_.done.size()) return Round::complete;
      uint64_t begin = is_resumed ? progress_.begin_of(piece) + progress_.done[piece] : 0;
      uint64_t end = is_resumed ? progress_.end_of(piece) : options_.range_bytes;
      Headers headers = known_ ? unless_current(*known_) : Headers();
      if (with_range) headers.emplace_back("Range", fmt::format("bytes={}-{}", begin, end - 1));
      Transfer transfer{begin, end};
      bool has_changed = false, is_divisible = true;
      BodyReceiver receiver;
      receiver.on_head = [&](const HttpResponse& response) -> Result<bool> {
        if (is_resumed && !is_same_version(version_of(response), progress_.version)) {
          has_changed = true;
          return false;
        }
        if (response.status != 206) return begin_whole(response, transfer);
        // Ranges of an object can be joined only if a strong ETag shows that they are of one
        // version (RFC 9110, 15.3.7.3).
        auto range = parse_content_range(response.header("content-range"));
        if (!with_range) {
          bool is_whole = range && range->first == 0 && range->total == range->last + 1;
          if (is_whole) return begin_whole(response, transfer);
          return defect("the server sent a range that was not asked for");
        }
        bool is_all = begin == 0 && range && range->total && *range->total <= end;
        is_divisible = version_of(response).has_strong_etag();
        if (!is_divisible && !is_all) return false;
        return begin_range(response, transfer);
      };
      receiver.on_data = [&](std::string_view data) { return take(transfer, data); };
      auto response = client_.send(order_.object.request("GET", headers), &receiver);
      if (!response.ok() && defect_.empty()) return response.error();
      if (has_changed) return Round::changed;
      bool is_divided = response.ok() && response->status == 206 && with_range;
      if (is_divided && !is_divisible && progress_.done.empty()) {
        with_range = false;
        continue;
      }
      bool is_usable = response.ok() && defect_.empty();
      if (is_usable && response->failure.empty()) {
        if (response->status == 304 && known_) return Round::unchanged;
        bool is_empty = response->status == 416 && with_range;
        if (is_empty) {  // an empty object has no ranges
          with_range = false;
          progress_ = {};
          continue;
        }
        if (response->ok()) {
          if (is_whole_ ? is_whole_complete(transfer) : transfer.at == transfer.end)
            return Round::complete;
          defect_ = "the answer is shorter than its headers say";
        } else if (!is_transient(*response)) {
          return server_error(*response, 0);
        }
      }
      if (transfer.at > begin && !is_whole_) delay.reset();
      HttpResponse failure = response.ok() ? *response : HttpResponse();
      if (!defect_.empty()) {
        failure.failure = std::exchange(defect_, "");
        failure.may_retry = true;
      }
      is_whole_ = false;
      if (!progress_.version.has_strong_etag()) progress_ = {};  // starts again
      if (!is_transient(failure)) return server_error(failure, 0);
      auto again = delay.wait(failure);
      FLOW_TRY(again);
      if (!*again) return server_error(failure, delay.failures());
    }
  }

  struct Transfer {
    uint64_t at, end;  // offsets in the file
    size_t piece = 0;
  };

  bool is_whole_complete(const Transfer& transfer) const {
    return !progress_.version.size || transfer.at == *progress_.version.size;
  }

  Result<bool> begin_range(const HttpResponse& response, Transfer& transfer) {
    auto range = parse_content_range(response.header("content-range"));
    if (!range || !range->total || range->first != transfer.at)
      return defect("the server sent another range than asked");
    if (progress_.done.empty()) {
      progress_.version = version_of(response);
      progress_.size = *range->total;
      constexpr uint64_t kRound = 1 << 20;
      uint64_t least = (progress_.size + kPiecesMax - 1) / kPiecesMax;
      progress_.range_bytes = options_.range_bytes;
      if (least > progress_.range_bytes)
        progress_.range_bytes = (least + kRound - 1) / kRound * kRound;
      progress_.done.assign((progress_.size + progress_.range_bytes - 1) / progress_.range_bytes,
                            0);
      FLOW_TRY(file_.resize(0));
    }
    transfer.piece = transfer.at / progress_.range_bytes;
    transfer.end = std::min(transfer.end, progress_.size);
    if (range->last != transfer.end - 1) return defect("the server sent another range than asked");
    return true;
  }

  Result<bool> begin_whole(const HttpResponse& response, Transfer& transfer) {
    if (response.status == 204 || response.status == 205)
      return defect("the server sent an answer without content");
    is_whole_ = true;
    progress_ = {};
    progress_.version = version_of(response);
    if (!progress_.version.size && !response.header("content-length").empty())
      return defect("the server sent a Content-Length that is not a number");
    transfer.at = 0;
    transfer.end = progress_.version.size.value_or(UINT64_MAX);
    FLOW_TRY(file_.resize(0));
    return true;
  }

  /// The error ends the exchange; defect_ makes it a failed attempt.
  Error defect(const char* text) {
    std::lock_guard lock(mutex_);
    defect_ = text;
    return user_error(text);
  }

  Status take(Transfer& transfer, std::string_view data) {
    if (data.size() > transfer.end - transfer.at)
      return defect("the server sent more bytes than its headers say");
    FLOW_TRY(file_.write(data, transfer.at));
    transfer.at += data.size();
    if (is_whole_) return {};
    std::lock_guard lock(mutex_);
    progress_.done[transfer.piece] += data.size();
    unsaved_ += data.size();
    bool is_due =
        unsaved_ >= kSaveEveryBytes || std::chrono::steady_clock::now() - saved_at_ >= kSaveEvery;
    return is_due ? save_progress() : Status();
  }

  // ---- the other ranges, in parallel

  Result<Round> fetch_rest() {
    std::vector<size_t> pieces;
    for (size_t piece = 0; piece < progress_.done.size(); piece++) {
      if (!progress_.is_complete(piece)) pieces.push_back(piece);
    }
    if (pieces.empty()) return Round::complete;
    {
      std::lock_guard lock(mutex_);
      FLOW_TRY(save_progress());
    }
    std::atomic<bool> has_changed = false;
    auto fetch = [&](size_t at, HttpClient& client, const FetchOptions& options) -> Status {
      auto round = fetch_piece(pieces[at], client, options);
      FLOW_TRY(round);
      if (*round == Round::complete) return {};
      has_changed = true;
      return Error{ErrorKind::interrupted, "the object changed"};
    };
    Status fetched = transfer_pieces(pieces.size(), options_, fetch);
    if (fetched.ok()) return Round::complete;
    {
      std::lock_guard lock(mutex_);
      FLOW_TRY(save_progress());
    }
    if (has_changed) return Round::changed;
    return fetched.error();
  }

  Result<Round> fetch_piece(size_t piece, HttpClient& client, const FetchOptions& options) {
    RetryDelay delay(options);
    while (!progress_.is_complete(piece)) {
      uint64_t begin = progress_.begin_of(piece) + progress_.done[piece];
      Transfer transfer{begin, progress_.end_of(piece), piece};
      Headers headers{{"Range", fmt::format("bytes={}-{}", begin, transfer.end - 1)}};
      if (progress_.version.has_strong_etag())
        headers.emplace_back("If-Match", progress_.version.etag);
      bool has_changed = false;
      std::string wrong;
      BodyReceiver receiver;
      receiver.on_head = [&](const HttpResponse& response) -> Result<bool> {
        has_changed =
            response.status != 206 || !is_same_version(version_of(response), progress_.version);
        if (has_changed) return false;
        auto range = parse_content_range(response.header("content-range"));
        if (range && range->first == begin && range->last == transfer.end - 1) return true;
        wrong = "the server sent another range than asked";
        return false;
      };
      receiver.on_data = [&](std::string_view data) -> Status {
        if (data.size() <= transfer.end - transfer.at) return take(transfer, data);
        wrong = "the server sent more bytes than its headers say";
        return user_error(wrong);
      };
      auto response = client.send(order_.object.request("GET", headers), &receiver);
      if (!response.ok() && wrong.empty()) return response.error();
      if (has_changed || (response.ok() && (response->status == 412 || response->status == 416)))
        return Round::changed;
      HttpResponse failure = response.ok() ? *response : HttpResponse();
      if (failure.ok() && wrong.empty()) {
        if (transfer.at == transfer.end) continue;
        wrong = "the answer is shorter than its headers say";
      }
      if (!wrong.empty()) {
        failure.failure = wrong;
        failure.may_retry = true;
      }
      if (!is_transient(failure)) return server_error(failure, 0);
      if (transfer.at > begin) delay.reset();
      auto again = delay.wait(failure);
      FLOW_TRY(again);
      if (!*again) return server_error(failure, delay.failures());
    }
    return Round::complete;
  }

  // ---- the end

  /// Asks whether the object still has the version that was fetched.
  Result<Round> check_version() {
    if (!progress_.version.can_be_asked_for()) return Round::complete;
    RetryDelay delay(options_);
    while (true) {
      Headers headers;
      if (!is_whole_) headers.emplace_back("Range", "bytes=0-0");
      if (progress_.version.has_strong_etag())
        headers.emplace_back("If-Match", progress_.version.etag);
      ObjectVersion now;
      BodyReceiver receiver;
      receiver.on_head = [&](const HttpResponse& response) -> Result<bool> {
        now = version_of(response);
        return false;
      };
      receiver.on_data = [](std::string_view) { return Status(); };
      auto response = client_.send(order_.object.request("GET", headers), &receiver);
      FLOW_TRY(response);
      if (response->ok())
        return is_same_version(now, progress_.version) ? Round::complete : Round::changed;
      if (!is_transient(*response)) return Round::changed;
      auto again = delay.wait(*response);
      FLOW_TRY(again);
      if (!*again) return server_error(*response, delay.failures());
    }
  }

  Status finish() {
    auto content = sha256_file(file_.path());
    FLOW_TRY(content);
    if (order_.expected && content->digest != *order_.expected) {
      forget();
      return user_error(
          fmt::format("`{}` has the SHA-256 {}, and the script says sha256 = \"{}\": the file was "
                      "changed or is "
                      "another one. Check it, and correct the script",
                      order_.object.shown(), content->digest.hex(), order_.expected->hex()));
    }
    progress_.version.size = content->size;
    ::unlink(progress_path().c_str());
    Status kept = order_.keep({file_.path(), progress_.version, content->digest, content->size});
    file_.remove();
    return kept;
  }

  const DownloadOrder& order_;
  const FetchOptions& options_;
  PartialFile file_;
  HttpClient client_;
  std::optional<ObjectVersion> known_;
  bool is_whole_ = false;  // the server sends the whole object only
  std::mutex mutex_;       // for the rest, while ranges are fetched in parallel
  Progress progress_;
  uint64_t unsaved_ = 0;
  std::chrono::steady_clock::time_point saved_at_ = std::chrono::steady_clock::now();
  std::string defect_;  // why the first exchange must be repeated
};

}  // namespace

Result<DownloadOutcome> download(const DownloadOrder& order, const FetchOptions& options) {
  return Downloader(order, options).run();
}

bool is_current(const RemoteObject& object, const ObjectVersion& known,
                const FetchOptions& options) {
  Headers headers = unless_current(known);
  if (headers.empty()) return false;
  HttpClient client(options);
  BodyReceiver receiver;
  receiver.on_head = [](const HttpResponse&) -> Result<bool> { return false; };
  receiver.on_data = [](std::string_view) { return Status(); };
  auto response = client.send(object.request("GET", headers), &receiver);
  return response.ok() && response->failure.empty() && response->status == 304;
}

uint64_t remove_unfinished_downloads(const std::string& folder, int64_t keep_s) {
  namespace fs = std::filesystem;
  std::error_code failed;
  uint64_t freed = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed)) {
    const std::string& path = entry.path().native();
    if (path.ends_with(kProgressSuffix)) {
      // Its download is already gone; save_progress() writes only while the file exists.
      std::string partial = path.substr(0, path.size() - kProgressSuffix.size());
      if (!fs::exists(partial, failed)) ::unlink(path.c_str());
      continue;
    }
    PartialFile file(path);
    auto size = file.open_abandoned(::time(nullptr) - keep_s);
    if (!size) continue;
    freed += *size;
    file.remove();
    ::unlink((path + std::string(kProgressSuffix)).c_str());
  }
  return freed;
}

}  // namespace flow::fetch
