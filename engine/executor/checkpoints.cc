// Writes checkpoints while the attempt runs.
#include "engine/executor/checkpoints.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/blobs/folder.hpp"
#include "engine/blobs/mapped_file.hpp"
#include "engine/protocol/frames.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

// Bytes between checks whether the checkpoint is still wanted.
constexpr size_t kPiece = 4 << 20;
constexpr size_t kRowMax = kFrameMax / 2;  // per message

Error failed(const char* what, const std::string& path) {
  return environment_error(fmt::format("cannot {} `{}`: {}", what, path, std::strerror(errno)));
}

/// A permanent error: a retry cannot help, and only the user can decide to start without it.
Error unusable(const std::string& path, const std::string& why) {
  return user_error(fmt::format(
      "the checkpoint `{}` {}; put the file back and `flow resume`, or begin without it: `flow run "
      "--fresh`",
      path, why));
}

/// A file that has a temporary name until it is complete.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string target) : target_(std::move(target)), path_(target_ + ".tmp") {
    descriptor_ =
        ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  }
  ~TemporaryFile() {
    if (descriptor_ < 0) return;
    ::close(descriptor_);
    if (!kept_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  Status keep() {
    if (::rename(path_.c_str(), target_.c_str()) != 0) return failed("write", target_);
    kept_ = true;
    return {};
  }

 private:
  std::string target_, path_;
  int descriptor_;
  bool kept_ = false;
};

}  // namespace

Checkpoints::Checkpoints(std::string state_dir) : state_dir_(std::move(state_dir)) {}

Checkpoints::~Checkpoints() {
  {
    std::lock_guard lock(mutex_);
    is_over_ = is_dropped_ = true;
    waiting_.reset();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Checkpoints::begin(std::string row, std::function<Target()> make_target) {
  std::lock_guard lock(mutex_);
  FLOW_CHECK(!waiting_);
  attempt_++;
  make_target_ = std::move(make_target);
  target_.reset();
  newest_ = std::move(row);
  error_.reset();
  on_idle_ = nullptr;
  count_ = 0;
  is_fenced_ = is_dropped_ = false;
}

Status Checkpoints::error() {
  std::lock_guard lock(mutex_);
  return take_error();
}

Status Checkpoints::take_error() {
  if (is_fenced_)
    return environment_error(
        "this attempt has lost its lease: another one may run, so it can't save any more");
  if (!error_) return {};
  Error error = std::move(*error_);
  error_.reset();
  return error;
}

Status Checkpoints::save(const Value& state, Blobs blobs, MetricSteps metric_steps) {
  Job job;
  job.blobs = std::move(blobs);
  job.has_file = holds_tensors(state);
  if (job.has_file) {
    auto file = flatten_checkpoint(state);
    FLOW_TRY(file);
    job.file = std::move(*file);
    job.needs = files_in(state);
    job.metric_steps = std::move(metric_steps);
  } else {
    job.row = encode_checkpoint_row({state, "", {}, std::move(metric_steps)}, state);
    if (job.row.size() > kRowMax)
      return user_error(
          fmt::format("the state has {} MiB of tables and strings, which may have up to {} MiB: "
                      "use a tensor or a file",
                      job.row.size() >> 20, kRowMax >> 20));
  }
  std::lock_guard lock(mutex_);
  FLOW_TRY(take_error());
  job.attempt = attempt_;
  if (!target_) target_ = make_target_();
  job.commit = target_->commit;
  job.folder = target_->folder;
  job.name = fmt::format("{}/{}-{}.safetensors", target_->folder, target_->mark, ++count_);
  waiting_ = std::move(job);
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  changed_.notify_all();
  return {};
}

Status Checkpoints::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_idle(); });
  return take_error();
}

void Checkpoints::when_idle(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!is_idle()) {
      on_idle_ = std::move(callback);
      return;
    }
  }
  callback();
}

void Checkpoints::drop() {
  std::unique_lock lock(mutex_);
  waiting_.reset();
  is_dropped_ = true;
  // A file that is being synced holds no memory. It is removed here, because the process may end
  // before the sync does.
  changed_.wait(lock, [this] { return !is_busy() || is_syncing_; });
  if (is_busy()) ::unlink(syncing_.c_str());
}

Result<std::optional<Value>> Checkpoints::newest(MetricSteps* metric_steps) {
  std::string row;
  {
    std::lock_guard lock(mutex_);
    row = newest_;
  }
  if (row.empty()) return std::optional<Value>();
  auto decoded = decode_checkpoint_row(row);
  FLOW_TRY(decoded);
  if (metric_steps != nullptr) *metric_steps = decoded->metric_steps;
  if (decoded->state) return std::move(decoded->state);
  std::string path = state_dir_ + "/" + decoded->file;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return unusable(path, "is not there any more");
  auto content = map_file(path);
  FLOW_TRY(content);
  if (sha256(**content) != decoded->digest)
    return unusable(path, "is damaged: its bytes have another digest");
  auto state = unflatten_checkpoint(*content);
  if (!state.ok()) return unusable(path, "can't be read: " + state.error().message);
  return std::optional<Value>(std::move(*state));
}

// ---- the thread

void Checkpoints::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_over_ || waiting_; });
    if (is_over_) return;
    Job job = std::move(*waiting_);
    waiting_.reset();
    busy_with_ = job.attempt;
    lock.unlock();
    run(std::move(job));
    lock.lock();
    busy_with_ = 0;
    is_syncing_ = false;
    changed_.notify_all();
    if (!is_idle() || !on_idle_) continue;
    auto callback = std::exchange(on_idle_, nullptr);
    lock.unlock();
    callback();
    lock.lock();
  }
}

void Checkpoints::run(Job job) {
  std::string row = std::move(job.row);
  if (job.has_file) {
    auto digest = write(job);
    std::lock_guard lock(mutex_);
    is_syncing_ = false;  // a thread in drop() waits for the answer
    if (!digest.ok() && is_wanted(job))
      error_ =
          Error{ErrorKind::task, "a checkpoint could not be written: " + digest.error().message};
    if (!digest.ok() || !*digest) return;
    row = encode_checkpoint_row({std::nullopt, job.name, **digest, std::move(job.metric_steps)},
                                job.needs);
  }
  std::string path = state_dir_ + "/" + job.name;
  {
    std::lock_guard lock(mutex_);
    if (!is_wanted(job)) {
      if (job.has_file) ::unlink(path.c_str());
      return;
    }
  }
  bool committed = job.commit(row, job.blobs);
  if (committed) {
    remove_others(job.folder, job.has_file ? fs::path(job.name).filename().string() : "");
  } else if (job.has_file) {
    ::unlink(path.c_str());
  }
  std::lock_guard lock(mutex_);
  if (job.attempt != attempt_) return;
  is_fenced_ = is_fenced_ || !committed;
  if (committed) newest_ = std::move(row);
}

Result<std::optional<Digest>> Checkpoints::write(Job& job) {
  std::string folder = state_dir_ + "/" + job.folder;
  auto is_wanted_still = [&] {
    std::lock_guard lock(mutex_);
    return is_wanted(job);
  };
  std::error_code error;
  bool is_new = !fs::exists(folder, error);
  FLOW_TRY(make_dirs(folder));
  if (!lies_inside(state_dir_ + "/checkpoints", folder + "/"))
    return environment_error(
        fmt::format("cannot write a checkpoint into `{}`: a symbolic link leads out of "
                    "`{}/checkpoints`. Replace it by a folder",
                    folder, state_dir_));
  TemporaryFile file(state_dir_ + "/" + job.name);
  if (file.descriptor() < 0) return failed("create", file.path());
  Sha256 hash;
  auto put = [&](std::string_view bytes) -> Result<bool> {
    for (size_t at = 0; at < bytes.size(); at += kPiece) {
      if (!is_wanted_still()) return false;
      std::string_view piece = bytes.substr(at, kPiece);
      hash.update(piece);
      if (!write_all(file.descriptor(), piece)) return failed("write", file.path());
    }
    return true;
  };
  auto head = put(job.file.head);
  FLOW_TRY(head);
  bool wanted = *head;
  for (size_t i = 0; wanted && i < job.file.tensors.size(); i++) {
    auto tensor = put(*job.file.tensors[i]);
    FLOW_TRY(tensor);
    wanted = *tensor;
  }
  job.file = {};
  if (!wanted) return std::optional<Digest>();
  {
    std::lock_guard lock(mutex_);
    is_syncing_ = true;
    syncing_ = file.path();
    changed_.notify_all();
  }
  if (::fsync(file.descriptor()) != 0) return failed("sync", file.path());
  if (!is_wanted_still()) return std::optional<Digest>();
  FLOW_TRY(file.keep());
  FLOW_TRY(sync_dir(folder));
  fs::path above = fs::path(folder).parent_path();
  for (; is_new && above.string().size() >= state_dir_.size(); above = above.parent_path())
    FLOW_TRY(sync_dir(above.string()));
  return std::optional(hash.finish());
}

void Checkpoints::remove_others(const std::string& folder, const std::string& name) const {
  // A file behind a linked folder does not belong to the state and is not removed.
  if (!lies_inside(state_dir_ + "/checkpoints", state_dir_ + "/" + folder + "/" + name)) return;
  std::error_code error;
  for (fs::directory_iterator at(state_dir_ + "/" + folder, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code removal;
    if (at->path().filename() != name) fs::remove(at->path(), removal);
  }
}

}  // namespace flow
