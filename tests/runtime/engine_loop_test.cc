// The whole loop on one thread: orders, effects, and runs that are submitted, replaced, resumed and
// ended.
#include <catch2/catch.hpp>

#include "engine/store/row_keys.hpp"
#include "tests/runtime/open_engine.hpp"

using namespace flow;

TEST_CASE("a chain runs to its end with orders, rows and events, and then leaves the state") {
  OpenEngine engine;
  engine.submit("r", chain_plan(2));
  REQUIRE(engine.worker.orders.size() == 1);
  const AttemptOrder first = engine.worker.orders[0];
  CHECK(first.task == "t0");
  CHECK(first.args == encode_value(Value::list({Value(true)})));
  CHECK(*first.bundle_bytes == "bundle");
  CHECK(first.worker.empty());
  engine.finish(first.id, Value(std::string("one")));
  REQUIRE(engine.worker.orders.size() == 2);
  CHECK(engine.worker.orders[1].args == encode_value(Value::list({Value(std::string("one"))})));
  engine.finish(engine.worker.orders[1].id, Value(std::string("two")));
  EngineComponents& parts = engine.loop->parts();
  CHECK(parts.state.runs.empty());
  CHECK(parts.active_runs.find("r") == nullptr);
  CHECK(engine.listener->texts == std::vector<std::string>{" running", "t0 running", "t0 succeeded",
                                                           "t1 running", "t1 succeeded",
                                                           " succeeded", "end"});
  auto record = parts.store.get(Family::runs, run_key("r"));
  REQUIRE((record.ok() && record->has_value()));
  CHECK(decode_run_record(**record)->status == "succeeded");
  auto archived = parts.stored_runs.find_archived("r");
  REQUIRE((archived.ok() && archived->has_value()));
  CHECK((*archived)->runs.at("r").units.size() == 2);
}

TEST_CASE(
    "a step that is not admitted is acknowledged as lost, an admitted one when it is durable") {
  OpenEngine engine;
  engine.submit("r", chain_plan(1));
  core::AttemptId id = engine.worker.orders[0].id;
  engine.worker.calls.clear();
  engine.loop->parts().on_reports({{id, 0, 0, StepReported{"s", encode_value(Value(true)), {}}}});
  core::AttemptId old = id;
  old.attempt++;
  engine.loop->parts().on_reports({{old, 0, 0, StepReported{"o", encode_value(Value(true)), {}}}});
  engine.settle();
  std::erase(engine.worker.calls, "release");
  CHECK(engine.worker.calls == std::vector<std::string>{"not saved o", "saved s"});
  const Digest& key = engine.run("r").units[0].key;
  auto row = engine.loop->parts().store.get(Family::kv, step_prefix("r", "t0", key) + "s");
  REQUIRE((row.ok() && row->has_value()));
  CHECK(**row == encode_value(Value(true)));
}

TEST_CASE(
    "a run with the id of an active run is rejected, and replaces it once that may be dropped") {
  OpenEngine engine;
  engine.submit("r", chain_plan(1));
  Status twice = engine.loop->submit(engine.prepared("r", chain_plan(1)), 1);
  REQUIRE_FALSE(twice.ok());
  CHECK(twice.error().message.find("the run r is running already") == 0);
  engine.finish(engine.worker.orders[0].id, Value(std::string("one")));
  Status replaced = engine.loop->replace(engine.prepared("r", chain_plan(2)), 1);
  REQUIRE(replaced.ok());
  engine.settle();
  CHECK(engine.run("r").units.size() == 2);
  CHECK_FALSE(*engine.loop->parts().stored_runs.find_archived("r"));
}

TEST_CASE("an interrupted run is resumed, and a finished one has nothing to resume") {
  OpenEngine engine;
  engine.submit("r", chain_plan(1));
  core::AttemptId id = engine.worker.orders[0].id;
  engine.worker.calls.clear();
  engine.loop->interrupt("r", false);
  engine.settle();
  std::erase(engine.worker.calls, "release");
  CHECK(engine.worker.calls == std::vector<std::string>{"interrupt"});
  TaskFinished stopped;
  stopped.outcome = TaskFinished::Outcome::stopped;
  engine.loop->parts().on_reports({{id, 0, 0, std::move(stopped)}});
  engine.settle();
  CHECK(engine.run("r").status == core::RunStatus::interrupted);
  CHECK(engine.listener->texts.back() == "end");
  Status resumed = engine.loop->resume(engine.prepared("r", chain_plan(1)).context, "");
  REQUIRE(resumed.ok());
  engine.settle();
  REQUIRE(engine.worker.orders.size() == 2);
  Status unknown = engine.loop->resume(engine.prepared("r", chain_plan(1)).context, "");
  REQUIRE_FALSE(unknown.ok());  // it runs
  engine.finish(engine.worker.orders[1].id, Value(true));
  Status over = engine.loop->resume(engine.prepared("r", chain_plan(1)).context, "t9");
  REQUIRE_FALSE(over.ok());
  CHECK(over.error().message == "the run r has no task `t9` (did you mean `t0`?)");
}

TEST_CASE("a run that the core refuses leaves neither a context nor a row") {
  OpenEngine engine;
  auto plan = std::make_shared<Plan>(*chain_plan(1));
  plan->result = Value(Ref{7, {}});  // of no node
  Prepared prepared = engine.prepared("r", plan);
  prepared.context.is_detached = true;
  CHECK_FALSE(engine.loop->submit(std::move(prepared), 1).ok());
  EngineComponents& parts = engine.loop->parts();
  CHECK_FALSE(parts.active_runs.contains("r"));
  auto row = parts.store.get(Family::kv, detached_key("r"));
  REQUIRE(row.ok());
  CHECK_FALSE(row->has_value());
}

TEST_CASE("a resume follows a run that the engine resumed, unless it ends; a retry does not") {
  OpenEngine engine;
  engine.submit("r", chain_plan(1));
  ActiveRuns& active = engine.loop->parts().active_runs;
  auto resume = [&](bool is_retry) {
    return engine.loop->resume(engine.prepared("r", chain_plan(1)).context, "", is_retry);
  };
  active.find("r")->is_unattended = true;
  Status retried = resume(true);
  REQUIRE_FALSE(retried.ok());
  CHECK(retried.error().message.find("the run r is running already") == 0);
  CHECK(active.find("r")->is_unattended);
  CHECK(resume(false).ok());
  CHECK_FALSE(active.find("r")->is_unattended);
  active.find("r")->is_unattended = true;
  CHECK(*engine.loop->post_and_wait(core::CancelRequested{"r"}));
  CHECK_FALSE(resume(false).ok());
  CHECK(active.find("r")->is_unattended);
}

TEST_CASE("a resumed run is still that of the user who submitted it") {
  OpenEngine engine;
  Prepared prepared = engine.prepared("r", chain_plan(1));
  prepared.context.user = "ann";
  REQUIRE(engine.loop->submit(std::move(prepared), 1).ok());
  engine.settle();
  engine.loop->interrupt("r", false);
  engine.settle();
  TaskFinished stopped;
  stopped.outcome = TaskFinished::Outcome::stopped;
  engine.loop->parts().on_reports({{engine.worker.orders[0].id, 0, 0, std::move(stopped)}});
  engine.settle();
  RunContext context = engine.prepared("r", chain_plan(1)).context;
  context.is_unattended = true;
  REQUIRE(engine.loop->resume(std::move(context), "").ok());
  CHECK(engine.run("r").user == "ann");
}

TEST_CASE("a run that ends between the caller's look at it and the resume has been resumed") {
  OpenEngine engine;
  engine.submit("r", chain_plan(1));
  engine.finish(engine.worker.orders[0].id, Value(true));
  RunContext context = engine.prepared("r", chain_plan(1)).context;
  context.record.status = "interrupted";
  context.request = "client-1";
  engine.listener->texts.clear();
  Status resumed = engine.loop->resume(std::move(context), "");
  REQUIRE(resumed.ok());
  CHECK(engine.listener->texts == std::vector<std::string>{"end"});
  auto row = engine.loop->parts().store.get(Family::kv, request_key("client-1"));
  REQUIRE((row.ok() && row->has_value()));
  CHECK(**row == "r");
}

TEST_CASE("a rejected resume leaves a run in its archive") {
  OpenEngine engine;
  engine.submit("r", chain_plan(1));
  engine.finish(engine.worker.orders[0].id, Value(true));
  EngineComponents& parts = engine.loop->parts();
  REQUIRE(parts.state.runs.empty());
  for (const char* task : {"t9", ""}) {
    CAPTURE(task);
    RunContext context = engine.prepared("r", chain_plan(1)).context;
    context.record.status = "succeeded";
    Status rejected = engine.loop->resume(std::move(context), task);
    REQUIRE_FALSE(rejected.ok());
    engine.settle();
    CHECK(parts.state.runs.empty());
    auto archived = parts.stored_runs.find_archived("r");
    REQUIRE(archived.ok());
    CHECK(archived->has_value());
  }
}

TEST_CASE("with kill the attempts of a run are killed at once") {
  OpenEngine engine;
  engine.submit("r", chain_plan(1));
  engine.worker.calls.clear();
  engine.loop->interrupt("r", true);
  engine.settle();
  CHECK(std::ranges::count(engine.worker.calls, "kill") == 1);
}

TEST_CASE("a resume finds results whose blobs are missing") {
  OpenEngine engine;
  engine.submit("r", chain_plan(2));
  engine.finish(engine.worker.orders[0].id, Value(std::string(100, 'x')));
  Digest result = engine.run("r").units[0].result;
  Batch batch;
  batch.erase(Family::blobs, std::string(result.view()));
  REQUIRE(engine.loop->parts().store.commit(batch).ok());
  TaskFinished failed;
  failed.outcome = TaskFinished::Outcome::failed;
  failed.failure = {core::Cause::staging, "it is gone", "", 0};
  for (size_t i = 1; i < engine.worker.orders.size(); i++) {
    engine.loop->parts().on_reports({{engine.worker.orders[i].id, 0, 0, failed}});
    engine.settle();
    engine.now += 600'000;  // the backoff
    engine.settle();
  }
  REQUIRE(engine.loop->parts().state.runs.empty());  // it has failed
  Status resumed = engine.loop->resume(engine.prepared("r", chain_plan(2)).context, "");
  REQUIRE(resumed.ok());
  engine.settle();
  CHECK(engine.worker.orders.back().task == "t0");
}

TEST_CASE("a callback that reads the store sees what earlier turns decided") {
  OpenEngine engine;
  engine.loop->put_metadata("row", "value");
  engine.settle();
  std::string read;
  engine.loop->inspect([&](const core::State&, InputResolver&) {
    read = **engine.loop->parts().store.get(Family::kv, "row");
  });
  CHECK(read == "value");
  bool has_swept = false;
  engine.loop->collect([](const core::State&, Batch& batch) { batch.erase(Family::kv, "row"); },
                       [&] { has_swept = true; });
  CHECK(has_swept);
  CHECK_FALSE(*engine.loop->parts().store.get(Family::kv, "row"));
}
