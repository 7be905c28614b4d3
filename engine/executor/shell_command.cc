// The command of an attempt: filled in, started, and followed to its end.
#include "engine/executor/shell_command.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "engine/base/clock.hpp"
#include "engine/base/files.hpp"
#include "engine/base/size_units.hpp"
#include "engine/blobs/folder.hpp"
#include "engine/environments/shell_setup.hpp"
#include "engine/executor/gang.hpp"
#include "engine/plan/plan.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr size_t kStdoutMax = 1 << 20;  // of the result; the logs have all of it
constexpr size_t kTailLines = 20;
constexpr size_t kTailLineMax = 2000;
constexpr size_t kLineMax = 64 * 1024;  // a longer line is logged in parts
constexpr size_t kLinesMax = 64;        // lines of one read that are logged individually
constexpr size_t kBlock = 16 * 1024;    // further output is logged in blocks of this size
constexpr size_t kChunk = 64 * 1024;
constexpr int64_t kFailedLingerMs = 500;
constexpr int kReadsMax = 16;   // of one stream, before the other and the process are checked
constexpr int kBySignal = 128;  // a shell adds the signal that ended a program

/// Reads what is available, at most `reads_max` chunks. Returns false at end of file.
bool drain(int descriptor, CommandOutput& output, int reads_max) {
  static thread_local std::string chunk(kChunk, '\0');
  for (int reads = 0; reads < reads_max; reads++) {
    ssize_t got = ::read(descriptor, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN;
    if (got == 0) return false;
    output.add({chunk.data(), static_cast<size_t>(got)});
  }
  return true;
}

/// Replaces files by paths below the scratch folder, where it stages them.
Result<Value> with_paths(Attempt& attempt, const Value& value, bool copy) {
  if (value.kind() == Value::Kind::file) {
    auto path = attempt.stage(value.as_file(), copy);
    FLOW_TRY(path);
    // Relative to the scratch folder, so that the text does not depend on the state directory.
    return Value(path->substr(attempt.start().dir().size() + 1));
  }
  if (value.kind() != Value::Kind::table) return value;
  Value::Table table;
  for (const Value& item : value.as_table().list) {
    auto replaced = with_paths(attempt, item, copy);
    FLOW_TRY(replaced);
    table.list.push_back(std::move(*replaced));
  }
  for (const auto& [key, field] : value.as_table().fields) {
    auto replaced = with_paths(attempt, field, copy);
    FLOW_TRY(replaced);
    table.fields.emplace_back(key, std::move(*replaced));
  }
  return Value(std::move(table));
}

ShellSpec spec_of(const wire::Shell& shell) {
  ShellSpec spec;
  spec.command = shell.command();
  spec.args.assign(shell.args().begin(), shell.args().end());
  spec.shell.assign(shell.shell().begin(), shell.shell().end());
  for (int i = 0; i < shell.output_names_size(); i++)
    spec.outputs.emplace_back(shell.output_names(i), shell.output_patterns(i));
  return spec;
}

std::map<std::string, std::string> builtins(const wire::Start& start) {
  return {{"cpus", std::to_string(start.cpus())},
          {"memory", std::to_string(start.memory_bytes())},
          {"gpus", fmt::format("{}", start.gpus_milli() / 1000.0)},
          {"rank", std::to_string(start.id().rank())},
          {"ranks", std::to_string(std::max(1u, start.ranks()))},
          {"seed", std::to_string(start.seed())},
          {"attempt", std::to_string(start.id().attempt())}};
}

/// A file next to the scratch folder, because that folder starts empty and belongs to the command.
std::string command_file(const std::string& dir) { return dir + ".command"; }

/// Sets the same variables as torchrun.
void add_ranks(const wire::Start& start, const Gang::ProcessRendezvous& process_rendezvous,
               std::map<std::string, std::string>& variables) {
  variables["RANK"] = std::to_string(start.id().rank());
  variables["WORLD_SIZE"] = std::to_string(std::max(1u, start.ranks()));
  variables["LOCAL_RANK"] = std::to_string(start.local_rank());
  variables["LOCAL_WORLD_SIZE"] = std::to_string(std::max(1u, start.local_ranks()));
  variables["MASTER_ADDR"] = process_rendezvous.host;
  variables["MASTER_PORT"] = std::to_string(process_rendezvous.port);
  // Gloo listens at the address of the machine's host name, which may be loopback.
  if (!process_rendezvous.interface.empty())
    variables.try_emplace("GLOO_SOCKET_IFNAME", process_rendezvous.interface);
}

/// The keys of a service are for its front alone.
void remove_service_keys(const wire::Start& start, std::map<std::string, std::string>& variables) {
  if (start.service().empty()) return;
  auto spec = decode_service_options(start.service());
  if (spec.ok()) variables.erase(spec->keys.variable);
}

std::map<std::string, std::string> environment_of(const Attempt& attempt, const Gang* gang) {
  const wire::Start& start = attempt.start();
  std::map<std::string, std::string> variables = attempt.environment();
  variables["PWD"] = start.dir();
  variables.erase("OLDPWD");
  remove_service_keys(start, variables);
  bool is_alone = gang == nullptr && !start.gang_key().empty();
  if (is_alone) add_ranks(start, Gang::single_rank_rendezvous(), variables);
  if (gang != nullptr) add_ranks(start, gang->process_rendezvous(), variables);
  return variables;
}

/// Whether this shell only runs the command, so that a plain command can be executed directly.
bool is_plain_shell(const std::vector<std::string>& shell) {
  std::string program = fs::path(shell.front()).filename().string();
  if (program != "bash" && program != "sh" && program != "dash") return false;
  return std::all_of(shell.begin() + 1, shell.end(), [](const std::string& word) {
    bool is_flags = word.starts_with('-') && word.find_first_not_of("-ceuo") == word.npos;
    return is_flags || word == "pipefail";
  });
}

/// Whether bash would do more than execute the program: its environment has a start-up file,
/// options or a function of that name.
bool changes_bash(const std::map<std::string, std::string>& environment, const std::string& name) {
  for (const char* variable : {"BASH_ENV", "SHELLOPTS", "BASHOPTS"})
    if (environment.contains(variable)) return true;
  return environment.contains("BASH_FUNC_" + name + "%%");
}

/// Sets the variables that bash sets for a program that it executes: itself, or with redirections
/// in a child process.
void add_bash_variables(const SpawnRequest& what, std::map<std::string, std::string>& variables) {
  variables["_"] = what.program;
  auto level = variables.emplace("SHLVL", "0").first;
  if (!what.redirections.empty())
    level->second = std::to_string(std::max(0, std::atoi(level->second.c_str())) + 1);
}

/// The words of the shell that runs the command. A long text is in a file next to the scratch
/// folder, because the size of a command-line argument is limited.
Result<std::vector<std::string>> shell_words(Attempt& attempt, const ShellSpec& spec,
                                             const std::string& command) {
  constexpr long kWordPages = 32;  // MAX_ARG_STRLEN of Linux
  std::vector<std::string> words = spec.shell;
  bool is_long = command.size() >= static_cast<size_t>(kWordPages * ::sysconf(_SC_PAGESIZE));
  if (!is_long) {
    words.push_back(command);
    return words;
  }
  if (!reads_shell_text(spec.shell))
    return user_error(fmt::format(
        "the command has {}, more than one word of a command line can hold, and `{}` is not a "
        "shell that reads it from a file: use bash or sh, or pass the long part in a file",
        format_bytes(command.size()), spec.shell.front()));
  std::string file = command_file(attempt.start().dir());
  FLOW_TRY(replace_file(file, {command, "\n"}, false));
  words.push_back(". " + quote_shell(file));
  return words;
}

/// Starts the shell in a container.
Result<ChildProcess> start_in_container(Attempt& attempt, const SlotFile& slot,
                                        AttemptContainer& container, const ShellSpec& spec,
                                        const std::string& command, SpawnRequest what) {
  auto words = shell_words(attempt, spec, command);
  FLOW_TRY(words);
  FLOW_TRY(container.enter(*words, what));
  int failed_errno = 0;
  return spawn(what, slot, failed_errno);
}

/// Executes a plain command directly, and any other through the shell, which also reports why a
/// redirection failed.
Result<ChildProcess> start_command(Attempt& attempt, const SlotFile& slot, const ShellSpec& spec,
                                   const std::string& command, SpawnRequest what) {
  int failed_errno = 0;
  PlainCommand plain = is_plain_shell(spec.shell) ? plain_command(command) : PlainCommand();
  if (!plain.words.empty() && !changes_bash(what.environment, plain.words.front()))
    what.program = find_program(plain.words.front(), what.environment);
  if (!what.program.empty()) {
    SpawnRequest direct = what;
    direct.words = std::move(plain.words);
    direct.redirections = std::move(plain.redirections);
    if (spec.shell.front().ends_with("bash")) add_bash_variables(direct, direct.environment);
    auto child = spawn(direct, slot, failed_errno);
    if (child.ok()) child->replaces_shell = !direct.redirections.empty();
    if (child.ok() || failed_errno == 0) return child;
  }
  what.words = spec.shell;
  what.program = find_program(what.words.front(), what.environment);
  if (what.program.empty())
    return user_error(
        fmt::format("the shell `{}` was not found in PATH: install it, or name another with "
                    "`shell = {{ \"sh\", \"-eu\", \"-c\" }}`",
                    what.words.front()));
  auto words = shell_words(attempt, spec, command);
  FLOW_TRY(words);
  what.words = std::move(*words);
  return spawn(what, slot, failed_errno);
}

/// Whether a `|` outside quotes joins two commands.
bool has_pipe(std::string_view command) {
  char quote = 0;
  for (size_t i = 0; i < command.size(); i++) {
    char c = command[i], next = i + 1 < command.size() ? command[i + 1] : '\0';
    if (c == '\\' && quote != '\'') {
      i++;
    } else if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '|' && next == '|') {
      i++;
    } else if (c == '|' && (i == 0 || command[i - 1] != '>')) {
      return true;
    }
  }
  return false;
}

/// The program that a shell did not find, by its own words, or "".
std::string missing_program(std::string_view evidence) {
  for (std::string_view words : {": command not found", ": not found"}) {
    size_t end = evidence.rfind(words);
    if (end == evidence.npos) continue;
    std::string_view line = evidence.substr(0, end);
    size_t begin = line.find_last_of(" \n");
    return std::string(line.substr(begin == line.npos ? 0 : begin + 1));
  }
  return "";
}

/// The meaning of an exit code and what to do; "" if unknown.
std::string meaning_of(int code, const ShellSpec& spec, const std::string& command,
                       const std::string& evidence) {
  constexpr int kNotFound = 127, kNotExecutable = 126;
  if (code == kNotFound) {
    std::string program = missing_program(evidence);
    if (program.empty()) return ": a program was not found (code 127)";
    return fmt::format(
        ": `{}` is not on the PATH of the machine that ran it: install it there, or add its folder "
        "to PATH with the option `env`",
        program);
  }
  if (code == kNotExecutable && evidence.find("Argument list too long") != evidence.npos)
    return ": the arguments of a program are too long for the system: pass the names in a file, or "
           "through xargs";
  if (code == kNotExecutable) return ": a program could not be executed (code 126)";
  static const std::set<int> kFatal = {SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGTERM};
  if (kFatal.contains(code - kBySignal) && !has_pipe(command))
    return fmt::format(", which a shell reports for signal {} ({})", code - kBySignal,
                       ::strsignal(code - kBySignal));
  bool has_pipefail =
      std::find(spec.shell.begin(), spec.shell.end(), "pipefail") != spec.shell.end();
  if (!has_pipefail || !has_pipe(command)) return "";
  std::string text = ", that of the last part of a pipe that failed (`pipefail`)";
  if (code == kBySignal + SIGPIPE)
    text += ": the part after it ended before it had read everything, as `head` does";
  if (code == 1 && command.find("grep") != std::string::npos)
    text += "; `grep` ends with 1 where no line matches";
  return text;
}

/// The failure of a command that did not succeed, or nothing. `again` names the folder and the
/// command.
std::optional<core::Failure> status_failure(const Attempt& attempt, const ShellSpec& spec,
                                            const std::string& command, int status,
                                            const std::string& again, const std::string& evidence) {
  core::Failure failure;
  const wire::Start& start = attempt.start();
  if (WIFSIGNALED(status)) {
    failure.cause = core::Cause::signal;
    failure.code = WTERMSIG(status);
    failure.message =
        fmt::format("{}: `{}` was killed by signal {} ({}){}", start.shell().defined_at(),
                    attempt.shown_task(), failure.code, ::strsignal(failure.code), again);
    return failure;
  }
  if (WEXITSTATUS(status) == 0) return std::nullopt;
  failure.cause = core::Cause::exit_code;
  failure.code = WEXITSTATUS(status);
  failure.message = fmt::format("{}: `{}` ended with exit code {}{}{}", start.shell().defined_at(),
                                attempt.shown_task(), failure.code,
                                meaning_of(failure.code, spec, command, evidence), again);
  return failure;
}

/// The kernel's end of a container is seen by its runtime only.
std::optional<core::Failure> container_memory_failure(const Attempt& attempt,
                                                      const AttemptContainer& container,
                                                      const std::string& again) {
  if (!container.is_out_of_memory()) return std::nullopt;
  core::Failure failure;
  failure.cause = core::Cause::out_of_memory;
  failure.code = SIGKILL;
  failure.message = fmt::format(
      "{}: `{}` was ended: its container needed more memory than its limit of {}; `memory` gives "
      "it more{}",
      attempt.start().shell().defined_at(), attempt.shown_task(),
      format_bytes(static_cast<uint64_t>(attempt.start().memory_bytes())), again);
  return failure;
}

}  // namespace

// ---- output

void CommandOutput::add(std::string_view bytes) {
  size_t room = kStdoutMax - kept_.size();
  kept_.append(bytes.substr(0, room));
  is_cut_ = is_cut_ || bytes.size() > room;
  partial_.append(bytes);
  size_t end = partial_.rfind('\n');
  if (end != std::string::npos) {
    log(std::string_view(partial_).substr(0, end));
    partial_.erase(0, end + 1);
  }
  if (partial_.size() > kLineMax) flush_begun();
}

void CommandOutput::flush() {
  if (!partial_.empty()) log(partial_);
  partial_.clear();
}

std::string CommandOutput::tail() const {
  std::string text;
  for (const std::string& each : tail_) text += each + "\n";
  return text;
}

std::string CommandOutput::kept() const {
  if (!is_cut_) return attempt_.hidden(kept_);
  std::string text = kept_;
  attempt_.hide_begun(text);  // a secret at the cut is left out
  return text;
}

// Logs the first part of a long line.
void CommandOutput::flush_begun() {
  std::string rest = attempt_.hide_begun(partial_);
  if (!partial_.empty()) log(partial_, false);
  partial_ = std::move(rest);
}

// One message per line; a flood of lines is sent in blocks.
void CommandOutput::log(std::string_view text, bool ends_line) {
  size_t lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  size_t block_min = lines > kLinesMax ? kBlock : 0;
  size_t begin = 0;
  for (size_t at = 0; at <= text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    if (lines-- <= kTailLines) keep_tail(text.substr(at, end - at));
    at = end + 1;
    if (at - begin <= block_min && at <= text.size()) continue;
    attempt_.log_stream(stream_, text.substr(begin, end - begin), ends_line);
    begin = at;
  }
}

void CommandOutput::keep_tail(std::string_view line) {
  tail_.push_back(attempt_.hidden(std::string(line)).substr(0, kTailLineMax));
  if (tail_.size() > kTailLines) tail_.pop_front();
}

// ---- the process

bool RunningCommand::wait(std::vector<pollfd>& others, int timeout_ms) {
  return poll_once(child_.pidfd, others, timeout_ms);
}

CommandEnd RunningCommand::follow(const std::string& dir, int64_t linger_ms) {
  std::vector<pollfd> none;
  while (!poll_once(child_.pidfd, none, -1)) {
  }
  CommandEnd end;
  link_.set_group(0);  // its number may be reused once it has been waited for
  constexpr int64_t kKib = 1024;
  rusage used{};
  pid_t waited;
  do waited = ::wait4(child_.pid, &end.status, 0, &used);
  while (waited < 0 && errno == EINTR);
  if (waited < 0) {
    end.status = SIGKILL;  // the link kills this process, and has killed and reaped the command
  } else {
    end.peak_memory = used.ru_maxrss * kKib;
  }
  constexpr int kPauseMsMax = 50;
  // A failed command has no outputs to wait for, only filters of its output streams.
  int64_t wait_ms = end.status == 0 ? linger_ms : std::min(linger_ms, kFailedLingerMs);
  int64_t until_us = monotonic_us() + wait_ms * 1000;
  for (int pause_ms = 1; reap_children(); pause_ms = std::min(2 * pause_ms, kPauseMsMax)) {
    end.was_stopped = link_.stopping();
    if (end.was_stopped || monotonic_us() >= until_us) {
      if (end.status == 0) end.leftovers = descendants(dir, true);
      break;
    }
    poll_once(-1, none, pause_ms);
  }
  kill_children();
  finish();
  return end;
}

/// Reads available output. Returns true if `pidfd` is readable.
bool RunningCommand::poll_once(int pidfd, std::vector<pollfd>& others, int timeout_ms) {
  std::vector<pollfd> all = {{pidfd, POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
  for (size_t i = 0; i < 2; i++)
    if (streams_[i].is_open) all[i + 1].fd = streams_[i].descriptor;
  all.insert(all.end(), others.begin(), others.end());
  if (::poll(all.data(), all.size(), timeout_ms) < 0) return errno != EINTR;
  for (size_t i = 0; i < 2; i++)
    if (all[i + 1].revents != 0)
      streams_[i].is_open = drain(streams_[i].descriptor, *streams_[i].output, kReadsMax);
  std::copy(all.begin() + 3, all.end(), others.begin());
  return all[0].revents != 0;
}

/// Every writer has ended: reads the rest of the pipes.
void RunningCommand::finish() {
  for (Stream& stream : streams_) {
    if (stream.is_open) drain(stream.descriptor, *stream.output, INT_MAX);
    stream.output->flush();
    ::close(stream.descriptor);
  }
  ::close(child_.pidfd);
}

Status make_command_scratch(const std::string& dir) {
  if (::mkdir(dir.c_str(), 0700) == 0) return {};
  if (errno == EEXIST) FLOW_TRY(remove_tree(dir));
  return make_dirs(dir);
}

void remove_command_scratch(Attempt& attempt, const std::string& dir) {
  ::unlink(command_file(dir).c_str());
  ::unlink(stage_file(dir).c_str());
  if (::rmdir(dir.c_str()) == 0) return;  // the usual case: nothing was written
  if (Status removed = remove_tree(dir); !removed.ok()) attempt.warn(removed.error().message);
}

int shell_status(const ChildProcess& child, int status) {
  bool is_converted = child.replaces_shell && WIFSIGNALED(status);
  return is_converted ? W_EXITCODE(kBySignal + WTERMSIG(status), 0) : status;
}

std::optional<core::Failure> failure_of(const Attempt& attempt, const FilledCommand& command,
                                        const OpenEnvironment& environment,
                                        const AttemptContainer& container, int status,
                                        const std::string& evidence) {
  auto failure = setup_failure(attempt, environment, status, command.again, evidence);
  if (!failure) failure = container_memory_failure(attempt, container, command.again);
  if (!failure)
    failure = status_failure(attempt, command.spec, command.text, status, command.again, evidence);
  return failure;
}

core::Cause cause_of(const Error& error) {
  return error.kind == ErrorKind::environment ? core::Cause::staging : core::Cause::user_error;
}

void fail_environment(Attempt& attempt, const Error& error, const std::string& again) {
  if (attempt.link().terminated()) return attempt.stopped();
  bool is_of_machine = error.kind == ErrorKind::environment;
  attempt.fail(is_of_machine ? core::Cause::environment : core::Cause::user_error,
               fmt::format("{}: `{}` did not begin: {}{}", attempt.start().shell().defined_at(),
                           attempt.shown_task(), error.message, again),
               "");
}

std::optional<FilledCommand> fill(Attempt& attempt, const Value& args, uint16_t port) {
  constexpr size_t kCommandShown = 4'000;
  const wire::Start& start = attempt.start();
  FilledCommand filled{spec_of(start.shell()), {}, "", 0, ""};
  auto refuse = [&](const Error& error, core::Cause cause) {
    attempt.fail(cause, error.message, "");
    return std::nullopt;
  };
  auto replaced = with_paths(attempt, args, start.shell().stage_copy());
  if (!replaced.ok())
    return refuse(replaced.error(), attempt.check_inputs().ok() ? cause_of(replaced.error())
                                                                : core::Cause::input_changed);
  auto values = name_arguments(filled.spec, attempt.shown_task(), args, start.named_args());
  if (!values.ok()) return refuse(values.error(), core::Cause::user_error);
  auto outputs = fill_outputs(filled.spec, *values, builtins(start));
  if (!outputs.ok()) return refuse(outputs.error(), core::Cause::user_error);
  filled.outputs = std::move(*outputs);
  for (size_t i = 0; i < filled.outputs.size(); i++)
    filled.spec.outputs[i].second = filled.outputs[i].text;
  auto named = name_arguments(filled.spec, attempt.shown_task(), *replaced, start.named_args());
  if (!named.ok()) return refuse(named.error(), core::Cause::user_error);
  if (port != 0) {
    auto fields = named->as_table().fields;
    fields.emplace_back(Value("port"), Value(int64_t{port}));
    *named = Value::map(std::move(fields));
  }
  auto command = fill_command(filled.spec, *named, builtins(start));
  if (!command.ok()) return refuse(command.error(), core::Cause::user_error);
  filled.text = std::move(*command);
  auto linger = attempt.linger_ms();
  if (!linger.ok()) return refuse(linger.error(), core::Cause::user_error);
  filled.linger_ms = *linger;
  // Redacted before it is cut, so that no part of a secret is left.
  filled.again = fmt::format("\nfolder: {}\ncommand: {}", start.dir(),
                             cut_text(attempt.hidden(filled.text), kCommandShown));
  return filled;
}

Result<ChildProcess> start(Attempt& attempt, const SlotFile& slot, const FilledCommand& command,
                           const OpenEnvironment& environment, AttemptContainer& container,
                           const Gang* gang) {
  WorkerLink& link = attempt.link();
  wire::FromExecutor started;
  *started.mutable_started()->mutable_id() = attempt.start().id();
  started.mutable_started()->set_where(attempt.hidden(command.again));
  bool now = attempt.start().memory_bytes() > 0;
  link.send(started, now);  // before the command can exceed its memory limit
  SpawnRequest what;
  what.environment = environment_of(attempt, gang);
  activate(environment.setup, what.environment);
  what.directory = attempt.start().dir();
  std::string text = environment.text + command.text;
  auto child =
      environment.runtime
          ? start_in_container(attempt, slot, container, command.spec, text, std::move(what))
          : start_command(attempt, slot, command.spec, text, std::move(what));
  FLOW_TRY(child);
  started.mutable_started()->set_pid(child->pid);
  link.send(started, now);
  return child;
}

}  // namespace flow
