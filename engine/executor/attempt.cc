// What an attempt says and asks, over the wire.
#include "engine/executor/attempt.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/clock.hpp"
#include "engine/base/files.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kLogBytesMax = 64 << 20;  // of one attempt; what is over is counted, not kept
constexpr size_t kLogLineMax = 1 << 20;
constexpr int64_t kProgressUs = 50'000;  // progress more often than this is not sent

}  // namespace

Attempt::Attempt(Session& session, BlobFiles& blobs, const wire::Start& start,
                 std::string state_dir)
    : session_(session),
      blobs_(blobs),
      start_(start),
      state_dir_(std::move(state_dir)),
      began_us_(monotonic_us()) {}

void Attempt::log_stream(uint32_t stream, std::string_view text) {
  if (log_bytes_ > kLogBytesMax) {
    log_dropped_++;
    return;
  }
  std::string line(text.substr(0, kLogLineMax));
  for (const std::string& secret : start_.hide()) {
    if (secret.empty()) continue;
    for (size_t at = line.find(secret); at != std::string::npos; at = line.find(secret, at + 3))
      line.replace(at, secret.size(), "***");
  }
  log_bytes_ += line.size();
  wire::FromExecutor message;
  *message.mutable_log()->mutable_id() = start_.id();
  message.mutable_log()->set_stream(stream);
  message.mutable_log()->set_text(std::move(line));
  message.mutable_log()->set_at_ms(now_ms());
  session_.send(message, false);
}

void Attempt::progress(double fraction, const Value& metrics) {
  int64_t now = monotonic_us();
  if (now - last_progress_us_ < kProgressUs && fraction < 1) return;
  last_progress_us_ = now;
  wire::FromExecutor message;
  *message.mutable_progress()->mutable_id() = start_.id();
  message.mutable_progress()->set_fraction(fraction);
  message.mutable_progress()->set_metrics(encode_value(metrics));
  session_.send(message, true);
}

void Attempt::metric(const std::string& name, double value, int64_t step) {
  wire::FromExecutor message;
  *message.mutable_metric()->mutable_id() = start_.id();
  message.mutable_metric()->set_name(name);
  message.mutable_metric()->set_value(value);
  message.mutable_metric()->set_step(step);
  session_.send(message, false);
}

Status Attempt::save_step(const std::string& name, const Value& value) { return save(name, value); }

Status Attempt::save(const std::string& name, const Value& value) {
  wire::FromExecutor message;
  *message.mutable_save()->mutable_id() = start_.id();
  message.mutable_save()->set_name(name);
  message.mutable_save()->set_value(encode_value(value));
  for (auto& [digest, bytes] : blobs_.take_small()) {
    wire::Blob& blob = *message.mutable_save()->add_blobs();
    blob.set_digest(std::string(digest.view()));
    blob.set_data(std::move(bytes));
  }
  session_.send(message, true);
  if (session_.wait_saved(name)) return {};
  return environment_error(
      "this attempt has lost its lease: another one may run, so it can't save any more");
}

void Attempt::service_ready(const std::string& url) {
  wire::FromExecutor message;
  *message.mutable_ready()->mutable_id() = start_.id();
  message.mutable_ready()->set_url(url);
  session_.send(message, true);
}

Result<std::string> Attempt::file_path(const File& file) {
  return stage(file, start_.shell().stage_copy());
}

Result<std::string> Attempt::stage(const File& file, bool copy) {
  std::string name = file.name.empty() ? "input" : file.name;
  std::string identity = file.digest.hex() + (file.is_folder ? "/" : "") + name;
  auto known = staged_paths_.find(identity);
  if (known != staged_paths_.end()) return known->second;
  if (name == "." || name == ".." || name.find('/') != std::string::npos)
    return user_error(fmt::format("a file can't be named `{}`", name));
  std::string folder = fmt::format("{}/inputs/{}", start_.dir(), staged_paths_.size() + 1);
  FLOW_TRY(make_dirs(folder));
  std::string path = folder + "/" + name;
  auto place = [&](const std::string& source, const std::string& target,
                   bool executable) -> Status {
    struct stat info {};
    if (::stat(source.c_str(), &info) != 0)
      return environment_error(
          fmt::format("the input `{}` can't be read: {}", source, std::strerror(errno)));
    if (!copy && !executable) {
      if (::symlink(source.c_str(), target.c_str()) != 0)
        return environment_error(
            fmt::format("cannot write `{}`: {}", target, std::strerror(errno)));
    } else {
      std::error_code error;
      fs::copy_file(source, target, error);
      if (error)
        return environment_error(
            fmt::format("cannot copy `{}` to `{}`: {}", source, target, error.message()));
      mode_t mode = static_cast<mode_t>((copy ? 0600 : 0400) | (executable ? 0100 : 0));
      ::chmod(target.c_str(), mode);
      if (copy) return {};
      ::stat(target.c_str(), &info);
    }
    staged_.push_back({target, source, static_cast<uint64_t>(info.st_size),
                       info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec,
                       info.st_ctim.tv_sec * 1'000'000'000 + info.st_ctim.tv_nsec, info.st_ino});
    return {};
  };
  if (!file.is_folder) {
    std::string source = file.origin;
    if (source.empty()) {
      auto found = blobs_.path(file.digest, start_.dir() + "/.content");
      FLOW_TRY(found);
      source = *found;
    }
    FLOW_TRY(place(source, path, file.executable));
  } else {
    FLOW_TRY(make_dirs(path));
    for (const File::Entry& entry : file.entries) {
      fs::path relative = fs::path(entry.path).lexically_normal();
      if (relative.is_absolute() || relative.empty() || *relative.begin() == "..")
        return user_error(
            fmt::format("the folder `{}` has the unsafe path `{}`", name, entry.path));
      std::string source = file.origin.empty() ? "" : file.origin + "/" + entry.path;
      if (source.empty()) {
        auto found = blobs_.path(entry.digest, start_.dir() + "/.content");
        FLOW_TRY(found);
        source = *found;
      }
      std::string target = path + "/" + entry.path;
      FLOW_TRY(make_dirs(fs::path(target).parent_path().string()));
      FLOW_TRY(place(source, target, entry.executable));
    }
  }
  staged_paths_[identity] = path;
  return path;
}

Status Attempt::check_inputs() const {
  for (const Staged& input : staged_) {
    struct stat info {};
    bool same = ::stat(input.path.c_str(), &info) == 0 &&
                static_cast<uint64_t>(info.st_size) == input.size &&
                info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec == input.mtime_ns &&
                info.st_ino == input.inode;
    if (!same) {
      return user_error(
          fmt::format("input changed: `{}` was written to while the attempt ran; inputs are shared "
                      "and read-only, `stage = \"copy\"` gives writable copies",
                      input.path));
    }
  }
  return {};
}

Status Attempt::store_tensor(const Tensor& tensor) {
  return blobs_.store(tensor.digest, *tensor.data);
}

std::map<std::string, std::string> Attempt::environment() const {
  std::map<std::string, std::string> all = session_.environment(start_.id().run());
  for (const wire::EnvVar& variable : start_.env()) all[variable.name()] = variable.value();
  return all;
}

std::string Attempt::env(const std::string& name, bool& found) {
  for (const wire::EnvVar& variable : start_.env()) {
    if (variable.name() != name) continue;
    found = true;
    return variable.value();
  }
  const auto& all = session_.environment(start_.id().run());
  auto variable = all.find(name);
  found = variable != all.end();
  return found ? variable->second : "";
}

wire::Finished& Attempt::report(uint32_t outcome) {
  if (log_dropped_ > 0) {
    uint64_t dropped = log_dropped_;
    log_bytes_ = log_dropped_ = 0;
    log_stream(0, fmt::format("{} lines dropped: an attempt keeps {} MiB of log", dropped,
                              kLogBytesMax >> 20));
  }
  message_.Clear();
  wire::Finished& finished = *message_.mutable_finished();
  *finished.mutable_id() = start_.id();
  finished.set_outcome(outcome);
  finished.set_duration_us(monotonic_us() - began_us_);
  return finished;
}

void Attempt::finish(const Value& result, const PlanFragment* fragment) {
  wire::Finished& finished = report(0);
  finished.set_value(encode_value(result));
  if (fragment != nullptr) finished.set_fragment(encode_fragment(*fragment));
  for (auto& [digest, bytes] : blobs_.take_small()) {
    wire::Blob& blob = *finished.add_blobs();
    blob.set_digest(std::string(digest.view()));
    blob.set_data(std::move(bytes));
  }
  if (finished.value().size() > kFrameMax / 2) {
    fail(core::Cause::bad_result,
         fmt::format("`{}` returned a value of {} MiB; tables and strings up to {} MiB can cross "
                     "an edge: return a tensor or a file",
                     start_.task(), finished.value().size() >> 20, kFrameMax >> 21),
         "");
    return;
  }
  session_.send(message_, false);
}

void Attempt::fail(core::Cause cause, std::string message, std::string evidence, int code) {
  wire::Finished& finished = report(1);
  finished.set_cause(static_cast<uint32_t>(cause));
  finished.set_message(std::move(message));
  finished.set_evidence(std::move(evidence));
  finished.set_code(code);
  session_.send(message_, true);
}

void Attempt::stopped() {
  report(3);
  session_.send(message_, true);
}

void Attempt::waiting(const std::string& signal, const std::string& name, int64_t timeout_ms) {
  wire::Finished& finished = report(2);
  finished.set_signal(signal);
  finished.set_wait_name(name);
  finished.set_wait_timeout_ms(timeout_ms);
  session_.send(message_, true);
}

}  // namespace flow
