// Errors as paragraphs, times and sizes as people read them, tables.
#include "engine/cli/display/common.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "engine/cli/display/text_style.hpp"

namespace flow::cli {

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::user:
      return kWrong;
    case ErrorKind::task:
      return kTaskFailed;
    case ErrorKind::interrupted:
      return kInterrupted;
    case ErrorKind::environment:
    case ErrorKind::internal:
      return kUnreachable;
  }
  return kUnreachable;
}

EngineOptions VerbContext::engine(int32_t jobs, int32_t workers) const {
  if (head.empty() && !secret_file.empty())
    fail("--secret-file is for --head HOST:PORT, the head of another machine: give both.");
  if (!head.empty() && !state.empty())
    fail("--head means the state of the head at " + head +
         ", and --state one on this machine: give one of them.");
  if (!head.empty() && secret_file.empty())
    fail(
        "--head needs --secret-file FILE, the cluster's secret: `flow head` creates it and prints "
        "its path. Copy it to this machine, readable only by you.");
  if (!head.empty() && workers > 0)
    fail("--workers starts workers on this machine, and the run is for the head at " + head +
         ", which has its own: give one of them.");
  EngineOptions options;
  options.state = state;
  options.head = head;
  options.secret_file = secret_file;
  options.jobs = jobs;
  options.workers = workers;
  options.log = log();
  return options;
}

namespace {

const std::vector<std::string> kLogLevels = {"trace", "debug", "info", "warning", "error", "off"};

}  // namespace

LogOptions VerbContext::log() const {
  if (!log_format.empty() && log_level.empty() && log_file.empty())
    fail(
        "--log-format sets the format of log lines, and there are none: add --log-file FILE or "
        "--log-level LEVEL.");
  LogOptions options;
  auto level = std::find(kLogLevels.begin(), kLogLevels.end(), log_level);
  if (level != kLogLevels.end()) options.level = static_cast<LogLevel>(level - kLogLevels.begin());
  options.file = log_file;
  options.json = log_format == "json";
  return options;
}

void add_log_options(CLI::App* verb, VerbContext& context) {
  verb->add_option("--log-level", context.log_level,
                   "lowest level of log lines: trace, debug, info, warning, error or off "
                   "(default: info with --log-file, else off)")
      ->type_name("LEVEL")
      ->check(one_of("--log-level", kLogLevels));
  verb->add_option("--log-file", context.log_file,
                   "append log lines to this file; rotated at 10 MiB, 5 files are kept "
                   "(default: standard error)")
      ->type_name("FILE");
  verb->add_option("--log-format", context.log_format,
                   "log lines as text or json, one object per line (default: text)")
      ->type_name("text|json")
      ->check(one_of("--log-format", {"text", "json"}));
}

void add_metrics_options(CLI::App* verb, MetricsOptions& metrics) {
  verb->add_option("--metrics", metrics.listen,
                   "give metrics for Prometheus at http://HOST:PORT/metrics (default: nowhere); "
                   "port 0: a free port")
      ->type_name("HOST:PORT");
  verb->add_flag("--metrics-insecure", metrics.is_insecure,
                 "permit --metrics beyond loopback, without TLS and keys");
}

CLI::App* add_verb(CLI::App& app, VerbContext& context, const std::string& name,
                   const std::string& what) {
  CLI::App* verb = app.add_subcommand(name, what);
  verb->add_option("--state", context.state, "folder of the state")->type_name("DIR");
  verb->add_flag("--json", context.json, "print JSON, one object per line");
  return verb;
}

std::vector<const CLI::App*> listed_verbs(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* verb) { return !verb->get_group().empty(); });
}

void add_head_options(CLI::App* verb, VerbContext& context) {
  verb->add_option("--head", context.head, "address of a head to use instead of a local state")
      ->type_name("HOST:PORT");
  verb->add_option("--secret-file", context.secret_file,
                   "with --head: file with the cluster's secret")
      ->type_name("FILE");
}

RunInfo find_run(const VerbContext& context, const std::string& selector) {
  if (context.head.empty()) return Reader(context.engine()).show(selector);
  return Engine(context.engine()).show(selector);
}

void add_run_argument(CLI::App* verb, std::string& run, bool required) {
  CLI::Option* option = verb->add_option("run", run,
                                         std::string("an id, a prefix of one, a name, or `last`") +
                                             (required ? "" : " (default: last)"))
                            ->type_name("RUN");
  if (required) option->required();
}

namespace {

/// "align" of "align[3]@2".
std::string without_instance(const std::string& task) {
  return task.substr(0, task.find_first_of("[@"));
}

/// The names of the run's tasks, without instances of maps.
std::vector<std::string> task_names(const RunInfo& run) {
  std::vector<std::string> names;
  for (const TaskInfo& task : run.tasks) names.push_back(without_instance(task.name));
  return names;
}

}  // namespace

bool is_selected(const TaskInfo& each, const std::string& task) {
  return each.name == task || tagged_name(each.name, each.tag) == task ||
         each.name.starts_with(task + "[");
}

bool select_task_of_last(const Reader& reader, std::string& run, std::string& task) {
  if (run.empty() || run == "last" || !task.empty()) return false;
  std::vector<RunInfo> runs = reader.list();
  auto is_run = [&](const RunInfo& each) { return each.id == run || each.name == run; };
  if (runs.empty() || std::any_of(runs.begin(), runs.end(), is_run)) return false;
  RunInfo last = reader.show("last");
  std::vector<std::string> names = task_names(last);
  if (std::find(names.begin(), names.end(), without_instance(run)) != names.end()) {
    task = std::exchange(run, "last");
    return true;
  }
  auto begins = [&](const RunInfo& each) { return each.id.starts_with(run); };
  if (std::any_of(runs.begin(), runs.end(), begins)) return false;
  names.push_back("last");
  for (const RunInfo& each : runs) names.push_back(each.name);
  fail("there is no run `" + run + "`, and the last run, " + last.id + ", has no task `" + run +
       "`." + did_you_mean(without_instance(run), names) +
       " `flow ls` lists the runs, `flow show` the tasks of the last one.");
}

std::string text_or_null(const std::string& text) {
  return text.empty() ? "null" : json_text(text);
}

std::string shell_word(const std::string& text) {
  constexpr const char* kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+,./:-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::string awaited_signal(const std::string& waits_for) {
  constexpr std::string_view kBefore = "the signal `";
  size_t begin = waits_for.find(kBefore);
  if (begin == std::string::npos) return "";
  begin += kBefore.size();
  // A name may contain backticks. The command at the end of the text repeats it.
  for (size_t end = waits_for.find('`', begin); end != std::string::npos;
       end = waits_for.find('`', end + 1)) {
    std::string name = waits_for.substr(begin, end - begin);
    if (waits_for.ends_with(" " + shell_word(name) + "` sends it")) return name;
  }
  return "";
}

std::vector<std::string> awaited_signals(const RunInfo& run) {
  std::vector<std::string> names;
  for (const TaskInfo& task : run.tasks) {
    std::string name = awaited_signal(task.waits_for);
    if (!name.empty()) names.push_back(std::move(name));
  }
  return names;
}

std::string of_last_run(const std::string& task, const RunInfo& last) {
  return "`" + task + "` of the last run, " + last.id + ":";
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& names) {
  std::string near = nearest_name(word, names);
  return near.empty() ? "" : " Did you mean `" + near + "`?";
}

CLI::Validator whole_number(const std::string& option, int64_t min, int64_t max) {
  auto check = [=](std::string& text) -> std::string {
    int64_t number = 0;
    auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
    bool is_whole = failed == std::errc() && end == text.data() + text.size();
    if (!is_whole || number < min || number > max) {
      fail(option + " takes a whole number from " + std::to_string(min) + " to " +
           std::to_string(max) + ", not `" + text + "`.");
    }
    return "";
  };
  return CLI::Validator(check, "");
}

CLI::Validator one_of(const std::string& option, const std::vector<std::string>& words) {
  auto check = [=](std::string& text) -> std::string {
    if (std::find(words.begin(), words.end(), text) != words.end()) return "";
    std::string list;
    for (size_t i = 0; i < words.size(); i++) {
      list += i == 0 ? "" : i + 1 == words.size() ? " or " : ", ";
      list += "`" + words[i] + "`";
    }
    fail(option + " takes " + list + ", not `" + text + "`." + did_you_mean(text, words));
  };
  std::string names;  // for completion: no part of the help
  for (const std::string& word : words) names += (names.empty() ? "" : " ") + word;
  return CLI::Validator(check, "", names);
}

void fail(std::string message) { throw Failed(user_error(std::move(message))); }
void fail_environment(std::string message) { throw Failed(environment_error(std::move(message))); }

namespace {

std::function<void(const std::string& type, const std::string& text)> message_listener;

void print_paragraph(const char* label, Color color, const std::string& message) {
  static bool is_first = true;
  flush_output();
  if (!is_first) std::fputc('\n', stderr);
  is_first = false;
  std::string text = printable(message);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::string shown = has_colors(STDERR_FILENO) ? painted(label, color) : label;
  std::fprintf(stderr, "%s: %s\n", shown.c_str(), text.c_str());
  if (message_listener) message_listener(label, message);
}

}  // namespace

void set_message_listener(
    std::function<void(const std::string& type, const std::string& text)> listener) {
  message_listener = std::move(listener);
}

void print_error(const std::string& message) { print_paragraph("error", Color::red, message); }
void print_printed(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }
void print_warning(const std::string& message) {
  print_paragraph("warning", Color::yellow, message);
}

namespace {

// Called on the thread of the failed write: errno is per thread, and other calls change it.
std::atomic<int> first_output_error{0};

void note_output(bool is_written) {
  int none = 0;
  if (!is_written) first_output_error.compare_exchange_strong(none, errno);
}

}  // namespace

void print_line(const std::string& line) { print_text(line + '\n'); }

void print_text(std::string_view text) { print_raw(printable(text)); }

void print_painted(const std::string& text, Color color) {
  print_raw(has_colors(STDOUT_FILENO) ? painted(printable(text), color) : printable(text));
}

void print_raw(std::string_view text) {
  note_output(std::fwrite(text.data(), 1, text.size(), stdout) == text.size());
}

void flush_output() { note_output(std::fflush(stdout) == 0); }

int output_error() { return first_output_error; }

std::string json_text(std::string_view text) { return to_json(Value(text)); }

std::string iso_time(int64_t ms) {
  time_t seconds = ms / 1000;
  tm utc{};
  gmtime_r(&seconds, &utc);
  char day[32], text[48];
  std::strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text, sizeof text, "%s.%03dZ", day, static_cast<int>(ms % 1000));
  return text;
}

std::string with_short_digests(const std::string& text) {
  constexpr size_t kDigits = 64, kShown = 12;
  auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && is_digit(text[end])) end++;
    bool is_digest = end - at == kDigits;
    out += text.substr(at, is_digest ? kShown : std::max<size_t>(end - at, 1));
    at = std::max(end, at + 1);
  }
  return out;
}

void add_verbose_option(CLI::App* verb, bool& verbose) {
  verb->add_flag("--verbose", verbose, "describe each task by itself, with whole digests");
}

std::string local_time(int64_t ms) {
  if (ms == 0) return "-";
  time_t seconds = ms / 1000;
  tm local{};
  localtime_r(&seconds, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

std::string format_duration(int64_t ms) {
  constexpr int64_t kSecond = 1000, kMinute = 60 * kSecond, kHour = 60 * kMinute, kDay = 24 * kHour;
  char text[48];
  auto two = [&](int64_t unit, char big, int64_t part, char small) {
    std::snprintf(text, sizeof text, "%lld%c %lld%c", static_cast<long long>(ms / unit), big,
                  static_cast<long long>(ms % unit / part), small);
  };
  ms = std::max<int64_t>(ms, 0);
  if (ms < kSecond) {
    std::snprintf(text, sizeof text, "%lldms", static_cast<long long>(ms));
  } else if (ms < kMinute) {
    std::snprintf(text, sizeof text, "%.1fs", static_cast<double>(ms - ms % 100) / kSecond);
  } else if (ms < kHour) {
    two(kMinute, 'm', kSecond, 's');
  } else if (ms < kDay) {
    two(kHour, 'h', kMinute, 'm');
  } else {
    two(kDay, 'd', kHour, 'h');
  }
  return text;
}

std::string format_bytes(uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double amount = static_cast<double>(bytes);
  size_t unit = 0;
  while (amount >= 1024 && unit + 1 < std::size(units)) {
    amount /= 1024;
    unit++;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", amount, units[unit]);
  return text;
}

int64_t parse_duration(const std::string& option, const std::string& text) {
  const std::vector<std::pair<std::string, double>> units = {
      {"ms", 1}, {"s", 1e3}, {"m", 6e4}, {"h", 3.6e6}, {"d", 8.64e7}};
  constexpr double kDurationMax = 1e15;
  auto wrong = [&]() {
    fail(option + " takes a time such as 500ms, 30s, 10m, 1h30m or 2d, not `" + text + "`");
  };
  if (text == "0") return 0;
  double total = 0;
  size_t at = 0;
  if (text.empty()) wrong();
  while (at < text.size()) {
    size_t digits = text.find_first_not_of("0123456789.", at);
    if (digits == std::string::npos || digits == at) wrong();
    std::string number = text.substr(at, digits - at);
    char* end = nullptr;
    double amount = std::strtod(number.c_str(), &end);
    if (*end != '\0') wrong();
    size_t next = text.find_first_of("0123456789.", digits);
    if (next == std::string::npos) next = text.size();
    std::string unit = text.substr(digits, next - digits);
    auto found = std::find_if(units.begin(), units.end(), [&](auto& u) { return u.first == unit; });
    if (found == units.end()) wrong();
    total += amount * found->second;
    at = next;
  }
  if (total > kDurationMax) wrong();
  return static_cast<int64_t>(total + 0.5);
}

std::string fault_text(const NodeInfo& node, const Gpu& gpu) {
  return gpu.uuid + " " + gpu.fault + ": not used until its " +
         (node.name.empty() ? "engine" : "worker") + " starts again";
}

std::string number_text(double number) {
  std::string text = std::to_string(number);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string plural(uint64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string scaled_replicas_text(const ServiceInfo& service) {
  return std::to_string(service.replicas_wanted) + " of " + std::to_string(service.replicas_min) +
         ".." + std::to_string(service.replicas_max);
}

namespace {

/// The code point that starts at text[at]. Of invalid UTF-8 its first byte.
uint32_t code_point(std::string_view text, size_t at) {
  unsigned char first = static_cast<unsigned char>(text[at]);
  size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
  if (length == 1 || at + length > text.size()) return first;
  uint32_t code = first & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; i++)
    code = code << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3f);
  return code;
}

/// Columns of a terminal that the code point takes: 2 for East Asian wide characters and emoji, 0
/// for marks that combine with the character before.
size_t width_of(uint32_t code) {
  constexpr std::pair<uint32_t, uint32_t> kWide[] = {
      {0x1100, 0x115f}, {0x2e80, 0x303e}, {0x3041, 0xa4cf}, {0xac00, 0xd7a3},   {0xf900, 0xfaff},
      {0xfe30, 0xfe6f}, {0xff00, 0xff60}, {0xffe0, 0xffe6}, {0x1f300, 0x1faff}, {0x20000, 0x3fffd}};
  constexpr std::pair<uint32_t, uint32_t> kMarks[] = {
      {0x300, 0x36f}, {0x200b, 0x200f}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}};
  auto has = [code](const auto& range) { return code >= range.first && code <= range.second; };
  if (code < 0x300) return 1;
  if (std::ranges::any_of(kMarks, has)) return 0;
  return std::ranges::any_of(kWide, has) ? 2 : 1;
}

bool is_start(char byte) { return (byte & 0xc0) != 0x80; }

}  // namespace

size_t columns_of(std::string_view text) {
  size_t columns = 0;
  for (size_t i = 0; i < text.size(); i++)
    if (is_start(text[i])) columns += width_of(code_point(text, i));
  return columns;
}

namespace {

/// U+0080 to U+009F in UTF-8: terminals treat them as control sequences.
bool is_c1(std::string_view text, size_t at) {
  return text[at] == '\xc2' && at + 1 < text.size() && (text[at + 1] & 0xe0) == 0x80;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  char escaped[8];
  for (size_t i = 0; i < text.size(); i++) {
    unsigned char byte = static_cast<unsigned char>(text[i]);
    if (is_c1(text, i)) {
      // JSON has its own escapes, so a line of JSON stays valid.
      unsigned char code = static_cast<unsigned char>(text[++i]);
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(code));
      out += escaped;
    } else if (byte >= 0x20 || byte == '\n' || byte == '\t') {
      out += text[i];
    } else {
      std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(byte));
      out += escaped;
    }
  }
  return out;
}

std::string shortened(const std::string& text, size_t columns_max) {
  const size_t end_columns = columns_of(ellipsis());
  std::string line;
  size_t columns = 0, room = 0;  // room: the bytes of the line that leave room for an ellipsis
  bool is_cut = false;
  for (size_t i = 0; i < text.size(); i++) {
    unsigned char c = static_cast<unsigned char>(text[i]);
    if (c == '\n') {
      is_cut = i + 1 < text.size();
      break;
    }
    size_t width = is_start(text[i]) ? width_of(code_point(text, i)) : 0;
    is_cut = width > 0 && columns + width > columns_max;
    if (is_cut) break;
    columns += width;
    bool is_control = is_c1(text, i);
    bool steers = c < 0x20 || c == 0x7f || is_control;  // never true for a task's text
    line += steers ? ' ' : text[i];
    i += is_control;
    bool is_whole = i + 1 == text.size() || is_start(text[i + 1]);
    if (is_whole && columns + end_columns <= columns_max) room = line.size();
  }
  if (!is_cut || columns_max == 0) return line;
  line.resize(room);
  return line + (end_columns <= columns_max ? ellipsis() : std::string(columns_max, '.'));
}

int64_t now_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

std::string last_component(const std::string& path) {
  size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

namespace {

constexpr size_t kColumnGap = 2;

}  // namespace

FittingColumns fitting_columns(const std::vector<std::vector<std::string>>& rows,
                               const std::vector<size_t>& by_importance, size_t columns_max) {
  std::vector<bool> fits(by_importance.size());
  size_t used = 0;
  for (size_t column : by_importance) {
    size_t width = 0;
    for (const auto& row : rows) width = std::max(width, columns_of(row[column]));
    size_t gap = used > 0 ? kColumnGap : 0;
    if (used > 0 && used + gap + width > columns_max) continue;
    fits[column] = true;
    used += gap + width;
  }
  FittingColumns out;
  for (const auto& row : rows) {
    std::vector<std::string>& left = out.rows.emplace_back();
    for (size_t column = 0; column < row.size(); column++)
      if (fits[column]) left.push_back(row[column]);
  }
  for (size_t column = 0; column < fits.size(); column++)
    if (!fits[column]) out.omitted.push_back(rows.front()[column]);
  return out;
}

std::string table(const std::vector<std::vector<std::string>>& rows, const std::string& indent) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); i++) widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line = indent;
    for (size_t i = 0; i < row.size(); i++) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - columns_of(row[i]) + kColumnGap, ' ');
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += line + "\n";
  }
  return out;
}

}  // namespace flow::cli
