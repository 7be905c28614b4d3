#include "engine/front/access_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <limits>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/files.hpp"
#include "engine/base/size_units.hpp"

namespace flow {

namespace {

using std::chrono::microseconds;

constexpr size_t kLinesMax = 64 * 1024;  // bytes of lines, which are then written
constexpr auto kDelayMax = std::chrono::seconds(1);
constexpr size_t kTextMax = 1024;  // bytes of a text that a client has chosen

constexpr bool is_plain(char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; }

/// Bytes that are not printable ASCII are escaped as U+0080 to U+00FF, whatever their encoding.
void append_escaped(std::string& line, char c) {
  if (c == '"' || c == '\\') {
    line += '\\';
    line += c;
  } else {
    fmt::format_to(std::back_inserter(line), "\\u{:04x}", static_cast<unsigned char>(c));
  }
}

void append_text(std::string& line, std::string_view text) {
  bool is_cut = text.size() > kTextMax;
  text = text.substr(0, kTextMax);
  line += '"';
  while (!text.empty()) {
    auto plain = static_cast<size_t>(std::ranges::find_if_not(text, is_plain) - text.begin());
    line += text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) break;
    append_escaped(line, text[0]);
    text.remove_prefix(1);
  }
  line += is_cut ? "...\"" : "\"";
}

// The names below have their comma, quotes and colon: `,"name":`.

void add_text(std::string& line, std::string_view name, std::string_view text) {
  line += name;
  if (text.empty())
    line += "null";
  else
    append_text(line, text);
}

// std::to_chars takes a tenth of the time of fmt::format_to, and a line has many numbers.
void add_number(std::string& line, std::string_view name, uint64_t number) {
  char digits[std::numeric_limits<uint64_t>::digits10 + 1];
  char* end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  line += name;
  line.append(digits, end);
}

void add_time(std::string& line, std::string_view name, RequestRecord::Clock::duration time) {
  auto us = static_cast<uint64_t>(
      std::max<int64_t>(0, std::chrono::duration_cast<microseconds>(time).count()));
  add_number(line, name, us / 1000);
  const char fraction[] = {'.', static_cast<char>('0' + us / 100 % 10),
                           static_cast<char>('0' + us / 10 % 10), static_cast<char>('0' + us % 10)};
  line.append(fraction, sizeof fraction);
}

/// The line without its newline; `time` is that of its end, as text.
void append_line(std::string& line, const RequestRecord& record,
                 RequestRecord::Clock::time_point now, std::string_view time) {
  add_text(line, R"({"time":)", time);
  add_text(line, R"(,"protocol":)", record.protocol);
  add_text(line, R"(,"client":)", record.client);
  add_text(line, R"(,"method":)", record.method);
  add_text(line, R"(,"path":)", record.path);
  add_number(line, R"(,"status":)", static_cast<uint64_t>(record.status));
  add_time(line, R"(,"duration_ms":)", now - record.arrived);
  if (record.queue_time)
    add_time(line, R"(,"queue_ms":)", *record.queue_time);
  else
    line += R"(,"queue_ms":null)";
  if (record.rows > 0)
    add_number(line, R"(,"batch_rows":)", static_cast<uint64_t>(record.rows));
  else
    line += R"(,"batch_rows":null)";
  add_number(line, R"(,"bytes_in":)", record.bytes_in);
  add_number(line, R"(,"bytes_out":)", record.bytes_out);
  add_text(line, R"(,"version":)", record.version);
  add_text(line, R"(,"replica":)", record.replica);
  add_text(line, R"(,"trace":)", record.trace);
  line += record.is_broken ? R"(,"broken":true})" : R"(,"broken":false})";
}

}  // namespace

std::string access_line(const RequestRecord& record, RequestRecord::Clock::time_point now,
                        int64_t at_ms) {
  std::string line;
  append_line(line, record, now, format_time(at_ms));
  return line + "\n";
}

const std::string& TimeText::of(int64_t at_ms) {
  constexpr int64_t kMsPerSecond = 1000;
  constexpr size_t kTail = 4;  // "123Z"
  if (int64_t second = at_ms / kMsPerSecond; second != second_ || text_.empty()) {
    second_ = second;
    text_ = format_time(at_ms);
  }
  char* digits = text_.data() + text_.size() - kTail;
  int64_t ms = at_ms % kMsPerSecond;
  digits[0] = static_cast<char>('0' + ms / 100);
  digits[1] = static_cast<char>('0' + ms / 10 % 10);
  digits[2] = static_cast<char>('0' + ms % 10);
  return text_;
}

/// The file and those that it had before.
class AccessLog::File {
 public:
  explicit File(const AccessLogOptions& options)
      : path_(options.path), bytes_max_(options.file_max), files_(options.files) {}
  ~File() { close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void write(const std::string& lines) {
    if (file_ >= 0 && has_moved()) close();
    if (file_ >= 0 && bytes_ > 0 && bytes_ + static_cast<int64_t>(lines.size()) > bytes_max_)
      rotate();
    if (file_ < 0) open();
    if (file_ >= 0 && write_all(file_, lines)) bytes_ += static_cast<int64_t>(lines.size());
  }

 private:
  void open() {
    constexpr int kOwnerOnly = 0600;
    file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kOwnerOnly);
    struct stat status {};
    bool is_known = file_ >= 0 && ::fstat(file_, &status) == 0;
    bytes_ = is_known ? status.st_size : 0;
    device_ = status.st_dev;
    inode_ = status.st_ino;
  }
  /// Another program, such as logrotate, has renamed or removed the file. One that it has cut
  /// counts anew.
  bool has_moved() {
    struct stat status {};
    if (::stat(path_.c_str(), &status) != 0) return errno == ENOENT;
    bytes_ = status.st_size;
    return status.st_dev != device_ || status.st_ino != inode_;
  }
  void close() {
    if (file_ >= 0) ::close(file_);
    file_ = -1;
  }
  void rotate() {
    close();
    for (int number = files_ - 1; number > 0; number--) {
      std::string from = number == 1 ? path_ : fmt::format("{}.{}", path_, number - 1);
      ::rename(from.c_str(), fmt::format("{}.{}", path_, number).c_str());
    }
  }

  const std::string path_;
  const int64_t bytes_max_;
  const int files_;
  int file_ = -1;
  int64_t bytes_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

AccessLog::AccessLog(EventLoop& loop, AccessLogOptions options)
    : options_(std::move(options)),
      random_(static_cast<std::minstd_rand::result_type>(options_.seed)),
      file_(std::make_shared<File>(options_)),
      pending_(std::make_shared<std::atomic<size_t>>(0)),
      timer_(loop, [this] { flush(); }) {}

AccessLog::~AccessLog() { flush(); }

void AccessLog::set_on(bool is_on, double fraction) {
  is_on_ = is_on && !options_.path.empty();
  fraction_ = fraction;
}

bool AccessLog::is_sampled(const RequestRecord& record) {
  constexpr int kFailed = 500;
  double fraction = record.fraction.value_or(fraction_);
  if (fraction <= 0) return false;
  // What a client sends that is no request has a status such as 501 and 505, and is its failure.
  bool has_failed = (record.status >= kFailed && !record.is_invalid) || record.is_broken;
  if (fraction >= 1 || has_failed) return true;
  return std::uniform_real_distribution<double>()(random_) < fraction;
}

void AccessLog::add(const RequestRecord& record) {
  if (!is_on_ || !is_sampled(record)) return;
  line_.clear();
  append_line(line_, record, RequestRecord::Clock::now(), time_.of(now_ms()));
  line_ += '\n';
  append(line_);
}

void AccessLog::append(const std::string& line) {
  if (*pending_ + lines_.size() + line.size() > options_.pending_max) {
    dropped_++;
    return;
  }
  if (lines_.empty()) timer_.wake_by(LoopTimer::Clock::now() + kDelayMax);
  if (dropped_ > 0)
    lines_ += fmt::format("{{\"time\":\"{}\",\"dropped\":{}}}\n", format_time(now_ms()),
                          std::exchange(dropped_, 0));
  lines_ += line;
  if (lines_.size() >= kLinesMax) flush();
}

void AccessLog::flush() {
  if (lines_.empty()) return;
  if (!writer_) {
    auto started = ThreadPool::start({.name = "flow-access"});
    if (!started.ok()) return lines_.clear();
    writer_ = std::move(*started);
  }
  *pending_ += lines_.size();
  writer_->post([file = file_, pending = pending_, lines = std::exchange(lines_, {})] {
    file->write(lines);
    *pending -= lines.size();
  });
}

}  // namespace flow
