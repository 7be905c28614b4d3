// The behaviour that host programs rely on, through flow.hpp with real executors and a real state.
#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "engine/process/cgroup.hpp"
#include "flow/flow.hpp"
#include "tests/api/temp_folder.hpp"

using namespace flow;
namespace fs = std::filesystem;

namespace {

struct TempFolder : test::TempFolder {
  std::string script(const std::string& body) const {
    std::ofstream(path / "pipeline.lua") << "local flow = require \"flow\"\n" << body;
    return (path / "pipeline.lua").string();
  }
};

/// A shell command that needs more than 60 MB.
constexpr const char* kHog = "x=$(head -c 60000000 /dev/zero | tr '\\0' x)\n";

/// Replaces the executor by a program that runs the shell commands `body`, in which $executor is
/// the real executor.
std::string wrapped(const TempFolder& temp, const std::string& body) {
  std::string executor = temp.options().executor, commands = body;
  constexpr std::string_view kName = "$executor";
  for (size_t at; (at = commands.find(kName)) != std::string::npos;)
    commands.replace(at, kName.size(), executor);
  fs::path program = temp.path / "executor";
  std::ofstream(program) << "#!/bin/sh\n[ \"$1\" = --build ] && exec '" << executor << "' \"$@\"\n"
                         << commands;
  fs::permissions(program, fs::perms::owner_all);
  return program.string();
}

const TaskInfo& task(const RunInfo& info, const std::string& name) {
  for (const TaskInfo& each : info.tasks) {
    if (each.name == name) return each;
  }
  FAIL("no task " << name);
  throw 0;
}

const char* kSum = R"(
local add = flow.task("add", function(ctx, a, b) return a + b end)
return flow.pipeline("sum", { x = flow.param.int { default = 1 } }, function(p)
  return { total = add(add(p.x, 2), 3) }
end)
)";

/// The signals that a thread blocks, from its folder below /proc. Empty for a thread that has
/// ended: its folder exists for a moment longer, with an empty mask.
std::optional<uint64_t> blocked_signals(const fs::path& thread) {
  constexpr std::string_view kThreads = "Threads:";
  constexpr std::string_view kBlocked = "SigBlk:";
  std::ifstream status(thread / "status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(kThreads) && std::stoi(line.substr(kThreads.size())) == 0) break;
    if (line.starts_with(kBlocked)) return std::stoull(line.substr(kBlocked.size()), nullptr, 16);
  }
  return std::nullopt;
}

/// Threads of this process that do not block SIGTERM or SIGINT.
int threads_that_take_signals() {
  constexpr uint64_t kAsked = uint64_t{1} << (SIGTERM - 1) | uint64_t{1} << (SIGINT - 1);
  int count = 0;
  for (const auto& thread : fs::directory_iterator("/proc/self/task")) {
    std::optional<uint64_t> blocked = blocked_signals(thread.path());
    if (blocked && (*blocked & kAsked) != kAsked) ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("an engine reads the configuration that its options name, and no other") {
  TempFolder temp;
  std::string script = temp.script(R"(
local say = flow.shell("say", { command = [[set +u; echo -n mode $MODE]] })
return flow.pipeline("p", {}, function(p) return say().stdout end)
)");
  std::ofstream(temp.path / "flow.toml") << "[tasks.say]\nenv.MODE = \"read\"\n"
                                         << "[profile.p.tasks.say]\nenv.MODE = \"profile\"\n";
  EngineOptions options = temp.options();
  CHECK(Engine(options).run(script).wait() == Value("mode"));
  options.config = (temp.path / "flow.toml").string();
  CHECK(Engine(options).run(script).wait() == Value("mode read"));
  options.profile = "p";
  {
    Engine engine(options);
    CHECK(engine.run(script).wait() == Value("mode profile"));
    RunOptions own;
    own.config.files = {{"own.toml", "[tasks.say]\nenv.MODE = \"own\"\n"}};
    CHECK(engine.run(script, {}, own).wait() == Value("mode own"));
    own.config.files[0].text = "[tasks.say]\nenv.MODE = 1\ncpu = 1\n";
    CHECK_THROWS_WITH(engine.run(script, {}, own), Catch::StartsWith("own.toml:3: "));
  }
  options.config = (temp.path / "none.toml").string();
  Engine engine(options);
  CHECK_THROWS_WITH(engine.run(script), Catch::Contains("none.toml"));
}

TEST_CASE("a pipeline's result comes back as a value") {
  TempFolder temp;
  Engine engine(temp.options());
  Run run = engine.run(temp.script(kSum), {{"x", 10}});
  Value result = run.wait();
  CHECK(to_json(result) == R"({"total":15})");
  RunInfo info = run.info();
  CHECK(info.status == "succeeded");
  CHECK(info.counts.succeeded == 2);
  CHECK(run.counts().succeeded == 2);
  CHECK(task(info, "add#2").attempts == 1);
}

TEST_CASE("tasks are counted by name, and events say how one failed") {
  TempFolder temp;
  Engine engine(temp.options());
  Run run = engine.run(temp.script(R"(
local bad = flow.task("bad", { retries = { max = 1, backoff = "50ms" } }, function(ctx, i)
  ctx:log("read %d\n\n", i)
  if i == 2 then error("no sample") end
  return i
end)
local sum = flow.task("sum", function(ctx, list) return #list end)
return flow.pipeline("p", {}, function() return { sum(flow.map(bad, { 1, 2, 3 })), sum({}) } end)
)"));
  std::vector<CountedTask> counts;
  std::vector<std::string> waits;
  Event failed;
  for (const Event& event : run.events()) {
    if (event.type == "task" && event.status == "waiting") waits.push_back(event.text);
    if (event.type == "task" && event.status == "failed" && event.cause != "dependency")
      failed = event;
    if (!event.counts.empty()) counts = event.counts;
  }
  REQUIRE(counts.size() == 2);
  std::ranges::sort(counts, {}, &CountedTask::name);
  CHECK(counts[0].name == "bad");
  CHECK(counts[0].counts.succeeded == 2);
  CHECK(counts[0].counts.failed == 1);
  CHECK(counts[1].name == "sum");
  CHECK(counts[1].counts.succeeded == 1);
  CHECK(counts[1].counts.skipped == 1);
  CHECK(failed.task == "bad[2]");
  CHECK(failed.cause == "user_error");
  CHECK_THAT(failed.evidence, Catch::Contains("in function"));
  CHECK(failed.last_line == "read 2");
  REQUIRE(waits.size() == 1);
  CHECK_THAT(waits[0], Catch::StartsWith("a new attempt (2 of 2, in "));
  CHECK_THAT(waits[0], Catch::EndsWith(": no sample"));
  CHECK(failed.json().find("read 2") == std::string::npos);
}

TEST_CASE("each of many tasks gets its own arguments") {
  TempFolder temp;
  Engine engine(temp.options());
  Run run = engine.run(temp.script(R"(
local pair = flow.task("pair", function(ctx, i, before, text)
  return { i, (before or { 0, 0 })[2] + i, #text }
end)
local check = flow.task("check", function(ctx, i, mine, text)
  assert(mine[1] == i and mine[3] == #text, "not mine")
  return mine[2]
end)
return flow.pipeline("many", {}, function()
  local last, sums = {}, {}
  for i = 1, 3000 do
    local text = ("x"):rep(i % 200)
    local mine = pair(i, last[i % 7], text)
    last[i % 7] = mine
    sums[i] = check(i, mine, text)
  end
  return { sums[2994], sums[3000] }
end)
)"));
  auto sum_to = [](int64_t last) {
    int64_t sum = 0;
    for (int64_t i = last; i > 0; i -= 7) sum += i;
    return sum;
  };
  CHECK(run.wait() == Value::list({Value(sum_to(2994)), Value(sum_to(3000))}));
}

TEST_CASE("a second run uses the cache and runs only tasks that changed") {
  TempFolder temp;
  Engine engine(temp.options());
  engine.run(temp.script(kSum)).wait();
  Run again = engine.run(temp.script(kSum));
  again.wait();
  CHECK(again.info().counts.cached == 2);
  Run other = engine.run(temp.script(kSum), {{"x", 3}});
  other.wait();
  CHECK(other.info().counts.cached == 0);
}

TEST_CASE("early cutoff: an edit that does not change an output re-runs nothing downstream") {
  TempFolder temp;
  Engine engine(temp.options());
  auto source = [&](const char* body) {
    return temp.script(std::string("local a = flow.task('a', function() ") + body + R"( end)
local b = flow.task("b", function(ctx, v) return v * 2 end)
return flow.pipeline("cut", {}, function() return b(a()) end))");
  };
  engine.run(source("return 4")).wait();
  Run run = engine.run(source("local half = 2 return half + half"));
  run.wait();
  RunInfo info = run.info();
  CHECK_FALSE(task(info, "a").cached);
  CHECK(task(info, "a").attempts == 1);
  CHECK(task(info, "b").cached);
}

TEST_CASE("a failed task names its line, and its dependents are skipped") {
  TempFolder temp;
  Engine engine(temp.options());
  Run run = engine.run(temp.script(R"(
local bad = flow.task("bad", function() error("no such thing") end)
local after = flow.task("after", function(ctx, v) return v end)
return flow.pipeline("p", {}, function() return after(bad()) end)
)"));
  CHECK_THROWS_AS(run.wait(), RunFailed);
  RunInfo info = run.info();
  CHECK(info.status == "failed");
  CHECK(task(info, "bad").status == "failed");
  CHECK_THAT(task(info, "bad").error,
             Catch::Contains("pipeline.lua:3") && Catch::Contains("no such thing"));
  CHECK(task(info, "after").status == "skipped");
  CHECK_THAT(task(info, "after").error, Catch::Contains("bad"));
}

TEST_CASE("results of maps, branches, dynamic tasks and shell tasks are combined in one result") {
  TempFolder temp;
  Engine engine(temp.options());
  Run run = engine.run(temp.script(R"(
local list = flow.task("list", function() return { 1, 2, 3 } end)
local double = flow.task("double", function(ctx, i) return i * 2 end)
local yes = flow.task("yes", function() return "yes" end)
local no = flow.task("no", function() return "no" end)
local echo = flow.shell("echo", { args = { "word" }, command = "echo {word}" })
local search = flow.dynamic("search", function(ctx, n) local h = {} for i = 1, #n do h[i] = double(n[i]) end return h end)
return flow.pipeline("p", {}, function()
  local l = list()
  local d = flow.map(double, l)
  return { d = d, branch = flow.when(l[1], function() return yes() end, function() return no() end), echo = echo("a b").stdout, found = search(d) }
end)
)"));
  Value result = run.wait();
  CHECK(to_json(result) == R"({"branch":"yes","d":[2,4,6],"echo":"a b\n","found":[4,8,12]})");
  CHECK(task(run.info(), "no").status == "skipped");
}

TEST_CASE("a dynamic task reports once that it waits for its calls and once that it succeeded") {
  TempFolder temp;
  Engine engine(temp.options());
  std::string script = temp.script(R"(
local double = flow.task("double", function(ctx, i) return i * 2 end)
local search = flow.dynamic("search", function(ctx) return { double(1), double(2) } end)
return flow.pipeline("p", {}, function() return search() end)
)");
  auto told_of_search = [&] {
    std::vector<std::string> told;
    Run run = engine.run(script);
    while (auto event = run.next_event()) {
      if (event->task == "search")
        told.push_back(event->status + (event->cached ? ", cached" : ""));
    }
    run.wait();
    return told;
  };
  CHECK(told_of_search() == std::vector<std::string>{"running", "waiting", "succeeded"});
  CHECK(told_of_search() == std::vector<std::string>{"succeeded, cached"});
}

TEST_CASE("output, results and errors of tasks need not be UTF-8") {
  TempFolder temp;
  Engine engine(temp.options());
  Run run = engine.run(temp.script(R"(
local say = flow.shell("say", { command = [[printf 'out \377\n'; printf 'err \376\n' >&2]] })
local log = flow.task("log", function(ctx)
  ctx:log("log \255")
  ctx:metric("metric \255", 1)
  return ctx:step("step \255", function() return "value \255" end)
end)
local fail = flow.task("fail", function() error("error \255", 0) end)
return flow.pipeline("p", {}, function() return { said = say().stdout, logged = log(), failed = fail() } end)
)"));
  CHECK_THROWS_AS(run.wait(), RunFailed);
  RunInfo info = run.info();
  CHECK(info.result.find("said")->as_string() == "out \xff\n");
  CHECK(info.result.find("logged")->as_string() == "value \xff");
  CHECK(task(info, "fail").error.starts_with("error \xff\n"));
  std::string lines;
  for (const LogLine& line : Reader(temp.options()).logs(run.id())) lines += line.text + "\n";
  CHECK(lines.find("out \xff\n") != std::string::npos);
  CHECK(lines.find("err \xfe\n") != std::string::npos);
  CHECK(lines.find("log \xff\n") != std::string::npos);
}

TEST_CASE("an executor that sends an invalid message fails its attempt once") {
  TempFolder temp;
  EngineOptions options = temp.options();
  options.executor = wrapped(temp, "printf '\\3\\0\\0\\0\\377\\377\\377' >&3\nexec sleep 1000\n");
  Engine engine(options);
  Run run = engine.run(temp.script(kSum));
  CHECK_THROWS_AS(run.wait(), RunFailed);
  CHECK(task(run.info(), "add").attempts == 1);
  CHECK(task(run.info(), "add").error.find("not a message") != std::string::npos);
}

TEST_CASE("memory that an executor uses before it joins its group does not count for its attempt") {
  if (!CgroupParent::find(own_cgroups()).has_memory()) return;
  TempFolder temp;
  EngineOptions options = temp.options();
  options.executor = wrapped(temp, std::string(kHog) + "sleep 1\nexec '$executor' \"$@\"\n");
  Engine engine(options);
  Run run = engine.run(temp.script(R"(
local t = flow.task("t", { memory = "40M" }, function() return 1 end)
return flow.pipeline("p", {}, function() return t() end)
)"));
  CHECK(run.wait().as_integer() == 1);
  CHECK(task(run.info(), "t").attempts == 1);
}

TEST_CASE("a memory limit applies even if the executor cannot join its control group") {
  TempFolder temp;
  EngineOptions options = temp.options();
  options.executor = wrapped(temp, "exec '$executor' \"$1\" \"$2\" --cgroup /dev/null/none\n");
  Engine engine(options);
  Run run = engine.run(temp.script(std::string(R"(
local t = flow.shell("t", { memory = "40M", command = [[)") +
                                   kHog + R"(sleep 1000]] })
return flow.pipeline("p", {}, function() return t() end)
)"));
  CHECK_THROWS_AS(run.wait(), RunFailed);
  std::string error = task(run.info(), "t").error;
  CHECK(error.find("MiB of memory, its limit is 40 MiB") != std::string::npos);
}

TEST_CASE(
    "the deepest table that a task may return crosses every edge, and a deeper one is rejected by "
    "name") {
  TempFolder temp;
  Engine engine(temp.options());
  Run run = engine.run(temp.script(R"(
local deep = flow.task("deep", function()
  local t = { "\200" }
  for _ = 2, 200 do t = { t } end
  return t
end)
local levels = flow.task("levels", function(ctx, t)
  local n = 0
  while type(t) == "table" do t, n = t[1] or t.inside, n + 1 end
  return n
end)
local some = flow.task("some", function(ctx, t) return #t end)
return flow.pipeline("p", {}, function()
  local d = deep()
  local all = flow.map(deep, { 1, 2 })
  local branch = flow.when(true, function() return { { d } } end)
  return { one = levels(d), each = flow.map(levels, { d, d }), all = all, refused = levels { inside = d },
           list = some(all), branch = some(branch) }
end)
)"));
  CHECK_THROWS_AS(run.wait(), RunFailed);
  RunInfo info = run.info();
  CHECK(*info.result.find("one") == Value(200));
  CHECK(*info.result.find("each") == Value::list({200, 200}));
  CHECK(info.result.find("all")->as_table().list.size() == 2);
  for (const char* name : {"levels#3", "some", "some#2"}) {
    CHECK(task(info, name).status == "failed");
    CHECK(task(info, name).error.find("nested too deep") != std::string::npos);
  }
}

TEST_CASE("failures use up retries, and steps are not repeated") {
  TempFolder temp;
  Engine engine(temp.options());
  std::string log = (temp.path / "log").string();
  Run run = engine.run(temp.script(R"(
local flaky = flow.task("flaky", { retries = { max = 2, backoff = "10ms" } }, function(ctx, log)
  local n = ctx:step("once", function()
    local f = io.open(log, "a") f:write("x") f:close()
    return 7
  end)
  if ctx.attempt < 3 then error("try again") end
  return n
end)
return flow.pipeline("p", { log = flow.param.string {} }, function(p) return flaky(p.log) end)
)"),
                       {{"log", log}});
  CHECK(to_json(run.wait()) == "7");
  CHECK(task(run.info(), "flaky").attempts == 3);
  CHECK(fs::file_size(log) == 1);
}

TEST_CASE("a waiting task releases its slot and continues when the signal arrives") {
  TempFolder temp;
  Engine engine(temp.options(1));
  Run run = engine.run(temp.script(R"(
local ask = flow.task("ask", function(ctx) return ctx:wait("approved") end)
return flow.pipeline("p", {}, function() return ask() end)
)"));
  while (auto event = run.next_event()) {
    if (event->type == "run" && event->status == "waiting") break;
  }
  engine.signal(run.id(), "approved", R"({"by":"me"})");
  CHECK(to_json(run.wait()) == R"({"by":"me"})");
}

TEST_CASE("the next engine resumes an interrupted run") {
  TempFolder temp;
  std::string script = temp.script(R"(
local quick = flow.task("quick", function() return 1 end)
local slow = flow.task("slow", function(ctx, go, one)
  while not io.open(go) do if ctx.stopping then ctx:checkpoint {} end end
  return one + 1
end)
return flow.pipeline("p", { go = flow.param.string {} }, function(p) return slow(p.go, quick()) end)
)");
  std::string go = (temp.path / "go").string();
  std::string id;
  {
    Engine engine(temp.options());
    Run run = engine.run(script, {{"go", go}});
    id = run.id();
    while (auto event = run.next_event()) {
      if (event->task == "slow" && event->status == "running") break;
    }
    run.interrupt();
    CHECK_THROWS_AS(run.wait(), Failed);
  }
  std::ofstream(go) << "go";
  Engine engine(temp.options());
  Run run = engine.resume(id);
  CHECK(to_json(run.wait()) == "2");
  CHECK(task(run.info(), "quick").attempts == 1);
}

TEST_CASE("a native task runs in the host program's process") {
  TempFolder temp;
  Engine engine(temp.options());
  engine.define("shout", "v1", [](TaskContext&, const Value& in) -> Value {
    return in.as_table().list[0].as_string() + "!";
  });
  Run run = engine.run(temp.script(R"(
local shout = flow.native("shout")
return flow.pipeline("p", {}, function() return shout("hey") end)
)"));
  CHECK(to_json(run.wait()) == "\"hey!\"");
}

TEST_CASE("a native task that ends after its timeout fails, whatever it returns") {
  TempFolder temp;
  Engine engine(temp.options());
  engine.define("slow", "v1", [](TaskContext& context, const Value&) -> Value {
    while (!context.stopping()) std::this_thread::yield();
    return 1;
  });
  Run run = engine.run(temp.script(R"(
local slow = flow.native("slow", { timeout = "50ms" })
return flow.pipeline("p", {}, function() return slow() end)
)"));
  CHECK_THROWS_AS(run.wait(), RunFailed);
  CHECK_THAT(task(run.info(), "slow").error,
             Catch::Contains("`slow` ran longer than its timeout of 50ms and its result is "
                             "rejected"));
}

TEST_CASE("a native task gets the GPUs that were assigned to it") {
  TempFolder temp;
  std::ofstream(temp.path / "machine") << "gpu GPU-a 40960 NVIDIA A100\n";
  ::setenv("FLOW_NVML_LIB", std::getenv("FLOW_TEST_NVML"), 1);
  ::setenv("FLOW_FAKE_NVML", (temp.path / "machine").c_str(), 1);
  Engine engine(temp.options());
  engine.define("name", "v1", [](TaskContext& ctx, const Value&) -> Value {
    return ctx.gpus().empty() ? "none" : ctx.gpus().front();
  });
  Run run = engine.run(temp.script(R"(
local name = flow.native("name", { gpus = 0.5 })
return flow.pipeline("p", {}, function() return name() end)
)"));
  Value result = run.wait();
  ::unsetenv("FLOW_NVML_LIB");
  CHECK(to_json(result) == R"("GPU-a")");
  CHECK(task(run.info(), "name").gpus == std::vector<std::string>{"GPU-a"});
}

TEST_CASE("the stored plan includes the version of a native task, which the engine adds") {
  TempFolder temp;
  std::string script = temp.script(R"(
local shout = flow.native("shout")
return flow.pipeline("p", {}, function() return shout("hey") end)
)");
  for (const char* version : {"v1", "v2"}) {
    Engine engine(temp.options());
    engine.define("shout", version, [](TaskContext&, const Value&) -> Value { return 1; });
    engine.run(script).wait();
  }
  std::string why = Reader(temp.options()).why("last", "shout");
  CHECK_THAT(why, Catch::Contains("version") && Catch::Contains("v1") && Catch::Contains("v2"));
}

TEST_CASE("native operations are a file whose value depends on the bytes of the library") {
  TempFolder temp;
  const char* body = R"(
local size = flow.task("size", function(ctx, library) return #flow.fs.read(library) end)
return flow.pipeline("p", {}, function() return size(flow.native_operations("filters")) end)
)";
  std::string script = temp.script(body);
  std::string library = (temp.path / "filters.so").string();
  std::ofstream(library) << "five!";
  Engine engine(temp.options());
  CHECK_THROWS_WITH(engine.run(script),
                    Catch::Contains("the operations `filters` are not defined by this program"));
  CHECK_THROWS_WITH(engine
                        .run(temp.script(R"(
local d = flow.dynamic("d", function(ctx) return flow.native_operations("filters") end)
return flow.pipeline("p", {}, function() return d() end)
)"))
                        .wait(),
                    Catch::Contains("is called in the body of a pipeline"));
  temp.script(body);
  CHECK_THROWS_WITH(engine.define_operations("filters", library + ".none"),
                    Catch::Contains("there is no shared library"));
  engine.define_operations("filters", library);
  CHECK(to_json(engine.run(script).wait()) == "5");
  std::ofstream(library) << "sixth!";
  CHECK(to_json(engine.run(script).wait()) == "6");
}

TEST_CASE("a folder with unsafe or duplicate paths fails its consumer at once") {
  const std::pair<std::vector<std::string>, const char*> folders[] = {
      {{"../out"}, "the folder `tree` has the unsafe path `../out`"},
      {{std::string(300, 'x')}, "the folder `tree` has the unsafe path `xxx"},
      {{"a", "a"}, "the folder `tree` has the file `a` twice"},
      {{"a", "a.b", "a/b"}, "the folder `tree` has `a` as a file and as a folder"},
  };
  for (const auto& [paths, message] : folders) {
    TempFolder temp;
    Engine engine(temp.options());
    engine.define("make", "v1", [&](TaskContext&, const Value&) -> Value {
      File tree;
      tree.name = "tree";
      tree.is_folder = true;
      for (const std::string& path : paths) tree.entries.push_back({path, false, 0, sha256("")});
      return Value(tree);
    });
    Run run = engine.run(temp.script(R"(
local make = flow.native("make")
local look = flow.shell("look", { args = { "tree" }, command = "ls {tree}" })
return flow.pipeline("p", {}, function() return look(make()).stdout end)
)"));
    CHECK_THROWS_AS(run.wait(), RunFailed);
    CHECK_THAT(task(run.info(), "look").error, Catch::Contains(message));
    CHECK(task(run.info(), "look").attempts == 1);
  }
}

TEST_CASE("signals of the host program are handled by the host program's threads") {
  int before = threads_that_take_signals();
  CHECK(before >= 1);
  TempFolder temp;
  std::string script = temp.script(R"(
local nothing = flow.shell("nothing", { command = "true" })
return flow.pipeline("p", {}, function() return nothing() end)
)");
  Engine writer(temp.options());
  Engine client(temp.options());
  for (Engine* engine : {&writer, &client, &writer}) {
    Run run = engine->run(script);
    CHECK(threads_that_take_signals() == before);
    run.wait();
    CHECK(threads_that_take_signals() == before);
  }
}

TEST_CASE("a native task uses the signal mask of the host program's threads") {
  TempFolder temp;
  Engine engine(temp.options());
  engine.define("look", "1", [](TaskContext&, const Value&) {
    return Value(static_cast<int64_t>(*blocked_signals("/proc/thread-self")));
  });
  Run run = engine.run(temp.script(R"(
local look = flow.native("look")
return flow.pipeline("p", {}, function() return look() end)
)"));
  CHECK(run.wait() == Value(static_cast<int64_t>(*blocked_signals("/proc/thread-self"))));
}

TEST_CASE("a second engine on the same state is a client of the first") {
  TempFolder temp;
  Engine writer(temp.options());
  Engine client(temp.options());
  CHECK(writer.is_writer());
  CHECK_FALSE(client.is_writer());
  Run run = client.run(temp.script(kSum));
  CHECK(to_json(run.wait()) == R"({"total":6})");
  CHECK(Reader(temp.options()).show("last").status == "succeeded");
}

TEST_CASE("an invalid script is a user error and leaves the state unchanged") {
  TempFolder temp;
  Engine engine(temp.options());
  try {
    engine.run(temp.script("return 1"));
    FAIL("it ran");
  } catch (const Failed& failed) {
    CHECK(failed.error.kind == ErrorKind::user);
    CHECK_THAT(failed.error.message, Catch::Contains("pipeline"));
  }
  CHECK(Reader(temp.options()).list().empty());
}
