// Options of tasks as plain values.
#include "engine/plan/task_options.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

Value map(std::vector<std::pair<Value, Value>> fields) { return Value::map(std::move(fields)); }

/// The value of the option after it was set, as JSON; or the error.
std::string after(const std::string& option, const Value& value) {
  TaskDef def;
  Status set = set_task_option(def, option, value);
  return set.ok() ? to_json(task_option(def, option)) : set.error().message;
}

}  // namespace

TEST_CASE("each option of a task can be set and read") {
  CHECK(after("cpus", 0.5) == "0.5");
  CHECK(after("cpus", 2) == "2");
  CHECK(after("memory", "2GiB") == "\"2GiB\"");
  CHECK(after("memory", 100) == "100");
  CHECK(after("gpus", 0.25) == "0.25");
  CHECK(after("gpu_memory", "1KB") == "1000");
  CHECK(after("gpu", "H100|H200") == "\"H100|H200\"");
  CHECK(after("where", "disk == ssd") == "\"disk == ssd\"");
  CHECK(after("resources", map({{"b", 1}, {"a", 0.5}})) == "{\"a\":0.5,\"b\":1}");
  CHECK(after("timeout", "90s") == "\"1m 30s\"");
  CHECK(after("priority", -5) == "-5");
  CHECK(after("queue", "slow") == "\"slow\"");
  CHECK(after("env.MODE", "fast") == "\"fast\"");
  CHECK(after("env.N", 3) == "\"3\"");
  CHECK(after("env.TOKEN", map({{"env", "NAME"}})) == "{\"env\":\"NAME\"}");
  TaskDef def;
  REQUIRE(set_task_option(def, "retries",
                          map({{"max", 3},
                               {"backoff", "2s"},
                               {"factor", 1.5},
                               {"cap", "1m"},
                               {"oom", map({{"max", 2}, {"memory", "x4"}})},
                               {"infra", 1}}))
              .ok());
  CHECK(def.retry.max == 3);
  CHECK(def.retry.backoff_ms == 2000);
  CHECK(def.retry.factor == 1.5);
  CHECK(def.retry.cap_ms == 60'000);
  CHECK(def.retry.oom_max == 2);
  CHECK(def.retry.oom_memory_factor == 4);
  CHECK(def.retry.infra == 1);
  CHECK(
      to_json(task_option(def, "retries")) ==
      R"({"backoff":"2s","cap":"1m","factor":1.5,"infra":1,"max":3,"oom":{"max":2,"memory":"x4"}})");
  REQUIRE(set_task_option(def, "retries", 1).ok());
  CHECK(def.retry.max == 1);
  CHECK(task_option(def, "retries") == Value(1));
  CHECK(def.retry.infra == RetryPolicy().infra);  // a value replaces the whole option
}

TEST_CASE("variables are sorted, and one of the same name is replaced") {
  TaskDef def;
  def.env = {{"B", false, "1"}};
  REQUIRE(set_task_option(def, "env.C", "2").ok());
  REQUIRE(set_task_option(def, "env.A", "3").ok());
  REQUIRE(set_task_option(def, "env.B", map({{"env", "SECRET"}})).ok());
  REQUIRE(def.env.size() == 3);
  CHECK(def.env[0].name == "A");
  CHECK(def.env[1].from_submitter);
  CHECK(def.env[1].value == "SECRET");
  CHECK(def.env[2].name == "C");
}

TEST_CASE("a value that does not fit is an error that names the option") {
  CHECK(after("cpus", 0) ==
        "the option `cpus` must be a number of CPUs, at least 0.001, but is `0`");
  CHECK_THAT(after("memory", "lots"), Catch::StartsWith("the option `memory`: "));
  CHECK(after("memory", "0") == "the option `memory` must be a size above 0, but is `\"0\"`");
  CHECK_THAT(after("gpus", 1.5), Catch::Contains("a whole number of GPUs"));
  CHECK_THAT(after("gpu", "a||b"), Catch::Contains("a model pattern"));
  CHECK_THAT(after("where", "a =="), Catch::Contains("`where`"));
  CHECK_THAT(after("resources", map({{"gpus", 1}})), Catch::Contains("`gpus`"));
  CHECK_THAT(after("resources", Value::list({1})), Catch::Contains("a table of names"));
  CHECK_THAT(after("retries", map({{"maxx", 1}})), Catch::Contains("did you mean `max`?"));
  CHECK_THAT(after("retries", map({{"oom", map({{"memory", "2"}})}})),
             Catch::Contains("`retries.oom.memory` must be a factor"));
  CHECK_THAT(after("retries", -1), Catch::Contains("a whole number from 0"));
  CHECK(after("timeout", "0s") ==
        "the option `timeout` must be a duration above 0, but is `\"0s\"`");
  CHECK_THAT(after("priority", 1.5), Catch::Contains("a whole number"));
  CHECK_THAT(after("queue", true), Catch::Contains("a queue's name, but is `true`"));
  CHECK_THAT(after("env.1A", "x"), Catch::Contains("`1A`"));
  CHECK_THAT(after("env.A", map({{"env", "A=B"}})), Catch::Contains("the name of a variable"));
  CHECK_THAT(after("env.A", std::string("a\0b", 3)), Catch::Contains("without NUL"));
  TaskDef def;
  CHECK(set_task_option(def, "command", "x").error().kind == ErrorKind::internal);
}

TEST_CASE("a configured value replaces the function of an option") {
  TaskDef def;
  def.resource_functions = kMemoryFunction | kCpusFunction;
  CHECK(task_option(def, "memory") == Value("a function"));
  REQUIRE(set_task_option(def, "memory", "2GiB").ok());
  CHECK(def.resource_functions == kCpusFunction);
  CHECK(def.resources.memory_bytes == int64_t{2} << 30);
}
