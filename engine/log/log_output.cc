#include "engine/log/log_output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/crypto/redaction.hpp"
#include "engine/log/log_format.hpp"

namespace flow::log {

namespace {

namespace fs = std::filesystem;

bool is_inside(const std::string& file, const std::string& folder) {
  std::error_code failed;
  fs::path inner = fs::weakly_canonical(fs::absolute(file, failed), failed);
  fs::path outer = fs::weakly_canonical(fs::absolute(folder, failed), failed);
  if (!outer.has_filename()) outer = outer.parent_path();  // of `DIR/`
  auto [rest, ignored] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return rest == outer.end();
}

/// All outputs of this process.
class LogOutputs final : public Backend {
 public:
  void add(LogOutput* output) {
    std::lock_guard lock(mutex_);
    outputs_.push_back(output);
    update();
  }
  void remove(LogOutput* output) {
    std::lock_guard lock(mutex_);
    std::erase(outputs_, output);
    update();
  }
  void write(const EngineLogLine& line) override {
    // A sink must not log: it would wait for itself.
    static thread_local bool is_writing = false;
    if (is_writing) return;
    is_writing = true;
    try {
      std::lock_guard lock(mutex_);
      EngineLogLine shown = redacted(line);
      for (LogOutput* output : outputs_) output->write(shown);
    } catch (...) {  // out of memory: the line is dropped
    }
    is_writing = false;
  }
  std::string redacted(std::string text) override {
    std::lock_guard lock(mutex_);
    return secrets().hidden(std::move(text));
  }

 private:
  /// Under the lock.
  void update() {
    LogLevel level = LogLevel::off;
    for (const LogOutput* output : outputs_) level = std::min(level, output->level());
    hidden_ = nullptr;  // the exempt texts may differ
    attach(this, level);
  }
  /// Under the lock. The values that no line may show.
  const Secrets& secrets() {
    auto values = hidden_values();
    if (values == hidden_) return secrets_;
    hidden_ = values;
    std::vector<std::string> exempt;
    for (const LogOutput* output : outputs_) exempt.push_back(output->private_dir());
    secrets_ = Secrets(*values, exempt);
    return secrets_;
  }
  /// Texts are redacted before they are cut and formatted: a part of a value, or a value with
  /// escapes, is harder to find.
  EngineLogLine redacted(EngineLogLine line) {
    const Secrets& all = secrets();
    if (all.empty()) return line;
    for (std::string* text : {&line.message, &line.task, &line.worker, &line.detail})
      *text = all.hidden(std::move(*text));
    return line;
  }

  std::mutex mutex_;
  std::vector<LogOutput*> outputs_;
  // The list from which secrets_ was built.
  std::shared_ptr<const std::vector<std::string>> hidden_;
  Secrets secrets_;
};

/// Lives as long as the process: threads may still log while it exits.
LogOutputs& outputs() {
  static auto* all = new LogOutputs;
  return *all;
}

}  // namespace

Result<std::unique_ptr<LogOutput>> LogOutput::open(const LogOptions& options,
                                                   const std::string& private_dir) {
  std::unique_ptr<LogOutput> output(new LogOutput);
  bool has_target = !options.file.empty() || options.sink;
  output->level_ = options.level.value_or(has_target ? LogLevel::info : LogLevel::off);
  output->json_ = options.json;
  output->has_stderr_ = !has_target;
  output->sink_ = options.sink;
  output->private_dir_ = private_dir;
  if (options.file.empty()) return output;
  output->path_ = options.file;
  if (!private_dir.empty() && is_inside(options.file, private_dir))
    return user_error("the log file `" + options.file + "` is in `" + private_dir +
                      "`, which holds flow's own files only: name a file outside of it");
  auto file = LogFile::open(options.file);
  FLOW_TRY(file);
  output->file_ = std::move(*file);
  return output;
}

std::string LogOutput::formatted(const EngineLogLine& line) const {
  return json_ ? json_line(line) : text_line(line);
}

void LogOutput::write(const EngineLogLine& line) {
  if (line.level < level_) return;
  if (file_) write_to_file(line);
  if (has_stderr_) {
    std::string text = formatted(line) + "\n";
    (void)std::fwrite(text.data(), 1, text.size(), stderr);
  }
  if (!sink_) return;
  try {
    sink_(line);
  } catch (...) {  // an exception of the host program
  }
}

void LogOutput::write_to_file(const EngineLogLine& line) {
  std::string why;
  if (dropped_ > 0) {
    EngineLogLine note;
    note.level = LogLevel::warning;
    note.time_ms = now_ms();
    note.message = "log lines were dropped";
    note.detail = fmt::format("{} lines", dropped_);
    why = file_->write(formatted(note));
    if (why.empty()) dropped_ = 0;
  }
  if (why.empty()) why = file_->write(formatted(line));
  if (why.empty()) return;
  dropped_++;
  if (has_warned_) return;
  has_warned_ = true;
  std::fprintf(stderr, "flow: lines of the log `%s` are dropped: %s\n", path_.c_str(), why.c_str());
}

Result<std::shared_ptr<void>> open_log(const LogOptions& options, const std::string& private_dir) {
  auto opened = LogOutput::open(options, private_dir);
  FLOW_TRY(opened);
  if ((*opened)->level() == LogLevel::off) return std::shared_ptr<void>();
  LogOutput* output = opened->release();
  outputs().add(output);
  return std::shared_ptr<void>(output, [](LogOutput* ended) {
    outputs().remove(ended);
    delete ended;
  });
}

}  // namespace flow::log
