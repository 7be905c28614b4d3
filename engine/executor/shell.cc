// Shell tasks: run the command in its scratch folder and collect its outputs.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>

#include "engine/base/files.hpp"
#include "engine/base/glob.hpp"
#include "engine/base/size_units.hpp"
#include "engine/blobs/folder.hpp"
#include "engine/executor/attempt.hpp"
#include "engine/executor/gang.hpp"
#include "engine/executor/shell_command.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

/// Paths of an output below `dir`, sorted; a glob matches no staged input. `is_list` tells whether
/// the output is a list: a file whose name equals the pattern is a single output.
Result<std::vector<std::string>> matches(const std::string& dir, const OutputPath& output,
                                         bool& is_list) {
  std::vector<std::string> paths;
  std::string plain = dir + "/" + output.text;
  is_list = !output.glob.empty() && ::access(plain.c_str(), F_OK) != 0;
  if (!is_list) {
    while (plain.ends_with('/')) plain.pop_back();
    if (::access(plain.c_str(), F_OK) == 0) paths.push_back(plain);
    return paths;
  }
  auto found = glob_below(dir, output.glob, {"inputs", ".content"});
  FLOW_TRY(found);
  for (const std::string& path : *found) paths.push_back(dir + "/" + path);
  return paths;
}

std::string nearest_file(const std::string& dir, const std::string& wanted) {
  std::error_code ignored;
  fs::path target = fs::read_symlink(dir + "/" + wanted, ignored);
  if (!target.empty())
    return fmt::format("; it is a link to `{}`, which is not there", target.string());
  std::vector<std::string> names;
  for (fs::directory_iterator walk(dir, ignored), end; !ignored && walk != end;
       walk.increment(ignored))
    names.push_back(walk->path().filename().string());
  std::string near = nearest_name(wanted, names);
  return near.empty() ? "" : fmt::format("; there is `{}`", near);
}

/// "2 processes running, which were ended after 5s: `gzip -9`, `sleep 300`".
std::string text_of(const Attempt& attempt, const std::vector<Descendant>& leftovers,
                    int64_t linger_ms) {
  constexpr size_t kShown = 5;
  std::string text =
      fmt::format("{} process{} running, which {} ended after {}: ", leftovers.size(),
                  leftovers.size() == 1 ? "" : "es", leftovers.size() == 1 ? "was" : "were",
                  format_duration(linger_ms));
  for (size_t i = 0; i < std::min(leftovers.size(), kShown); i++)
    text += fmt::format("{}`{}`", i == 0 ? "" : ", ", attempt.shown_command(leftovers[i]));
  return leftovers.size() > kShown ? text + ", …" : text;
}

/// Outputs are unreliable if a remaining process could still write to them.
std::optional<core::Failure> unfinished_write(const Attempt& attempt,
                                              const std::vector<Descendant>& leftovers,
                                              int64_t linger_ms, const std::string& again) {
  auto writer = std::find_if(leftovers.begin(), leftovers.end(),
                             [](const Descendant& each) { return !each.writes.empty(); });
  if (writer == leftovers.end()) return std::nullopt;
  core::Failure failure;
  failure.cause = core::Cause::bad_result;
  failure.message = fmt::format(
      "{}: the command of `{}` ended and left {}; `{}` still had `{}` open for writing, which may "
      "be incomplete. Let the command wait for it (`wait`), or give it more time with the "
      "environment variable FLOW_LINGER, such as `env = {{ FLOW_LINGER = \"10m\" }}`{}",
      attempt.start().shell().defined_at(), attempt.shown_task(),
      text_of(attempt, leftovers, linger_ms), attempt.shown_command(*writer),
      writer->writes.front(), again);
  return failure;
}

core::Cause cause_of_output(const Error& error) {
  return error.kind == ErrorKind::environment ? core::Cause::staging : core::Cause::bad_result;
}

/// The files that the outputs' paths and patterns match, as values; a failure names what is
/// missing.
std::optional<core::Failure> gather(Attempt& attempt, const std::vector<OutputPath>& outputs,
                                    const std::string& again,
                                    std::vector<std::pair<Value, Value>>& result) {
  const std::string& dir = attempt.start().dir();
  core::Failure failure;
  for (const OutputPath& output : outputs) {
    bool is_list = false;
    auto paths = matches(dir, output, is_list);
    bool is_missing = !paths.ok() || paths->empty();
    std::string broken = is_missing ? broken_link(dir + "/" + output.text) : "";
    if (!broken.empty()) {
      failure.cause = core::Cause::missing_output;
      failure.message = fmt::format("{}: the output `{}` of `{}`: `{}` is {}{}",
                                    attempt.start().shell().defined_at(), output.name,
                                    attempt.shown_task(), output.text, broken, again);
      return failure;
    }
    if (is_missing && paths.ok() && output.is_optional) continue;
    if (is_missing) {
      failure.cause = core::Cause::missing_output;
      failure.message = fmt::format(
          "{}: `{}` made no output `{}`: {}{}{}", attempt.start().shell().defined_at(),
          attempt.shown_task(), output.name,
          paths.ok() ? fmt::format("nothing matches `{}`", output.text) : paths.error().message,
          paths.ok() ? nearest_file(dir, output.text) : "", again);
      return failure;
    }
    std::vector<Value> files;
    for (const std::string& path : *paths) {
      auto file = attempt.blobs().store_output(path, dir);
      attempt.log_warnings();
      if (!file.ok()) {
        failure.cause = cause_of_output(file.error());
        failure.message =
            fmt::format("{}: the output `{}` of `{}`: {}{}", attempt.start().shell().defined_at(),
                        output.name, attempt.shown_task(), file.error().message, again);
        return failure;
      }
      files.emplace_back(std::move(*file));
    }
    result.emplace_back(Value(output.name),
                        is_list ? Value::list(std::move(files)) : std::move(files.front()));
  }
  Status moved = attempt.blobs().move_outputs();
  if (moved.ok()) return std::nullopt;
  failure.cause = cause_of_output(moved.error());
  failure.message =
      fmt::format("an output of `{}`: {}{}", attempt.shown_task(), moved.error().message, again);
  return failure;
}

}  // namespace

void run_shell(Attempt& attempt, const SlotFile& slot, const Value& args, Gang* gang) {
  const std::string& dir = attempt.start().dir();
  if (Status made = make_command_scratch(dir); !made.ok())
    return attempt.fail(core::Cause::staging, made.error().message, "");
  auto command = fill(attempt, args, 0);
  if (!command) return;
  const std::string& again = command->again;
  auto environment = open_environment(attempt);
  if (!environment.ok()) return fail_environment(attempt, environment.error(), again);
  AttemptContainer container(attempt, *environment);

  attempt.begin_function();
  auto child = start(attempt, slot, *command, *environment, container, gang);
  if (!child.ok()) return attempt.fail(cause_of(child.error()), child.error().message + again, "");
  WorkerLink& link = attempt.link();
  link.set_group(child->pid);
  if (link.terminated()) ::kill(-child->pid, SIGTERM);
  CommandOutput out(attempt, 1), err(attempt, 2);
  CommandEnd end = RunningCommand(link, *child, out, err).follow(dir, command->linger_ms);
  attempt.end_function(end.peak_memory);
  end.status = shell_status(*child, end.status);
  slot.clear();
  container.end(end.status);
  std::string evidence = err.tail().empty() ? out.tail() : err.tail();
  // The output of a program that was asked to end is not a result, whatever its exit code.
  if (link.terminated() || end.was_stopped) return attempt.stopped(evidence);
  if (!end.leftovers.empty())
    attempt.warn("the command left " + text_of(attempt, end.leftovers, command->linger_ms));
  auto failure = failure_of(attempt, *command, *environment, container, end.status, evidence);
  if (!failure) failure = unfinished_write(attempt, end.leftovers, command->linger_ms, again);
  if (failure) {
    if (gang != nullptr) gang->fail(failure->message);
    return attempt.fail(failure->cause, failure->message, evidence, failure->code);
  }
  if (Status same = attempt.check_inputs(); !same.ok())
    return attempt.fail(core::Cause::input_changed, same.error().message + again, "");
  if (gang != nullptr) {
    if (Status left_gang = gang->leave_together(attempt); !left_gang.ok())
      return fail_after_peer_reports(attempt, left_gang.error(), left_gang.error().message + again,
                                     evidence);
  }
  std::vector<std::pair<Value, Value>> result;
  // Scratch is removed before the report: the engine may end this process once it has received it.
  if (!attempt.is_first()) {
    remove_command_scratch(attempt, dir);
    return attempt.finish(Value(), nullptr, false);
  }
  if (auto missing = gather(attempt, command->outputs, again, result))
    return attempt.fail(missing->cause, missing->message, evidence);
  result.emplace_back(Value("stdout"), Value(out.kept()));
  remove_command_scratch(attempt, dir);
  attempt.finish(Value::map(std::move(result)), nullptr, false);
}

}  // namespace flow
