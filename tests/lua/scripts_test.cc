// Runs scripts/**/*.lua and compares their output and errors with the comments on their lines.
//   -- mode: task    the file is a task's function (the default); it runs twice, with equal results
//   -- mode: load    the file is a script; a pipeline is returned for it
//   -- mode: script  the file is a whole script; then each task of its graph runs, in order
//   -- ranks: 3            the task runs on this many ranks at once
//   -- expect: text        a line of output, in order; of each rank
//   -- expect rank 1: text a line of that rank only
//   -- expect error: text  the file ends with this error at this line
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gang.hpp"

using namespace flow;
using namespace flow::test;

namespace {

struct Script {
  std::string mode = "task", text, name, folder;
  int ranks = 1;
  std::vector<std::vector<std::string>> output{{}};  // by rank
  std::string error;
  size_t error_line = 0;
};

std::string after(const std::string& line, const std::string& mark, bool& found) {
  size_t at = line.find(mark);
  found = at != std::string::npos;
  return found ? line.substr(at + mark.size()) : "";
}

Script read_script(const std::filesystem::path& path) {
  Script script;
  script.name = path.filename().string();
  script.folder = path.parent_path().string();
  std::ifstream file(path);
  std::string line;
  for (size_t number = 1; std::getline(file, line); number++) {
    script.text += line + "\n";
    bool found;
    std::string rest = after(line, "-- mode: ", found);
    if (found) script.mode = rest;
    rest = after(line, "-- ranks: ", found);
    if (found) script.ranks = std::stoi(rest);
    script.output.resize(static_cast<size_t>(script.ranks));
    rest = after(line, "-- expect: ", found);
    for (size_t rank = 0; found && rank < script.output.size(); rank++)
      script.output[rank].push_back(rest);
    for (size_t rank = 0; rank < script.output.size(); rank++) {
      rest = after(line, "-- expect rank " + std::to_string(rank) + ": ", found);
      if (found) script.output[rank].push_back(rest);
    }
    rest = after(line, "-- expect error: ", found);
    if (!found) continue;
    script.error = rest;
    script.error_line = number;
  }
  return script;
}

// Output of the graph's child process goes to its stderr.
class CapturedStderr {
 public:
  CapturedStderr() : file_(std::tmpfile()), saved_(dup(2)) { dup2(fileno(file_), 2); }
  ~CapturedStderr() { std::fclose(file_); }
  std::vector<std::string> lines() {
    std::fflush(stderr);
    dup2(saved_, 2);
    close(saved_);
    std::rewind(file_);
    std::vector<std::string> lines;
    std::string line;
    for (int c; (c = std::fgetc(file_)) != EOF;) {
      if (c != '\n') {
        line += static_cast<char>(c);
        continue;
      }
      lines.push_back(line);
      line.clear();
    }
    return lines;
  }

 private:
  std::FILE* file_;
  int saved_;
};

struct Outcome {
  std::vector<std::vector<std::string>> lines{{}};  // by rank
  std::string error;
};

Files sources_of(const Script& script) {
  std::string text = script.text;
  if (script.mode == "task")
    text = "local flow = require 'flow'; local t = flow.task('t', function(ctx, ...) " + text +
           "\nend) return flow.pipeline('p', {}, function() t() end)";
  if (script.mode == "load") text += "\nreturn require('flow').pipeline('p', {}, function() end)";
  Files files = {{script.name, text}};
  auto modules = std::filesystem::path(script.folder) / "modules";
  if (!std::filesystem::exists(modules)) return files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(modules)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path());
    std::stringstream source;
    source << file.rdbuf();
    files.emplace_back(std::filesystem::relative(entry.path(), modules).string(), source.str());
  }
  return files;
}

// A folder for ctx.dir of all attempts.
struct AttemptDir {
  std::string path = std::filesystem::temp_directory_path() / "flow-script-XXXXXX";
  AttemptDir() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~AttemptDir() { std::filesystem::remove_all(path); }
};

// The error is that of the rank that caused it, not of those that were notified of it.
void run_ranks(const Script& script, const BuildResult& built, const std::string& dir,
               Outcome& outcome) {
  const TaskNode& node = built.plan.nodes.at(0);
  AttemptRequest request = attempt_of(built.plan.defs[node.def]);
  request.args = node.args.value();
  request.dir = dir;
  CapturedStderr silenced;
  auto all = run_gang(built.bundle, script.ranks, 2, request, [](int, GangHost&) {});
  silenced.lines();
  outcome.lines.clear();
  for (size_t rank = 0; rank < all[0].size(); rank++) {
    CHECK(all[0][rank].lines == all[1][rank].lines);
    outcome.lines.push_back(all[0][rank].lines);
    const AttemptOutcome& ended = all[0][rank].ended;
    if (ended.kind != AttemptOutcome::Kind::failed) continue;
    if (outcome.error.empty() || !ended.lost_gang) outcome.error = ended.message;
  }
}

Outcome run(const Script& script, const std::string& dir) {
  Outcome outcome;
  Files files = sources_of(script);
  CapturedStderr captured;
  auto built = build(files);
  outcome.lines[0] = captured.lines();
  if (!built.ok()) {
    outcome.error = built.error().message;
    return outcome;
  }
  if (script.mode == "load") return outcome;
  if (script.ranks > 1) {
    run_ranks(script, *built, dir, outcome);
    return outcome;
  }
  auto vm = make_script_vm();
  CapturedStderr silenced;
  Status loaded = vm->load(built->bundle);
  silenced.lines();
  if (!loaded.ok()) {
    outcome.error = loaded.error().message;
    return outcome;
  }
  for (const TaskNode& node : built->plan.nodes) {
    std::vector<std::string> first;
    for (int attempt = 1; attempt <= 2; attempt++) {
      FakeHost host;
      host.environment["HOME"] = "/home/somebody";
      AttemptRequest request = attempt_of(built->plan.defs[node.def]);
      request.args = node.args.value();
      request.dir = dir;
      AttemptOutcome ended = vm->run(request, host);
      if (attempt == 1) first = host.lines;
      if (attempt == 2) CHECK(first == host.lines);
      if (ended.kind == AttemptOutcome::Kind::failed) outcome.error = ended.message;
    }
    outcome.lines[0].insert(outcome.lines[0].end(), first.begin(), first.end());
    if (!outcome.error.empty()) break;
  }
  return outcome;
}

}  // namespace

namespace {

// FLOW_TEST_SCRIPT: runs only the scripts whose path contains this text.
void check_scripts(const char* folder, const std::string& dir) {
  const char* part = std::getenv("FLOW_TEST_SCRIPT");
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".lua" &&
        entry.path().string().find("/modules/") == std::string::npos &&
        (part == nullptr || entry.path().string().find(part) != std::string::npos))
      paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  REQUIRE_FALSE(paths.empty());
  for (const auto& path : paths) {
    INFO(path.string());
    Script script = read_script(path);
    Outcome outcome = run(script, dir);
    CHECK(outcome.lines == script.output);
    if (script.error.empty()) {
      CHECK(outcome.error == "");
      continue;
    }
    CHECK_THAT(outcome.error, Catch::Contains(script.error));
    std::string place = script.name + ":" + std::to_string(script.error_line) + ":";
    CHECK_THAT(outcome.error, Catch::Contains(place));
  }
}

}  // namespace

TEST_CASE("scripts print and raise what their lines expect") {
  check_scripts(FLOW_SCRIPTS, "/tmp");
}

TEST_CASE("the libraries return and reject what the lines expect") {
  AttemptDir dir;
  check_scripts(FLOW_LIBRARY_SCRIPTS, dir.path);
}
