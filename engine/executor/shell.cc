// Shell tasks: fill the command, run it in its scratch folder, gather what it made.
#include <fmt/format.h>
#include <glob.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/executor/attempt.hpp"
#include "engine/executor/processes.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr size_t kStdoutMax = 1 << 20;  // of the result; the whole is in the logs
constexpr size_t kTailLines = 20;
constexpr size_t kChunk = 64 * 1024;

/// Splits a stream into log lines and keeps what the result and an error need.
class Output {
 public:
  Output(Attempt& attempt, uint32_t stream) : attempt_(attempt), stream_(stream) {}
  void add(std::string_view bytes) {
    if (kept.size() < kStdoutMax) kept.append(bytes.substr(0, kStdoutMax - kept.size()));
    partial_.append(bytes);
    size_t at = 0;
    for (size_t end = partial_.find('\n'); end != std::string::npos;
         end = partial_.find('\n', at)) {
      line(partial_.substr(at, end - at));
      at = end + 1;
    }
    partial_.erase(0, at);
    if (partial_.size() > kStdoutMax) end();
  }
  void end() {
    if (!partial_.empty()) line(partial_);
    partial_.clear();
  }
  std::string tail() const {
    std::string text;
    for (const std::string& each : tail_) text += each + "\n";
    return text;
  }
  std::string kept;

 private:
  void line(const std::string& text) {
    attempt_.log_stream(stream_, text);
    tail_.push_back(text.substr(0, 2000));
    if (tail_.size() > kTailLines) tail_.erase(tail_.begin());
  }
  Attempt& attempt_;
  uint32_t stream_;
  std::string partial_;
  std::vector<std::string> tail_;
};

/// Reads what is there; false at the end.
bool drain(int descriptor, Output& output) {
  static thread_local std::string chunk(kChunk, '\0');
  while (true) {
    ssize_t got = ::read(descriptor, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN;
    if (got == 0) return false;
    output.add({chunk.data(), static_cast<size_t>(got)});
  }
}

/// Waits for the program; what its group left behind is killed. Returns the wait status.
int follow(Child& child, Output& out, Output& err) {
  bool out_open = true, err_open = true;
  while (true) {
    pollfd descriptors[3] = {{child.pidfd, POLLIN, 0},
                             {out_open ? child.out : -1, POLLIN, 0},
                             {err_open ? child.err : -1, POLLIN, 0}};
    if (::poll(descriptors, 3, -1) < 0 && errno != EINTR) break;
    if (descriptors[1].revents != 0) out_open = drain(child.out, out);
    if (descriptors[2].revents != 0) err_open = drain(child.err, err);
    if (descriptors[0].revents != 0) break;
  }
  int status = 0;
  ::kill(-child.pid,
         SIGKILL);  // whoever is left of its group; the leader's zombie keeps the number ours
  ::waitpid(child.pid, &status, 0);
  if (out_open) drain(child.out, out);
  if (err_open) drain(child.err, err);
  out.end();
  err.end();
  ::close(child.out);
  ::close(child.err);
  ::close(child.pidfd);
  return status;
}

/// Files become paths, staged below the scratch folder.
Result<Value> with_paths(Attempt& attempt, const Value& value, bool copy) {
  if (value.kind() == Value::Kind::file) {
    auto path = attempt.stage(value.as_file(), copy);
    FLOW_TRY(path);
    // Relative to the scratch folder: the same text wherever the state lies.
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

bool is_glob(const std::string& pattern) {
  return pattern.find_first_of("*?[") != std::string::npos;
}

std::vector<std::string> matches(const std::string& dir, const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob((dir + "/" + pattern).c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; i++) paths.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string nearest_file(const std::string& dir, const std::string& wanted) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator walk(dir, ignored), end; !ignored && walk != end;
       walk.increment(ignored))
    names.push_back(walk->path().filename().string());
  std::string near = nearest_name(wanted, names);
  return near.empty() ? "" : fmt::format("; there is `{}`", near);
}

}  // namespace

void run_shell(Attempt& attempt, const Value& args) {
  const wire::Start& start = attempt.start();
  std::string dir = start.dir();
  std::error_code ignored;
  fs::remove_all(dir, ignored);
  if (Status made = make_dirs(dir); !made.ok())
    return attempt.fail(core::Cause::staging, made.error().message, "");
  ShellSpec spec;
  spec.command = start.shell().command();
  spec.args.assign(start.shell().args().begin(), start.shell().args().end());
  spec.shell.assign(start.shell().shell().begin(), start.shell().shell().end());
  for (int i = 0; i < start.shell().output_names_size(); i++)
    spec.outputs.emplace_back(start.shell().output_names(i), start.shell().output_patterns(i));

  auto replaced = with_paths(attempt, args, start.shell().stage_copy());
  if (!replaced.ok()) return attempt.fail(core::Cause::staging, replaced.error().message, "");
  auto named = name_arguments(spec, start.task(), *replaced, start.named_args());
  if (!named.ok()) return attempt.fail(core::Cause::user_error, named.error().message, "");
  std::map<std::string, std::string> builtin = {{"cpus", std::to_string(start.cpus())},
                                                {"memory", std::to_string(start.memory_bytes())},
                                                {"gpus", "0"},
                                                {"rank", "0"},
                                                {"ranks", "1"},
                                                {"seed", std::to_string(start.seed())},
                                                {"attempt", std::to_string(start.id().attempt())}};
  auto command = fill_command(spec, *named, builtin);
  if (!command.ok()) return attempt.fail(core::Cause::user_error, command.error().message, "");

  Spawn what;
  what.environment = attempt.environment();
  what.environment["FLOW_RUN"] = start.id().run();
  what.environment["FLOW_TASK"] = start.task();
  what.environment["FLOW_ATTEMPT"] = std::to_string(start.id().attempt());
  what.environment["FLOW_SLOT"] = attempt.state_dir();
  what.directory = dir;
  std::vector<std::string> plain = plain_words(*command);
  if (!plain.empty()) what.program = find_program(plain.front(), what.environment);
  bool direct = !what.program.empty();
  if (direct) {
    what.words = plain;
  } else {
    what.words = spec.shell;
    what.words.push_back(*command);
    what.program = find_program(what.words.front(), what.environment);
    if (what.program.empty())
      return attempt.fail(core::Cause::staging,
                          fmt::format("the shell `{}` was not found in PATH", what.words.front()),
                          "");
  }
  auto again = [&] { return fmt::format("\nfolder: {}\ncommand: {}", dir, *command); };
  auto child = spawn(what);
  if (!child.ok()) return attempt.fail(core::Cause::staging, child.error().message + again(), "");
  attempt.session().set_group(child->pid);
  if (attempt.stopping()) ::kill(-child->pid, SIGTERM);
  wire::FromExecutor started;
  *started.mutable_started()->mutable_id() = start.id();
  started.mutable_started()->set_pid(child->pid);
  attempt.session().send(started, start.memory_bytes() > 0);
  Output out(attempt, 1), err(attempt, 2);
  int status = follow(*child, out, err);
  attempt.session().set_group(0);
  kill_children();
  std::string evidence = err.tail().empty() ? out.tail() : err.tail();
  if (attempt.stopping() && status != 0) return attempt.stopped();
  if (WIFSIGNALED(status)) {
    int signal = WTERMSIG(status);
    return attempt.fail(core::Cause::signal,
                        fmt::format("`{}` was killed by signal {} ({}){}", start.task(), signal,
                                    ::strsignal(signal), again()),
                        evidence, signal);
  }
  if (WEXITSTATUS(status) != 0) {
    return attempt.fail(
        core::Cause::exit_code,
        fmt::format("`{}` ended with exit code {}{}", start.task(), WEXITSTATUS(status), again()),
        evidence, WEXITSTATUS(status));
  }
  if (Status same = attempt.check_inputs(); !same.ok())
    return attempt.fail(core::Cause::input_changed, same.error().message + again(), "");
  std::vector<std::pair<Value, Value>> result;
  for (const auto& [name, pattern] : spec.outputs) {
    std::vector<std::string> paths = matches(dir, pattern);
    if (paths.empty()) {
      return attempt.fail(
          core::Cause::missing_output,
          fmt::format("`{}` made no output `{}`: nothing matches `{}`{}{}", start.task(), name,
                      pattern, nearest_file(dir, pattern), again()),
          evidence);
    }
    std::vector<Value> files;
    for (const std::string& path : paths) {
      auto file = attempt.store_file(path);
      if (!file.ok()) return attempt.fail(core::Cause::staging, file.error().message + again(), "");
      files.emplace_back(std::move(*file));
    }
    result.emplace_back(Value(name),
                        is_glob(pattern) ? Value::list(std::move(files)) : files.front());
  }
  result.emplace_back(Value("stdout"), Value(out.kept));
  attempt.finish(Value::map(std::move(result)), nullptr);
  fs::remove_all(dir, ignored);
}

}  // namespace flow
