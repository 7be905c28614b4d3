// What every verb shares: exit codes, the options all take, errors as paragraphs, JSON and text
// helpers.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flow/flow.hpp"

namespace flow::cli {

enum Exit : int {
  kDone = 0,
  kTaskFailed = 1,   // or the run was cancelled
  kWrong = 2,        // the script or the command line
  kInterrupted = 3,  // can be resumed
  kUnreachable = 4,  // the state can't be reached or written
};
int exit_code(ErrorKind kind);
int64_t now_ms();

/// The command line, parsed: what the verb's callback left to do.
struct VerbContext {
  std::string state;
  std::string head, secret_file;                // of another machine's, whose state is meant then
  std::string log_level, log_file, log_format;  // of verbs with add_log_options
  bool json = false;
  bool quiet = false;
  std::function<int()> action;
  const CLI::App* app = nullptr;

  /// What is wrong with these ends with exit 2.
  EngineOptions engine(int32_t jobs = 0, int32_t workers = 0) const;
  /// The log that the options ask for. What is wrong with these ends with exit 2.
  LogOptions log() const;
  /// What a command that is advised needs beside its words: " --head HOST:PORT", or "".
  std::string head_option() const { return head.empty() ? "" : " --head " + head; }
};

/// Adds a verb with --state and --json; `action` runs after the whole line was parsed.
CLI::App* add_verb(CLI::App& app, VerbContext& context, const std::string& name,
                   const std::string& what);
void add_head_options(CLI::App* verb, VerbContext& context);  // --head --secret-file
void add_log_options(CLI::App* verb, VerbContext& context);   // --log-level --log-file --log-format
/// The run that is meant, where the session's state is.
RunInfo find_run(const VerbContext& context, const std::string& selector);
void add_run_argument(CLI::App* verb, std::string& run, bool required = false);

/// " Did you mean `run`?", or "" where no name is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& names);
/// Checks of an option's value, whose name they say: a whole number, one of a few words.
CLI::Validator whole_number(const std::string& option, int64_t min, int64_t max);
CLI::Validator one_of(const std::string& option, const std::vector<std::string>& words);

[[noreturn]] void fail(std::string message);              // exit 2
[[noreturn]] void fail_environment(std::string message);  // exit 4
void print_error(const std::string& message);             // one paragraph to stderr
void print_printed(const std::string& line);              // by a script, while its graph was built
void print_warning(const std::string& message);           // one paragraph to stderr

// ---- the standard output: all that goes there goes through these
void print_line(const std::string& line);  // printable, as is print_text
void print_text(std::string_view text);
void print_raw(std::string_view text);  // a program's own output, and what steers the terminal
void flush_output();
/// Why the first write that failed did: an errno; 0 where none has.
int output_error();

// ---- text
std::string json_text(std::string_view text);  // as JSON
std::string iso_time(int64_t ms);              // "2026-11-21T05:17:00.123Z"
std::string local_time(int64_t ms);            // "2026-11-21 05:17:00"; "-" for 0
std::string format_duration(int64_t ms);       // "450ms", "1.2s", "2m 3s", "1h 5m", "3d 4h"
std::string format_bytes(uint64_t bytes);      // "512 B", "1.5 GiB"
int64_t parse_duration(const std::string& option,
                       const std::string& text);              // ms; fails with exit 2
std::string plural(uint64_t count, const std::string& noun);  // "1 task", "2 tasks"
/// "GPU-8f3c fell off the bus (Xid 79): not used until its worker starts again"
std::string fault_text(const NodeInfo& node, const Gpu& gpu);
/// Control characters but newline and tab as \x1b or \u009b: what a script names never steers the
/// terminal.
std::string printable(std::string_view text);
std::string shortened(const std::string& text,
                      size_t columns_max);  // one line, ends with "…" if cut
size_t columns_of(std::string_view text);   // code points; what a terminal shows for our text
std::string last_component(const std::string& path);

/// Rows of cells as columns two spaces apart; the last cell of a row is not padded.
std::string table(const std::vector<std::vector<std::string>>& rows,
                  const std::string& indent = "");

}  // namespace flow::cli
