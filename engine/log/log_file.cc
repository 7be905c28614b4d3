#include "engine/log/log_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>

#include "engine/base/clock.hpp"

namespace flow::log {

namespace {

using Rotation = spdlog::sinks::rotating_file_sink_st;

constexpr int64_t kReopenUs = 1'000'000;

off_t size_of(std::FILE* stream) {
  struct stat info {};
  return ::fstat(::fileno(stream), &info) == 0 ? info.st_size : 0;
}

Status check_regular(const std::string& path, int file) {
  struct stat info {};
  if (::fstat(file, &info) == 0 && S_ISREG(info.st_mode)) return {};
  return user_error("the log file `" + path +
                    "` is not a regular file: name one, such as flow.log");
}

/// Opens the path once to see whether that can be done. O_NONBLOCK: a pipe without a reader must
/// not block.
Status check_writable(const std::string& path) {
  int file =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
  if (file < 0) {
    int error = errno;
    if (error == EISDIR)
      return user_error("the log file `" + path +
                        "` is a folder: name a file in it, such as flow.log");
    if (error == ENXIO)
      return user_error("the log file `" + path +
                        "` is not a regular file: name one, such as flow.log");
    return environment_error("cannot write the log file `" + path + "`: " + std::strerror(error));
  }
  Status status = check_regular(path, file);
  ::close(file);
  return status;
}

/// A file in a folder that allows no new names cannot be rotated.
Status check_folder(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return environment_error("cannot rotate the log file `" + path + "`: the folder `" + folder +
                           "` is not writable (" + std::strerror(errno) +
                           "). Name a file in another folder");
}

/// The log files that are open in this process: two writers of one file would rotate it twice.
class OpenPaths {
 public:
  static bool add(const std::string& path) {
    std::lock_guard lock(mutex());
    return paths().insert(path).second;
  }
  static void remove(const std::string& path) {
    std::lock_guard lock(mutex());
    paths().erase(path);
  }

 private:
  // Never destroyed: they live as long as the process.
  static std::mutex& mutex() {
    static auto* all = new std::mutex;
    return *all;
  }
  static std::set<std::string>& paths() {
    static auto* all = new std::set<std::string>;
    return *all;
  }
};

std::string canonical(const std::string& path) {
  std::error_code failed;
  auto found = std::filesystem::weakly_canonical(path, failed);
  return failed ? path : found.string();
}

}  // namespace

struct LogFile::Impl {
  Impl() = default;
  Impl(const Impl&) = delete;
  ~Impl() {
    if (!open_path.empty()) OpenPaths::remove(open_path);
  }

  std::string path;
  std::string open_path;  // in OpenPaths
  size_t bytes_max = kFileBytesMax;
  std::optional<Rotation> rotation;
  std::FILE* stream = nullptr;  // owned by the rotation; null without a file
  off_t whole_size = 0;         // of the stream, up to its last complete line
  int64_t reopen_at_us = 0;

  /// Throws spdlog_ex.
  void open() {
    spdlog::file_event_handlers handlers;
    handlers.after_open = [this](const std::string&, std::FILE* opened) {
      // Each line is one write(2): a failed one leaves nothing in a buffer.
      std::setvbuf(opened, nullptr, _IONBF, 0);
      stream = opened;
      whole_size = size_of(opened);
    };
    handlers.before_close = [this](const std::string&, std::FILE*) { stream = nullptr; };
    rotation.emplace(path, bytes_max, kFilesMax - 1, false, handlers);
    rotation->set_formatter(
        std::make_unique<spdlog::pattern_formatter>("%v", spdlog::pattern_time_type::local, "\n"));
  }
};

LogFile::LogFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LogFile::~LogFile() = default;

Result<std::unique_ptr<LogFile>> LogFile::open(const std::string& path, size_t bytes_max) {
  FLOW_TRY(check_writable(path));
  FLOW_TRY(check_folder(path));
  auto impl = std::make_unique<Impl>();
  std::string open_path = canonical(path);
  if (!OpenPaths::add(open_path))
    return user_error("the log file `" + path +
                      "` is in use by another engine or worker of this process: name another one");
  impl->open_path = std::move(open_path);
  impl->path = path;
  impl->bytes_max = bytes_max;
  try {
    impl->open();
  } catch (const std::exception& error) {
    return environment_error("cannot write the log file `" + path + "`: " + error.what());
  }
  return std::unique_ptr<LogFile>(new LogFile(std::move(impl)));
}

std::string LogFile::write(std::string_view line) {
  Impl& file = *impl_;
  try {
    if (file.stream == nullptr) {
      int64_t now_us = monotonic_us();
      if (now_us < file.reopen_at_us) return "it could not be opened again";
      file.reopen_at_us = now_us + kReopenUs;
      file.open();
    }
    file.rotation->log(spdlog::details::log_msg("", spdlog::level::info,
                                                spdlog::string_view_t(line.data(), line.size())));
    file.whole_size += static_cast<off_t>(line.size()) + 1;
    return "";
  } catch (const std::exception& error) {
    std::string why = error.what();
    // The part of the line that was written.
    if (file.stream != nullptr && size_of(file.stream) > file.whole_size &&
        ::ftruncate(::fileno(file.stream), file.whole_size) != 0)
      why += ", and a part of a line is in it";
    return why;
  }
}

}  // namespace flow::log
