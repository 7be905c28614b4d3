// Shared by all verbs: exit codes, common options, errors as paragraphs, JSON and text helpers.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/cli/display/text_style.hpp"
#include "flow/flow.hpp"

namespace flow::cli {

enum Exit : int {
  kDone = 0,
  kTaskFailed = 1,   // or the run was cancelled
  kWrong = 2,        // error in the script or on the command line
  kInterrupted = 3,  // the run can be resumed
  kUnreachable = 4,  // the state cannot be reached or written
};
int exit_code(ErrorKind kind);
int64_t now_ms();

/// The parsed command line, and the action of the verb.
struct VerbContext {
  std::string state;
  std::string head, secret_file;                // of a head on another machine, whose state is used
  std::string log_level, log_file, log_format;  // of verbs with add_log_options
  bool json = false;
  bool quiet = false;
  std::string profile;                 // of verbs with --profile
  ConfigOptions config;                // the files that apply, and the profile
  std::vector<ConfigValue> explained;  // the options outside of tasks, with their origins
  std::vector<std::string> words;      // the command line, without the program
  std::function<int()> action;
  const CLI::App* app = nullptr;

  /// Invalid options end the process with exit code 2.
  EngineOptions engine(int32_t jobs = 0, int32_t workers = 0) const;
  /// The log that the options request. Invalid options end the process with exit code 2.
  LogOptions log() const;
  /// Additional option for suggested commands: " --head HOST:PORT", or "".
  std::string head_option() const { return head.empty() ? "" : " --head " + head; }
};

/// Adds a verb with --state and --json. `action` runs after the whole line is parsed.
CLI::App* add_verb(CLI::App& app, VerbContext& context, const std::string& name,
                   const std::string& what);
/// The verbs that `flow --help` lists: all but hidden ones.
std::vector<const CLI::App*> listed_verbs(const CLI::App& app);
void add_head_options(CLI::App* verb, VerbContext& context);        // --head --secret-file
void add_metrics_options(CLI::App* verb, MetricsOptions& metrics);  // --metrics --metrics-insecure
void add_log_options(CLI::App* verb, VerbContext& context);  // --log-level --log-file --log-format
/// The run that `selector` names, in the state of the context.
RunInfo find_run(const VerbContext& context, const std::string& selector);
void add_run_argument(CLI::App* verb, std::string& run, bool required = false);
/// For `flow why train`: if no run has the id or name `run`, no task is given, and the last run has
/// a task of that name, selects this task of the last run and returns true. Throws Failed if there
/// is neither such a run nor such a task.
bool select_task_of_last(const Reader& reader, std::string& run, std::string& task);
/// Whether `task` on the command line means this one: "align", "align[2]" or, by its tag,
/// "align[s3]"; a map means its instances.
bool is_selected(const TaskInfo& each, const std::string& task);
/// As a word of a shell: in quotes if it needs them.
std::string shell_word(const std::string& text);
/// The name of the signal in a text of TaskInfo::waits_for; "" if it waits for something else.
std::string awaited_signal(const std::string& waits_for);
/// The names of the signals that tasks of the run wait for.
std::vector<std::string> awaited_signals(const RunInfo& run);
/// The line before the output about a task that select_task_of_last selected.
std::string of_last_run(const std::string& task, const RunInfo& last);

/// " Did you mean `run`?", or "" if no name is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& names);
/// Checks for option values, whose type they name: a whole number, or one of several words, which
/// are the check's name.
CLI::Validator whole_number(const std::string& option, int64_t min, int64_t max);
CLI::Validator one_of(const std::string& option, const std::vector<std::string>& words);

/// Calls `listener` with each further error and warning, after it is printed; null: none.
void set_message_listener(
    std::function<void(const std::string& type, const std::string& text)> listener);
[[noreturn]] void fail(std::string message);              // exit 2
[[noreturn]] void fail_environment(std::string message);  // exit 4
void print_error(const std::string& message);             // one paragraph to stderr
void print_printed(const std::string& line);     // output of a script while its graph is built
void print_warning(const std::string& message);  // one paragraph to stderr

// ---- the standard output: all output goes through these
void print_line(const std::string& line);  // printable, like print_text
void print_text(std::string_view text);
void print_painted(const std::string& text, Color color);  // if the output has colors
void print_raw(std::string_view text);  // raw output of a program, and terminal control sequences
void flush_output();
/// The errno of the first write that failed; 0 if none failed.
int output_error();

// ---- text
std::string json_text(std::string_view text);  // as JSON
/// As JSON; null if it is empty.
std::string text_or_null(const std::string& text);
std::string iso_time(int64_t ms);          // "2026-11-21T05:17:00.123Z"
std::string local_time(int64_t ms);        // "2026-11-21 05:17:00"; "-" for 0
std::string format_duration(int64_t ms);   // "450ms", "1.2s", "2m 3s", "1h 5m", "3d 4h"
std::string format_bytes(uint64_t bytes);  // "512 B", "1.5 GiB"
int64_t parse_duration(
    const std::string& option,
    const std::string& text);            // ms; ends the process with exit code 2 if invalid
std::string number_text(double number);  // "2", "0.5"
std::string plural(uint64_t count, const std::string& noun);  // "1 task", "2 tasks"
/// "2 of 1..8": how many replicas a service has, and its limits.
std::string scaled_replicas_text(const ServiceInfo& service);
/// "GPU-8f3c fell off the bus (Xid 79): not used until its worker starts again"
std::string fault_text(const NodeInfo& node, const Gpu& gpu);
/// Control characters other than newline and tab as \x1b or \u009b: text of scripts must not
/// control the terminal.
std::string printable(std::string_view text);
std::string shortened(const std::string& text,
                      size_t columns_max);  // one line, ends with "…" if cut
size_t columns_of(std::string_view text);   // width in a terminal
std::string last_component(const std::string& path);
/// Each digest of 64 hexadecimal digits as its first 12.
std::string with_short_digests(const std::string& text);
/// --verbose of why, diff and plan.
void add_verbose_option(CLI::App* verb, bool& verbose);

struct FittingColumns {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> omitted;  // the first cells of the other columns
};
/// The columns that `columns_max` characters of a table have room for, in their order. The rows
/// have one length; those columns are taken first that come first in `by_importance`.
FittingColumns fitting_columns(const std::vector<std::vector<std::string>>& rows,
                               const std::vector<size_t>& by_importance, size_t columns_max);

/// Rows of cells as columns two spaces apart; the last cell of a row is not padded.
std::string table(const std::vector<std::vector<std::string>>& rows,
                  const std::string& indent = "");

}  // namespace flow::cli
