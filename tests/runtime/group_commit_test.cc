// The engine loop with a slow store that the test controls: effects follow a commit exactly when
// its sync is done, and no timer is missed.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "engine/runtime/submission_context.hpp"

using namespace flow;
namespace fs = std::filesystem;

namespace {

constexpr auto kPatience = std::chrono::seconds(60);

/// Shared by the test and the store: a synced commit waits for the gate, and fails if requested.
/// The first two commits pass: the engine's start, and the run's submission, which is awaited. So
/// no result is durable while the gate is closed.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_closed = true, fails = false;
  std::chrono::milliseconds commit_takes{0};
  int free = 2, syncs = 0, lookups = 0;
  size_t rows_max = 0;  // per commit

  Status pass() {
    std::unique_lock lock(mutex);
    if (free > 0) {
      free--;
      return {};
    }
    syncs++;
    changed.notify_all();
    changed.wait(lock, [this] { return !is_closed; });
    if (fails) return environment_error("the disk is gone");
    return {};
  }
  std::chrono::milliseconds begin_commit(size_t rows) {
    std::lock_guard lock(mutex);
    rows_max = std::max(rows_max, rows);
    return commit_takes;
  }
  void count_lookup() {
    std::lock_guard lock(mutex);
    lookups++;
    changed.notify_all();
  }
  /// Looked-up keys: one per ready task.
  bool wait_for_lookups(int count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kPatience, [&] { return lookups >= count; });
  }
  void set_commit_time(std::chrono::milliseconds time) {
    std::lock_guard lock(mutex);
    commit_takes = time;
  }
  int sync_count() {
    std::lock_guard lock(mutex);
    return syncs;
  }
  bool wait_for_sync() {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kPatience, [this] { return syncs > 0; });
  }
  void open(bool failing) {
    std::lock_guard lock(mutex);
    is_closed = false;
    fails = failing;
    changed.notify_all();
  }
};

class GatedStore final : public Store {
 public:
  GatedStore(std::unique_ptr<Store> store, Gate& gate) : store_(std::move(store)), gate_(gate) {}
  Status commit(Batch batch, bool sync) override {
    std::this_thread::sleep_for(gate_.begin_commit(batch.writes.size()));
    if (sync) FLOW_TRY(gate_.pass());
    return store_->commit(std::move(batch), sync);
  }
  Result<std::optional<std::string>> get(Family family, std::string_view key) const override {
    return store_->get(family, key);
  }
  Result<std::vector<std::optional<std::string>>> get_many(
      Family family, const std::vector<std::string_view>& keys) const override {
    gate_.count_lookup();
    return store_->get_many(family, keys);
  }
  Status scan(Family family, std::string_view prefix, std::string_view from,
              const std::function<bool(std::string_view, std::string_view)>& visit) const override {
    return store_->scan(family, prefix, from, visit);
  }
  uint64_t bytes() const override { return store_->bytes(); }

 private:
  std::unique_ptr<Store> store_;
  Gate& gate_;
};

class EventRecorder final : public RunListener {
 public:
  void on_events(std::vector<Event> events) override {
    std::lock_guard lock(mutex_);
    for (const Event& event : events) {
      if (event.type == "task" && event.status == "succeeded") succeeded_.insert(event.task);
      if (event.type == "task" && event.status == "waiting") waits_ = true;
    }
    changed_.notify_all();
  }
  void on_end() override {
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  void fail(Error) override { on_end(); }
  std::set<std::string> succeeded() {
    std::lock_guard lock(mutex_);
    return succeeded_;
  }
  bool wait_for_waiting() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this] { return waits_; });
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this] { return ended_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string> succeeded_;
  bool ended_ = false, waits_ = false;
};

// Sixty tasks that end together, each followed by a command that creates a file.
const char* kScript = R"(local flow = require "flow"
local one = flow.task("one", function(ctx, i) return i end)
local mark = flow.shell("mark", { command = "touch FOLDER/{i}" })
return flow.pipeline("p", {}, function()
  for i = 1, 60 do mark { i = one(i) } end
end)
)";

// Native tasks start by a separate effect, right after the commit of their assignment.
const char* kNative = R"(local flow = require "flow"
local one = flow.task("one", function(ctx, i) return i end)
local call = flow.native("call", {})
return flow.pipeline("p", {}, function()  -- FOLDER
  for i = 1, 60 do call(one(i)) end
end)
)";

const char* kLogs = R"(local flow = require "flow"
local say = flow.task("say", function(ctx) print("first") print("second") end)
return flow.pipeline("p", {}, function() say() end)  -- FOLDER
)";

// More tasks than may wait for the disk at once.
const char* kMany = R"(local flow = require "flow"
local one = flow.task("one", function(ctx, i) return "FOLDER" .. i end)
return flow.pipeline("p", {}, function()
  for i = 1, 6000 do one(i) end
end)
)";

// A chain, and a file that is created at its end.
const char* kChain = R"(local flow = require "flow"
local step = flow.task("step", function(ctx, i) return i + 1 end)
local mark = flow.shell("mark", { command = "touch FOLDER/{i}" })
return flow.pipeline("p", {}, function()
  local last = 0
  for i = 1, 20 do last = step(last) end
  mark { i = last }
end)
)";

// One task waits for a signal until its timeout, another runs until the test ends it.
const char* kTimer = R"(local flow = require "flow"
local wait = flow.task("wait", function(ctx)
  if ctx:wait("never", { timeout = "1s" }) then error("a signal?") end
end)
local hold = flow.shell("hold", { command = "while [ ! -e FOLDER/go ]; do sleep 0.02; done" })
return flow.pipeline("p", {}, function() wait() hold {} end)
)";

struct Started {
  fs::path path;
  std::string id;  // id of the run
  Gate gate;
  std::shared_ptr<EventRecorder> recorder = std::make_shared<EventRecorder>();
  std::atomic<int> calls = 0;  // number of calls of the native task
  std::unique_ptr<EngineLoop> engine_loop;

  explicit Started(const char* script = kScript) {
    std::string name = (fs::temp_directory_path() / "flow-test-XXXXXX").string();
    path = mkdtemp(name.data());
    std::string text = script;
    text.replace(text.find("FOLDER"), 6, (path / "marks").string());
    fs::create_directory(path / "marks");
    std::ofstream(path / "pipeline.lua") << text;
    auto store = open_store((path / "state").string());
    REQUIRE(store.ok());
    EngineLoopOptions options;
    options.state_dir = (path / "state").string();
    options.executor = std::getenv("FLOW_TEST_EXECUTOR");
    options.jobs = 2;
    auto made = EngineLoop::start(options, std::make_unique<GatedStore>(std::move(*store), gate));
    REQUIRE(made.ok());
    engine_loop = std::move(*made);
    engine_loop->parts().native.define("call", "1", [this](TaskContext&, const Value&) {
      calls++;
      return Value(true);
    });
    Submission submission;
    submission.script = (path / "pipeline.lua").string();
    submission.working_directory = path.string();
    submission.environment = current_environment();
    auto prepared = prepare(*engine_loop, submission);
    if (!prepared.ok()) FAIL(prepared.error().message);
    prepared->context.listener = recorder;
    id = prepared->context.record.id;
    Status in = engine_loop->submit(std::move(*prepared), 2);
    REQUIRE(in.ok());
  }
  ~Started() {
    gate.open(false);
    engine_loop.reset();
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  int marks() const {
    return static_cast<int>(std::distance(fs::directory_iterator(path / "marks"), {}));
  }
};

}  // namespace

TEST_CASE("nothing is reported or executed before its sync, and everything after it") {
  Started run;
  REQUIRE(run.gate.wait_for_sync());
  // Time for an effect that comes too early.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(run.recorder->succeeded().empty());
  CHECK(run.marks() == 0);
  run.gate.open(false);
  REQUIRE(run.recorder->wait());
  CHECK(run.recorder->succeeded().size() == 120);
  CHECK(run.marks() == 60);
}

TEST_CASE("a failed sync stops the engine, and nothing of it is reported or executed") {
  Started run;
  REQUIRE(run.gate.wait_for_sync());
  run.gate.open(true);
  REQUIRE(run.recorder->wait());
  CHECK(run.recorder->succeeded().empty());
  CHECK(run.marks() == 0);
  REQUIRE(run.engine_loop->stopped_by());
  CHECK(run.engine_loop->stopped_by()->message == "the disk is gone");
}

TEST_CASE("an effect waits for the sync of its cause, and is not executed if that fails") {
  bool fails = GENERATE(false, true);
  Started run(kNative);
  REQUIRE(run.gate.wait_for_sync());
  // Time for an effect that comes too early.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(run.calls == 0);
  run.gate.open(fails);
  REQUIRE(run.recorder->wait());
  CHECK(run.recorder->succeeded().size() == (fails ? 0u : 120u));
  CHECK(run.calls == (fails ? 0 : 60));
}

TEST_CASE("a chain of Lua tasks continues while a sync waits, without visible effects") {
  bool fails = GENERATE(false, true);
  Started run(kChain);
  REQUIRE(run.gate.wait_for_lookups(21));
  // Time for an effect that comes too early.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(run.recorder->succeeded().empty());
  CHECK(fs::is_empty(run.path / "marks"));
  run.gate.open(fails);
  REQUIRE(run.recorder->wait());
  CHECK(run.recorder->succeeded().size() == (fails ? 0u : 21u));
  CHECK(fs::exists(run.path / "marks" / "20") != fails);
}

TEST_CASE("the amount of data that waits for a slow disk is bounded") {
  Started run(kMany);
  REQUIRE(run.gate.wait_for_sync());
  std::this_thread::sleep_for(std::chrono::seconds(1));  // time for too many records
  run.gate.open(false);
  REQUIRE(run.recorder->wait());
  CHECK(run.recorder->succeeded().size() == 6000);
  CHECK(run.gate.rows_max < 3 * 2200);  // a result is three rows, of 12,000 records 2048 wait
}

TEST_CASE("a timer that is due while another thread runs a turn is not missed") {
  Started run(kTimer);
  run.gate.open(false);
  REQUIRE(run.recorder->wait_for_waiting());
  run.gate.set_commit_time(std::chrono::milliseconds(1500));  // the timer is due meanwhile
  std::ofstream(run.path / "marks" / "go") << "go";
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  run.gate.set_commit_time(std::chrono::milliseconds(0));
  REQUIRE(run.recorder->wait());
  CHECK(run.recorder->succeeded() == std::set<std::string>{"hold", "wait"});
}

TEST_CASE("reading the state does not wait for the disk") {
  Started run;
  run.gate.open(false);
  REQUIRE(run.recorder->wait());
  run.engine_loop->inspect(
      [](const core::State&, InputResolver&) {});  // pending writes are synced first
  int before = run.gate.sync_count();
  for (int i = 0; i < 3; i++) run.engine_loop->inspect([](const core::State&, InputResolver&) {});
  CHECK(run.gate.sync_count() == before);
}

TEST_CASE("a line that arrives after the end of its run is the last of the log") {
  Started run(kLogs);
  run.gate.open(false);
  REQUIRE(run.recorder->wait());
  auto lines = [&] {
    std::vector<std::string> texts;
    Status scanned = run.engine_loop->parts().store.scan(
        Family::logs, "", "", [&](std::string_view, std::string_view value) {
          auto row = decode_log(value);
          REQUIRE(row.ok());
          texts.push_back(row->text);
          return true;
        });
    REQUIRE(scanned.ok());
    return texts;
  };
  REQUIRE(lines() == std::vector<std::string>{"first", "second"});
  for (const char* text : {"third", "fourth"}) {
    Report report{{run.id, 0, 1, core::fencing_token(1, 0)}, 0, 0, LogLines{0, text}};
    EngineComponents& parts = run.engine_loop->parts();
    parts.inbox.post(parts.reports.inputs_of(
        std::move(report), "w", {"row", "1"}, [](bool) {}, [] {}));
  }
  run.engine_loop->inspect([](const core::State&, InputResolver&) {});  // after them
  CHECK(lines() == std::vector<std::string>{"first", "second", "third", "fourth"});
}
