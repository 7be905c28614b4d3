// Garbage collection while runs are active, at each of their events: it never removes data that is
// still needed. The pipelines have blobs in every place where a value can be; a seed determines
// which.
#include <fcntl.h>
#include <sys/stat.h>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "engine/runtime/garbage_collection.hpp"
#include "flow/flow.hpp"
#include "tests/api/temp_folder.hpp"

using namespace flow;
namespace fs = std::filesystem;

namespace {

struct TempFolder : test::TempFolder {
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path / name) << text;
  }
  std::string script() const { return (path / "pipeline.lua").string(); }
  /// Makes all blobs so old that none is protected by its age.
  void age_objects() const {
    const timespec old[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
    std::error_code failed;
    for (const auto& each : fs::recursive_directory_iterator(path / "state" / "objects", failed))
      if (each.is_regular_file(failed)) ::utimensat(AT_FDCWD, each.path().c_str(), old, 0);
  }
};

/// Small blobs are rows of the database, large ones are files. All differ from each other.
class ValueGenerator {
 public:
  ValueGenerator(const TempFolder& temp, uint32_t seed) : place_(temp), random_(seed) {}

  /// A Lua expression for a value that the script creates while it is loaded.
  std::string given() {
    std::string name = next_name();
    if (below(3) == 0) return "text(\"" + name + "\", " + count() + ")";
    std::string text;
    for (int i = std::stoi(count()); i > 0; i--) text += name + " ";
    place_.write(name, text);
    return "flow.file(\"" + name + "\")";
  }
  /// The same for a value that a task creates.
  std::string made() {
    std::string name = next_name();
    switch (below(3)) {
      case 0:
        return "text(\"" + name + "\", " + count() + ")";
      case 1:
        return "file(ctx, \"" + name + "\", " + count() + ")";
      default:
        return "flow.full({ " + std::string(below(2) == 0 ? "3" : "150") + ", 150 }, " +
               std::to_string(++made_) + ")";
    }
  }

 private:
  uint32_t below(uint32_t bound) { return random_() % bound; }
  std::string next_name() { return "content-" + std::to_string(++made_); }
  std::string count() { return below(2) == 0 ? "2" : "9000"; }  // 24 B, 100 KiB

  const TempFolder& place_;
  std::mt19937 random_;
  int made_ = 0;
};

const char* kTasks = R"(
local flow = require "flow"
local function text(name, count) return (name .. " "):rep(count) end
local function file(ctx, name, count)
  flow.fs.write(ctx.dir .. "/" .. name, text(name, count))
  return ctx:file(name)
end
local function look(x)
  if type(x) ~= "string" then return { "tensor", x:sum() } end
  local handle = #x < 1000 and io.open(x)
  if not handle then return { "text", #x, x:sub(1, 12) } end
  local content = handle:read("a")
  handle:close()
  return { "file", #content, content:sub(1, 12) }
end
local read = flow.task("read", { retries = { infra = 0 } }, function(ctx, x, held) return look(x) end)
local again = flow.task("again", { cache = false, retries = { infra = 0 } }, function(ctx, x) return look(x) end)
local pause = flow.task("pause", function(ctx, name) return #ctx:wait(name) end)
)";

/// Every kind of node, each with blobs, separated by waits.
std::string random_script(const TempFolder& temp, uint32_t seed) {
  ValueGenerator contents(temp, seed);
  std::string script = kTasks;
  size_t at = 0;
  for (const char* part : {
           "local make = flow.task('make', function(ctx, n) return { a = MADE, b = MADE } end)\n",
           "local step = flow.task('step', function(ctx)\n"
           "  local first = ctx:step('first', function() return MADE end)\n"
           "  local second = ctx:step('second', function() return { x = MADE } end)\n"
           "  ctx:wait('go')\n"
           "  return { look(first), look(second.x), first }\n"
           "end)\n",
           "local train = flow.task('train', function(ctx)\n"
           "  local state = ctx:restore()\n"
           "  if not state then ctx:checkpoint({ a = MADE, b = { MADE } }) end\n"
           "  ctx:wait('go')\n"
           "  state = ctx:restore()\n"
           "  return { look(state.a), look(state.b[1]) }\n"
           "end)\n",
           "local inner = flow.dynamic('inner', function(ctx, x)\n"
           "  return { x = again(x), y = read(MADE), z = flow.map(again, { MADE, MADE }), w = MADE "
           "}\n"
           "end)\n",
           "local outer = flow.dynamic('outer', function(ctx, x)\n"
           "  local held = pause('go')\n"
           "  return { inner(x), inner(MADE), read(MADE, held), again(MADE), MADE, held }\n"
           "end)\n",
           "return flow.pipeline('all', { p = flow.param.path {} }, function(p)\n"
           "  local m, held = make(1), pause('go')\n"
           "  local yes = flow.when(held, function() return { GIVEN, read(GIVEN), m.a } end,\n"
           "    function() return { GIVEN, read(GIVEN) } end)\n"
           "  local later = pause('later')\n"
           "  return { p = p.p, read(p.p, later), read(GIVEN, later), yes = yes, steps = step(),\n"
           "    train = train(), made = m, read(m.b, later), map = flow.map(read, { GIVEN, m.a, "
           "GIVEN }, later),\n"
           "    every = flow.map(again, { m.a, m.b }), dyn = outer(GIVEN), again(m.a),\n"
           "    mixed = flow.map(again, { GIVEN, m.b }), given = GIVEN, held = held, later = later "
           "}\n"
           "end)\n",
       }) {
    script += part;
  }
  while ((at = script.find("MADE")) != std::string::npos) script.replace(at, 4, contents.made());
  while ((at = script.find("GIVEN")) != std::string::npos) script.replace(at, 5, contents.given());
  return script;
}

const std::string kSignals[] = {"go", "later"};
std::string signal_value(const std::string& name) {
  std::string text(name == "go" ? 100'000 : 20, name[0]);
  return "\"" + text + "\"";
}

/// The result of a run, with all its blobs read.
struct RunOutcome {
  std::string result;
  std::map<std::string, std::string> files;
  bool operator==(const RunOutcome&) const = default;
};

RunOutcome outcome_of(Engine& engine, const std::string& run, const fs::path& to) {
  RunOutcome outcome{to_json(engine.show(run).result), {}};
  engine.get(run, "", to.string());
  for (const auto& each : fs::recursive_directory_iterator(to)) {
    if (!each.is_regular_file()) continue;
    std::ostringstream text;
    text << std::ifstream(each.path()).rdbuf();
    outcome.files[each.path().lexically_relative(to).string()] = text.str();
  }
  return outcome;
}

/// Runs to the end and sends the remaining signals when the run waits. `meanwhile` is called at
/// every event and before each signal; if it returns false, the run is interrupted.
RunInfo drive(Engine& engine, Run run, size_t& sent,
              const std::function<bool(bool is_quiet)>& meanwhile) {
  bool is_stopped = false;
  while (auto event = run.next_event()) {
    bool waits = event->type == "run" && event->status == "waiting" && sent < std::size(kSignals);
    bool goes_on = meanwhile(false) && (!waits || meanwhile(true));
    if (!goes_on && !is_stopped) run.interrupt();
    is_stopped = is_stopped || !goes_on;
    if (!waits || is_stopped) continue;
    const std::string& name = kSignals[sent++];
    engine.signal(run.id(), name, signal_value(name));
    meanwhile(false);
  }
  return run.info();
}

void require_success(const RunInfo& info) {
  for (const TaskInfo& task : info.tasks) {
    if (task.status == "failed") UNSCOPED_INFO(task.name << ": " << task.error);
  }
  REQUIRE(info.status == "succeeded");
}

}  // namespace

TEST_CASE("garbage collection at any event of a run removes nothing that the run needs") {
  for (uint32_t seed = 1; seed <= 4; seed++) {
    CAPTURE(seed);
    TempFolder temp;
    temp.write("pipeline.lua", random_script(temp, seed));
    temp.write("param", std::string(seed % 2 == 0 ? 100'000 : 10, 'p'));
    std::vector<std::pair<std::string, Value>> params{{"p", Value("param")}};
    RunOutcome undisturbed;
    {
      EngineOptions other = temp.options();
      other.state = (temp.path / "other").string();
      Engine engine(other);
      Run run = engine.run(temp.script(), params);
      size_t sent = 0;
      require_success(drive(engine, run, sent, [](bool) { return true; }));
      undisturbed = outcome_of(engine, run.id(), temp.path / "undisturbed");
    }
    Engine engine(temp.options());
    auto collect = [&](bool is_quiet) {
      if (is_quiet) temp.age_objects();  // no attempt has unreported blobs
      engine.gc(0);
      return true;
    };
    {
      Run run = engine.run(temp.script(), params);
      size_t sent = 0;
      require_success(drive(engine, run, sent, collect));
      collect(true);
      CHECK(outcome_of(engine, run.id(), temp.path / "first") == undisturbed);
    }
    // The cache still serves its entries, and the blobs that they refer to exist.
    temp.age_objects();
    engine.gc(1);
    Run run = engine.run(temp.script(), params);
    size_t sent = 0;
    RunInfo info = drive(engine, run, sent, collect);
    require_success(info);
    CHECK(info.counts.cached > 5);
    CHECK(outcome_of(engine, run.id(), temp.path / "second") == undisturbed);
  }
}

TEST_CASE(
    "garbage collection between an interrupt and a resume removes nothing that the run needs") {
  for (uint32_t seed = 11; seed <= 12; seed++) {
    CAPTURE(seed);
    TempFolder temp;
    temp.write("pipeline.lua", random_script(temp, seed));
    temp.write("param", "small");
    std::string id;
    size_t sent = 0;
    {
      Engine engine(temp.options());
      Run run = engine.run(temp.script(), {{"p", Value("param")}});
      id = run.id();
      size_t events = 0, events_max = seed == 11 ? 12 : SIZE_MAX;
      RunInfo info = drive(engine, run, sent,
                           [&](bool is_quiet) { return !is_quiet && ++events < events_max; });
      REQUIRE(info.status == "interrupted");
      temp.age_objects();
      engine.gc(0);
    }
    // The state holds the files of the script: they are not read again.
    std::vector<fs::path> files;
    for (const auto& each : fs::directory_iterator(temp.path)) {
      if (each.path().filename().string().starts_with("content-")) files.push_back(each.path());
    }
    for (const fs::path& file : files) fs::remove(file);
    Engine engine(temp.options());
    temp.age_objects();
    engine.gc(0);
    Run run = engine.resume(id);
    require_success(drive(engine, run, sent, [&](bool) {
      engine.gc(0);
      return true;
    }));
    CHECK(outcome_of(engine, id, temp.path / "resumed").files.size() > 3);
  }
}

TEST_CASE("a cached dynamic task runs again if its calls refer to missing blobs") {
  TempFolder temp;
  temp.write("pipeline.lua", std::string(kTasks) + R"(
local plan = flow.dynamic("plan", function(ctx)
  return { again(file(ctx, "small", 2)), again(file(ctx, "large", 30000)) }
end)
return flow.pipeline("calls", {}, function() return plan() end)
)");
  Engine engine(temp.options());
  Value result = engine.run(temp.script()).wait();
  for (const auto& each : fs::recursive_directory_iterator(temp.path / "state" / "objects"))
    if (each.is_regular_file()) fs::remove(each.path());
  Run run = engine.run(temp.script());
  CHECK(run.wait() == result);
  for (const TaskInfo& task : run.info().tasks) CHECK_FALSE(task.cached);
}

TEST_CASE("a resume recomputes blobs that only the calls of a dynamic task refer to") {
  TempFolder temp;
  temp.write("pipeline.lua", std::string(kTasks) + R"(
local source = flow.task("source", function(ctx) return file(ctx, "source", 30000) end)
local use = flow.task("use", { cache = false, retries = { infra = 0 } }, function(ctx, gate, x)
  if not flow.fs.exists(gate) then error("not yet") end
  return look(x)
end)
local plan = flow.dynamic("plan", { retries = { infra = 0 } }, function(ctx, gate, x)
  return { use(gate, file(ctx, "first", 30000)), use(gate, file(ctx, "second", 30001)), use(gate, x) }
end)
return flow.pipeline("calls", { gate = flow.param.string {} }, function(p)
  local x = source()
  return { plan(p.gate, x), plan(p.gate, x) }
end)
)");
  std::string gate = (temp.path / "gate").string();
  auto lose = [&] {
    for (const auto& each : fs::recursive_directory_iterator(temp.path / "state" / "objects"))
      if (each.is_regular_file()) fs::remove(each.path());
  };
  Engine engine(temp.options());
  Run run = engine.run(temp.script(), {{"gate", Value(gate)}});
  CHECK_THROWS_AS(run.wait(), RunFailed);
  lose();
  temp.write("gate", "");
  // The calls find that their blobs are missing, and fail.
  CHECK_THROWS_AS(engine.resume(run.id()).wait(), RunFailed);
  Value result = engine.resume(run.id()).wait();
  std::string list =
      R"(["file",180000,"first first "],["file",210007,"second secon"],["file",210000,"source sourc"])";
  CHECK(to_json(result) == "[[" + list + "],[" + list + "]]");
}

TEST_CASE("a run that a process still holds is kept") {
  TempFolder temp;
  temp.write("pipeline.lua", std::string(kTasks) + R"(
local make = flow.task("make", function(ctx) return file(ctx, "large", 30000) end)
return flow.pipeline("one", {}, function() return make() end)
)");
  Engine engine(temp.options());
  std::string id;
  {
    Run run = engine.run(temp.script());
    id = run.id();
    while (run.next_event()) {
    }
    engine.gc(0);
    Value result = run.wait();
    CHECK(run.info().status == "succeeded");
    CHECK(engine.get(id, "", (temp.path / "out").string()).size() == 1);
  }
  CHECK(engine.gc(0) > 0);
  CHECK_THROWS_AS(engine.show(id), Failed);
}

TEST_CASE("a blob that was stored before its run stays while it is pinned") {
  TempFolder temp;
  EngineLoopOptions options;
  options.state_dir = (temp.path / "state").string();
  options.executor = temp.options().executor;
  auto store = open_store(options.state_dir);
  REQUIRE(store.ok());
  auto engine_loop = EngineLoop::start(options, std::move(*store));
  REQUIRE(engine_loop.ok());
  Blobs& blobs = (*engine_loop)->parts().blobs;
  Batch batch;
  std::vector<Digest> brought;
  for (size_t size : {size_t{10}, size_t{100'000}})
    brought.push_back(*blobs.put(std::string(size, 'x'), batch));
  REQUIRE((*engine_loop)->parts().store.commit(batch).ok());
  auto held = [&] { return blobs.has(brought[0]) && blobs.has(brought[1]); };
  auto pin = (*engine_loop)->parts().pins.pin(brought);
  auto second = (*engine_loop)->parts().pins.pin({brought[0]});
  temp.age_objects();
  REQUIRE(collect_garbage(**engine_loop, 0).ok());
  CHECK(held());
  second.reset();
  REQUIRE(collect_garbage(**engine_loop, 0).ok());
  CHECK(held());
  pin.reset();
  auto freed = collect_garbage(**engine_loop, 0);
  REQUIRE(freed.ok());
  CHECK(*freed == 100'010);
  CHECK_FALSE(blobs.has(brought[0]));
  CHECK_FALSE(blobs.has(brought[1]));
}
