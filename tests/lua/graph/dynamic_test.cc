// A dynamic task's calls: a fragment with its own nodes, named under the task.
#include <catch2/catch.hpp>

#include "build.hpp"
#include "host.hpp"

using namespace flow;

namespace {

// Runs the first dynamic task of a script whose line 3 begins its body.
AttemptOutcome run(const std::string& body, std::vector<Value> args = {}) {
  Bundle bundle;
  bundle.main = "pipeline.lua";
  bundle.files = {
      {"pipeline.lua",
       "local flow = require 'flow'\n"
       "local best = flow.task('best', print) local web = flow.service('web', print) "
       "local far = flow.task('far', { where = \"node.a\" }, print) "
       "local big = flow.task('big', { gpu_memory = '1GiB' }, print) local wide = best:with { cpus "
       "= 3 }\n"
       "local search = flow.dynamic('search', function(ctx, x)\n" +
           body +
           "\nend)\n"
           "local plain = flow.task('plain', function(ctx) return best(1) end)\n"
           "local inside = flow.task('inside', function(ctx) return flow.task('x', print) end)\n"
           "return flow.pipeline('p', {}, function() return search() end)\n"}};
  auto vm = make_script_vm();
  REQUIRE(vm->load(bundle).ok());
  AttemptRequest request;
  request.ordinal = 4;
  request.task = "search#2";
  request.dir = "/state/scratch/1";
  request.state_dir = "/state";
  request.args = Value::list(std::move(args));
  test::Host host;
  AttemptOutcome outcome = vm->run(request, host);
  if (!body.starts_with("--")) return outcome;
  request.ordinal = body == "-- plain" ? 5 : 6;
  return vm->run(request, host);
}

std::string fragment(const AttemptOutcome& outcome) {
  if (!outcome.fragment) return "error: " + outcome.message;
  Plan plan;
  plan.nodes = outcome.fragment->nodes;
  plan.result = outcome.fragment->result;
  return test::plan_text(plan);
}

}  // namespace

TEST_CASE("a dynamic task calls variants by the numbers that the plan gives them") {
  AttemptOutcome outcome = run("return { wide(1), best(2) }");
  REQUIRE(outcome.fragment);
  REQUIRE(outcome.fragment->nodes.size() == 2);
  CHECK(outcome.fragment->nodes[0].name == "search#2/best");
  CHECK(outcome.fragment->nodes[0].def == 7);  // after seven tasks
  CHECK(outcome.fragment->nodes[1].def == 0);
  CHECK(fragment(run("return best:with { cpus = 5 }(1)")).find("is called while the file loads") !=
        std::string::npos);
}

TEST_CASE("calls of a dynamic task are nodes under its name, with tasks by ordinal") {
  AttemptOutcome outcome =
      run("local list = {}\n"
          "for i, item in ipairs(x) do list[i] = best(item, { n = i }) end\n"
          "local r = flow.when(list[1].good, function() return best(list[1]) end)\n"
          "web(r)\n"
          "return { all = list, r = r, m = flow.map(best, list[2]) }",
          {Value::list({Value("a"), Value("b")})});
  REQUIRE(
      fragment(outcome) ==
      "search#2/best {\"a\", {n=1}}\n"
      "search#2/best#2 {\"b\", {n=2}}\n"
      "search#2/when when <search#2/best.good> then <search#2/best#3> else null\n"
      "search#2/best#3 {<search#2/best>} if search#2/when\n"
      "search#2/web {<search#2/when>}\n"
      "search#2/best#4 map <search#2/best#2> {}\n"
      "-> {all={<search#2/best>, <search#2/best#2>}, m=<search#2/best#4>, r=<search#2/when>}\n");
  CHECK(outcome.fragment->nodes[0].def == 0);
  CHECK(outcome.fragment->nodes[4].def == 1);
}

TEST_CASE("an input's path that is passed on becomes the file again") {
  File file;
  file.name = "in.csv";
  file.digest = sha256("in");
  AttemptOutcome outcome = run("return best(x)", {Value(file)});
  REQUIRE(outcome.fragment);
  CHECK(outcome.fragment->nodes[0].args.value().as_table().list[0].as_file().digest == file.digest);
}

TEST_CASE("a dynamic task cannot read its handles, and defines nothing") {
  CHECK_THAT(run("return best(1) + 1").message,
             Catch::Contains("pipeline.lua:4: arithmetic on `search#2/best`"));
  CHECK_THAT(run("return best('/state/scratch/1/x')").message,
             Catch::Contains("use ctx:file(\"x\")"));
  CHECK_THAT(run("return flow.task('late', print)").message,
             Catch::Contains("pipeline.lua:4: flow.task defines `late` inside a task"));
  CHECK_THAT(run("return best(web(1))").message, Catch::Contains("cannot take the service"));
}

TEST_CASE("the requirements of a dynamic task's call are checked when it is placed") {
  CHECK(run("return far(1)").message.empty());
  CHECK(run("return big(1)").message.empty());
}

TEST_CASE("an ordinary task calls no tasks and defines none") {
  CHECK_THAT(
      run("-- plain").message,
      Catch::StartsWith("pipeline.lua:6: the task `best` is called inside a task: call the tasks"));
  CHECK_THAT(
      run("-- inside").message,
      Catch::StartsWith("pipeline.lua:7: flow.task defines `x` inside a task: a task is defined"));
}

TEST_CASE("a cycle of :after among a dynamic task's calls fails it") {
  for (const char* end : {"return a", ""}) {
    CHECK_THAT(fragment(run(std::string("local a, b = best(1), best(2)\n"
                                        "a:after(b)\n"
                                        "b:after(a)\n") +
                            end)),
               Catch::StartsWith("error: pipeline.lua:5: an `:after` closes a cycle"));
  }
}
