// Attempts: what a context keeps, how waits and stops end one, and that each starts with fresh
// state.
#include <catch2/catch.hpp>
#include <set>

#include "vm.hpp"

using namespace flow;
using namespace flow::test;

namespace {

/// A script of one task `t` whose function is `body`, loaded and ready to run.
struct LoadedScript {
  std::unique_ptr<ScriptVm> vm = make_script_vm();
  Plan plan;

  explicit LoadedScript(const std::string& body, const std::string& above = "",
                        const std::string& kind = "task") {
    start({{"p.lua", "local flow = require 'flow' " + above + " local t = flow." + kind +
                         "('t', function(ctx, ...)\n" + body +
                         "\nend)\nreturn flow.pipeline('p', {}, function() t() end)"}});
  }
  explicit LoadedScript(const Files& files) { start(files); }

  void start(const Files& files) {
    auto built = build(files);
    INFO((built.ok() ? "" : built.error().message));
    REQUIRE(built.ok());
    plan = std::move(built->plan);
    REQUIRE(vm->load(built->bundle).ok());
  }
  const TaskDef& def() const {
    for (const TaskDef& def : plan.defs)
      if (def.name == "t") return def;
    FAIL("no task t");
    return plan.defs.front();
  }
  AttemptOutcome run(FakeHost& host, std::vector<Value> args = {}) {
    return vm->run(attempt_of(def(), std::move(args)), host);
  }
  AttemptOutcome run(const AttemptRequest& request, FakeHost& host) {
    return vm->run(request, host);
  }
};

using Kind = AttemptOutcome::Kind;

}  // namespace

TEST_CASE("arguments are passed in and the result is returned") {
  LoadedScript script("local a, b = ... return { a + 1, b.x, ctx.task }");
  FakeHost host;
  auto outcome = script.run(host, {Value(2), Value::map({{Value("x"), Value("y")}})});
  CHECK(outcome.kind == Kind::succeeded);
  CHECK(to_json(outcome.result) == R"([3,"y","t"])");
}

TEST_CASE("an error names file and line and has the script's frames") {
  LoadedScript script("local function inner() error('bad') end\ninner()");
  FakeHost host;
  auto outcome = script.run(host);
  CHECK(outcome.kind == Kind::failed);
  CHECK(outcome.message == "p.lua:2: bad");
  CHECK(outcome.traceback == "p.lua:2: in function `inner`\np.lua:3: in function <p.lua:1>");
  CHECK(outcome.bad_result == false);
}

TEST_CASE("error values that are not strings have a text") {
  const struct {
    const char* body;
    const char* message;
  } cases[] = {
      {"error({ message = 'm' })", "m"},
      {"error(setmetatable({}, { __tostring = function() return 's' end }))", "s"},
      {"error()", "p.lua:2: error without a message (nil)"},
      {"error(nil)", "p.lua:2: error without a message (nil)"},
      {"\nerror(42)", "p.lua:3: error 42"},
      {"error(4.5, 2)", "p.lua:2: error 4.5"},
      {"error(false)", "p.lua:2: error false"},
      {"error(print)", "p.lua:2: error function"},
      {"error({})", "p.lua:2: error {}"},
      {"error({ code = 3 })", R"(p.lua:2: error {"code":3})"},
      {"error({ 'a', 'b' })", R"(p.lua:2: error ["a","b"])"},
      {"error({ [true] = 1, [2] = 'x', at = { line = 1.5 } })",
       R"(p.lua:2: error {2:"x","at":{"line":1.5},true:1})"},
      {"error({ f = print, s = 'a\\0\"' })", R"(p.lua:2: error {"f":function,"s":"a\u0000\""})"},
      {"error({ inner = setmetatable({}, { __tostring = function() return 'I' end }) })",
       R"(p.lua:2: error {"inner":I})"},
      {"local t = {} t.t = t error(t)", R"(p.lua:2: error {"t":{"t":{"t":{"t":{…}}}}})"},
      {"local t = {} for i = 1, 1000 do t[i] = i end error(t)",
       "p.lua:2: error [1,2,3,4,5,6,7,8,…]"},
      {"error(setmetatable({}, { __tostring = function() error('in it') end }))", "p.lua:2: in it"},
  };
  for (const auto& c : cases) {
    INFO(c.body);
    FakeHost host;
    auto outcome = LoadedScript(c.body).run(host);
    CHECK(outcome.kind == Kind::failed);
    CHECK(outcome.message == c.message);
    CHECK_THAT(outcome.traceback, Catch::StartsWith("p.lua:"));
  }
}

TEST_CASE("steps are journaled, and a journaled step is not called again") {
  LoadedScript script(
      "local a = ctx:step('load', function(x) ctx:log('called') return x * 2 end, 21)\n"
      "local b = ctx:step('load', function() return { a } end)\n"
      "return { a, b }");
  FakeHost host;
  auto outcome = script.run(host);
  CHECK(to_json(outcome.result) == "[42,[42]]");
  CHECK(host.lines == std::vector<std::string>{"called"});
  CHECK(to_json(host.steps.at("load#2")) == "[42]");

  AttemptRequest again = attempt_of(script.def());
  again.steps["load"] = Value(5);
  FakeHost second;
  outcome = script.run(again, second);
  CHECK(to_json(outcome.result) == "[5,[5]]");
  CHECK(second.lines.empty());
}

TEST_CASE("a nested step is identified by its path, whichever steps are journaled") {
  LoadedScript script(
      "local function load(value) return ctx:step('load', function() return value end) end\n"
      "local outer = ctx:step('outer', function() return { load('a'), load('b') } end)\n"
      "pcall(ctx.step, ctx, 'failing', function() load('c') error('no') end)\n"
      "local path = ctx:step('outer/load', function() return 'd' end)\n"
      "local taken = ctx:step('load#2', function() return 'e' end)\n"
      "return { outer, path, taken, load('f'), load('g') }");
  const std::string result = R"([["a","b"],"d","e","f","g"])";
  FakeHost first;
  CHECK(to_json(script.run(first).result) == result);
  std::vector<std::string> names;
  for (const auto& [name, value] : first.steps) names.push_back(name);
  CHECK(names == std::vector<std::string>{"failing/load", "load", "load#2", "load#3", "outer",
                                          "outer/load", "outer/load#2", "outer\\/load"});
  // Whatever an attempt had saved when it ended, the next one returns the same.
  for (size_t kept = 0; kept < 1u << names.size(); kept++) {
    AttemptRequest again = attempt_of(script.def());
    for (size_t i = 0; i < names.size(); i++)
      if ((kept >> i & 1) != 0) again.steps[names[i]] = first.steps.at(names[i]);
    FakeHost host;
    CHECK(to_json(script.run(again, host).result) == result);
    for (const auto& [name, value] : host.steps) CHECK(again.steps.count(name) == 0);
  }
}

TEST_CASE("a wait inside a step differs from the same wait outside") {
  LoadedScript script(
      "local inner = ctx:step('s', function() return { ctx:wait('go', { timeout = '1s' }) } end)\n"
      "ctx:wait('go', { timeout = '9s' })");
  FakeHost host;
  AttemptRequest request = attempt_of(script.def());
  CHECK(script.run(request, host).wait_name == "s/go");
  request.waits["s/go"].expired = true;
  CHECK(script.run(request, host).wait_name == "go");
  request.steps = host.steps;
  REQUIRE(request.steps.count("s") == 1);
  auto outcome = script.run(request, host);
  CHECK(outcome.kind == Kind::waiting);
  CHECK(outcome.wait_name == "go");
  CHECK(outcome.signal == "go");
}

TEST_CASE("the nesting depth of steps is limited") {
  const std::string body =
      "local function nest(n) return ctx:step(('x'):rep(199), function()\n"
      "  return n > 1 and nest(n - 1) or 'in' end) end\n"
      "return nest(";
  FakeHost host;
  CHECK(to_json(LoadedScript(body + "20)").run(host).result) == R"("in")");
  auto outcome = LoadedScript(body + "21)").run(host);
  CHECK_THAT(outcome.message, Catch::StartsWith("p.lua:") &&
                                  Catch::Contains("have 4199 bytes, and the limit is 4000"));
}

TEST_CASE("a checkpoint is available in the next attempt") {
  LoadedScript script(
      "local state = ctx:restore()\n"
      "ctx:checkpoint { epoch = (state and state.epoch or 0) + 1 }\n"
      "return ctx:restore().epoch");
  FakeHost host;
  CHECK(to_json(script.run(host).result) == "1");
  CHECK(to_json(script.run(host).result) == "2");
  FakeHost other;
  CHECK(to_json(script.run(other).result) == "1");
}

TEST_CASE("a stop ends the attempt at the next step or checkpoint, through any pcall") {
  for (const char* call : {"ctx:checkpoint { 1 }", "ctx:step('s', function() return 1 end)"}) {
    LoadedScript script("pcall(function() " + std::string(call) + " end) ctx:log('went on')");
    FakeHost host;
    host.stops = true;
    CHECK(script.run(host).kind == Kind::stopped);
    CHECK(host.lines.empty());
    CHECK((host.checkpoint.has_value() || host.steps.size() == 1));
  }
}

TEST_CASE(
    "a state that cannot be saved is an error of the script, and a fenced attempt just ends") {
  const std::pair<const char*, const char*> calls[] = {
      {"ctx:checkpoint { 1 }", "p.lua:2: ctx:checkpoint: too large"},
      {"ctx:step('s', function() return 1 end)", "p.lua:2: the step `s`: too large"}};
  for (const auto& [call, message] : calls) {
    FakeHost host;
    host.refusal = user_error("too large");
    auto outcome = LoadedScript(call).run(host);
    CHECK(outcome.kind == Kind::failed);
    CHECK(outcome.message == message);
    host.refusal = environment_error("another attempt has the lease");
    CHECK(LoadedScript("pcall(function() " + std::string(call) + " end)").run(host).kind ==
          Kind::stopped);
  }
}

TEST_CASE("a wait ends the attempt, even if the script catches errors") {
  const char* bodies[] = {
      "ctx:wait('go', { timeout = '2s' })",
      "pcall(ctx.wait, ctx, 'go', { timeout = 2 })",
      "pcall(pcall, function() ctx:wait('go', { timeout = '2s' }) end)",
      "xpcall(function() ctx:wait('go', { timeout = '2s' }) end, function() return 'x' end)",
      "coroutine.wrap(function() ctx:wait('go', { timeout = '2s' }) end)()",
      "local co = coroutine.create(function() ctx:wait('go', { timeout = '2s' }) end) "
      "coroutine.resume(co)",
      "local x <close> = setmetatable({}, { __close = function() error('late') end }) "
      "ctx:wait('go', { timeout = '2s' })",
      "pcall(function() local x <close> = setmetatable({}, { __close = function() error('late') "
      "end "
      "}) ctx:wait('go', { timeout = '2s' }) end)",
      "table.sort({ 1, 2 }, function() ctx:wait('go', { timeout = '2s' }) end)",
      "ctx:step('s', function() ctx:wait('go', { timeout = '2s' }) end)",
      "tostring(setmetatable({}, { __tostring = function() ctx:wait('go', { timeout = '2s' }) end "
      "}))",
  };
  for (const char* body : bodies) {
    INFO(body);
    LoadedScript script(std::string(body) + " ctx:log('went on')");
    FakeHost host;
    auto outcome = script.run(host);
    CHECK(outcome.kind == Kind::waiting);
    CHECK(outcome.signal == "go");
    bool in_step = std::string(body).starts_with("ctx:step");
    CHECK(outcome.wait_name == (in_step ? "s/go" : "go"));
    CHECK(outcome.wait_timeout_ms == 2000);
    CHECK(host.lines.empty());
  }
}

TEST_CASE("a wait returns its signal, or nil and timeout") {
  LoadedScript script(
      "local flow = require 'flow'\n"
      "local a, why = ctx:wait('go')\n"
      "local b, late = ctx:wait('go', { timeout = '1s' })\n"
      "return { a == flow.null, type(a), why, b, late }");
  FakeHost host;
  AttemptRequest request = attempt_of(script.def());
  request.signals["go"] = Value(true);
  request.waits["go#2"].expired = true;
  CHECK(to_json(script.run(request, host).result) ==
        R"({"$map":[[1,false],[2,"boolean"],[5,"timeout"]]})");
  request.waits.clear();
  request.signals["go"] = Value::null();
  auto outcome = script.run(request, host);
  CHECK(outcome.result.as_table().list[0] == Value(true));
}

TEST_CASE("misuse of ctx is reported by name") {
  const struct {
    const char* body;
    const char* message;
  } cases[] = {
      {"ctx:wait('go', { timout = 1 })",
       "ctx:wait has no option `timout` (did you mean `timeout`?)"},
      {"ctx:wait('go', { timeout = 'soon' })", "ctx:wait: the timeout of `go`"},
      {"ctx:wait()", "ctx:wait: the first argument is a name, not nil"},
      {"ctx:step('s', 5)", "ctx:step: the second argument of `s` is a function, not an integer"},
      {"ctx:step('s', function() return 1, 2 end)", "the step `s` returned 2 values"},
      {"ctx:step('s', function() return print end)", "a function at the result of step `s`"},
      {"ctx:checkpoint()", "ctx:checkpoint: give it the state to keep"},
      {"ctx:progress('half')", "ctx:progress: the first argument is a number from 0 to 1"},
      {"ctx:metric('loss', 1, 2.5)", "ctx:metric: the step of `loss` is an integer, not 2.5"},
      {"ctx:metric('loss', 1, '2')", "ctx:metric: the step of `loss` is an integer, not a string"},
      {"ctx:metric('loss', 'x')", "ctx:metric: the value of `loss` is a number, not a string"},
      {"ctx:file('../x')", "the file is in ctx.dir"},
      {"ctx:file('no-such-file')", "ctx.dir (/tmp) has no such file"},
  };
  for (const auto& c : cases) {
    INFO(c.body);
    FakeHost host;
    auto outcome = LoadedScript(c.body).run(host);
    CHECK(outcome.kind == Kind::failed);
    CHECK_THAT(outcome.message, Catch::StartsWith("p.lua:2: ") && Catch::Contains(c.message));
  }
}

TEST_CASE("progress, metrics and a file reach the host") {
  LoadedScript script(
      "ctx:progress(0.5, { loss = 1 }) ctx:progress(7) ctx:metric('acc', 0.5, 6 / 2)");
  FakeHost host;
  CHECK(script.run(host).kind == Kind::succeeded);
  CHECK(host.calls == std::vector<std::string>{R"(progress 0.5 {"loss":1})", "progress 1.0 null",
                                               "metric acc 0.5 3"});
}

TEST_CASE("a secret in a name is redacted, and the names remain distinct") {
  LoadedScript script(
      "local function load(value) return ctx:step('of s3cret', function() return value end) end\n"
      "ctx:metric('s3cret', 1)\n"
      "return { load('a'), load('b'), (ctx:wait('s3cret!')) }");
  FakeHost host;
  host.secret = "s3cret";
  auto outcome = script.run(host);
  CHECK(outcome.kind == Kind::waiting);
  CHECK(outcome.signal == "***!");
  CHECK(outcome.wait_name == "***!");
  CHECK(host.calls == std::vector<std::string>{"metric *** 1.0 -"});
  AttemptRequest again = attempt_of(script.def());
  again.steps = host.steps;
  again.signals["***!"] = Value("c");
  CHECK(to_json(script.run(again, host).result) == R"(["a","b","c"])");
  CHECK(host.steps.size() == 2);
  CHECK(host.steps.count("of ***#2") == 1);
}

TEST_CASE("memory is limited, and reaching the limit is reported") {
  LoadedScript script("local t = {} for i = 1, 1e7 do t[i] = {} end return #t");
  FakeHost host;
  AttemptRequest request = attempt_of(script.def());
  request.memory_bytes = 4 << 20;
  auto outcome = script.run(request, host);
  CHECK(outcome.kind == Kind::failed);
  CHECK(outcome.out_of_memory);
  CHECK_THAT(outcome.message,
             Catch::StartsWith(
                 "p.lua:1: t ran out of memory: its limit is 4 MiB, and its peak would be "));
  CHECK(LoadedScript("return 1").run(host).kind == Kind::succeeded);
}

TEST_CASE("infinite recursion is an error of the task") {
  FakeHost host;
  auto outcome = LoadedScript("local function f() return 1 + f() end f()").run(host);
  CHECK(outcome.kind == Kind::failed);
  CHECK_THAT(outcome.message, Catch::Contains("stack overflow"));
}

TEST_CASE("a coroutine that a task captured starts again in every attempt") {
  LoadedScript script(
      "return numbers()",
      "local numbers = coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i) end end)");
  FakeHost host;
  for (int i = 0; i < 3; i++) CHECK(to_json(script.run(host).result) == "1");
}

TEST_CASE("module state is restored for every task that reaches it") {
  Files files = {
      {"p.lua",
       "local flow = require 'flow' local m = require 'm'\n"
       "local u = flow.task('u', function() m.add(5) return m.count end)\n"
       "local t = flow.task('t', function() m.add(1) return m.count end)\n"
       "return flow.pipeline('p', {}, function() t() u() end)"},
      {"m.lua",
       "local m = { count = 0 } local calls = 0\n"
       "function m.add(n) calls = calls + 1 m.count = m.count + n * calls end return m"}};
  LoadedScript script(files);
  FakeHost host;
  for (int i = 0; i < 2; i++)
    for (const TaskDef& def : script.plan.defs)
      CHECK(to_json(script.vm->run(attempt_of(def), host).result) == (def.name == "t" ? "1" : "5"));
}

TEST_CASE("changes to the strings' metatable and to libraries are reverted") {
  LoadedScript script("string.counter.n = string.counter.n + 1 return string.counter.n",
                      "string.counter = { n = 0 }");
  FakeHost host;
  for (int i = 0; i < 2; i++) CHECK(to_json(script.run(host).result) == "1");
}

TEST_CASE("a tensor that a task captured has its original content again") {
  LoadedScript script("local before = x:sum() x:fill_(7) return before",
                      "local x = flow.ones(2, 3)");
  FakeHost host;
  for (int i = 0; i < 2; i++) {
    auto outcome = script.run(host);
    CHECK(outcome.message == "");
    CHECK(to_json(outcome.result) == "6.0");
  }
}

TEST_CASE("gradients of a captured tensor are removed before the next attempt") {
  LoadedScript script(
      "local before = w.grad; (w * w):sum():backward() local after = w.grad[1]\n"
      "y:sum():backward() return { before == nil, after, w.requires_grad }",
      "local w = flow.ones({ 2 }, { requires_grad = true }) local y = flow.ones(2) + 0 * "
      "w:detach()\n"
      "y:requires_grad_()");
  FakeHost host;
  for (int i = 0; i < 2; i++) {
    auto outcome = script.run(host);
    CHECK(outcome.message == "");
    CHECK(to_json(outcome.result) == "[true,2.0,true]");
  }
}

TEST_CASE("tensors count against a task's memory, and unreferenced ones are collected first") {
  LoadedScript script(
      "local kept = {}\n"
      "for i = 1, 64 do local x = flow.zeros(1 << 20) end\n"
      "for i = 1, n do kept[i] = flow.zeros(1 << 20) end return #kept",
      "local n = 20");
  FakeHost host;
  AttemptRequest request = attempt_of(script.def());
  request.memory_bytes = 100 << 20;
  CHECK(script.run(request, host).message == "");
  request.memory_bytes = 60 << 20;
  auto outcome = script.run(request, host);
  CHECK(outcome.out_of_memory);
  CHECK_THAT(outcome.message, Catch::Contains("ran out of memory: its limit is 60 MiB"));
}

TEST_CASE("a dynamic task returns its calls") {
  Files files = {{"p.lua",
                  "local flow = require 'flow'\n"
                  "local work = flow.task('work', function(ctx, n) return n end)\n"
                  "local t = flow.dynamic('t', function(ctx, n)\n"
                  "  local list = {} for i = 1, n do list[i] = work(i) end return { list = list }\n"
                  "end)\n"
                  "return flow.pipeline('p', {}, function() return t(2) end)"}};
  LoadedScript script(files);
  FakeHost host;
  auto outcome = script.run(host, {Value(2)});
  INFO(outcome.message);
  REQUIRE(outcome.fragment.has_value());
  REQUIRE(outcome.fragment->nodes.size() == 2);
  CHECK(outcome.fragment->nodes[0].name == "t/work");
  CHECK(outcome.fragment->nodes[1].name == "t/work#2");
  CHECK(refs_of(outcome.fragment->result) == std::vector<uint32_t>{0, 1});
}

TEST_CASE("a service keeps its function and serves requests") {
  Files files = {
      {"p.lua",
       "local flow = require 'flow'\n"
       "local t = flow.service('t', { port = 0 }, function(ctx, model)\n"
       "  local calls = 0\n"
       "  return { predict = function(inputs) calls = calls + 1\n"
       "    if inputs.bad then error('no') end return { inputs.x + model, calls } end }\n"
       "end)\n"
       "return flow.pipeline('p', {}, function() t(1) end)"}};
  LoadedScript script(files);
  FakeHost host;
  auto outcome = script.vm->start_service(attempt_of(script.def(), {Value(10)}), host);
  INFO(outcome.message);
  REQUIRE(outcome.kind == Kind::succeeded);
  auto answer = script.vm->predict(Value::map({{Value("x"), Value(1)}}), {});
  REQUIRE(answer.ok());
  CHECK(to_json(answer->outputs) == "[11,1]");
  CHECK(script.vm->predict(Value::map({{Value("bad"), Value(1)}}), {}).error().message ==
        "p.lua:5: no");
  CHECK(to_json(script.vm->predict(Value::map({{Value("x"), Value(1)}}), {})->outputs) == "[11,3]");
  script.vm->end_service();
  CHECK_FALSE(script.vm->predict(Value(), {}).ok());
}

TEST_CASE("predict gets the requests of its batch as a second argument") {
  Files files = {
      {"p.lua",
       "local flow = require 'flow'\n"
       "local t = flow.service('t', { port = 0 }, function(ctx)\n"
       "  return { predict = function(inputs, request)\n"
       "    local rows = {}\n"
       "    for i, each in ipairs(request.requests) do\n"
       "      rows[i] = ('%s %d %s %s'):format(each.id, each.rows, each.trace_id, "
       "each.traceparent)\n"
       "      if each.parameters.top then rows[i] = each.parameters.top end\n"
       "      if each.input_parameters then rows[i] = each.input_parameters.x.a end\n"
       "    end\n"
       "    return { rows = rows, all = request.rows, id = request.id, trace = request.trace_id }\n"
       "  end }\n"
       "end)\n"
       "return flow.pipeline('p', {}, function() t() end)"}};
  LoadedScript script(files);
  FakeHost host;
  auto outcome = script.vm->start_service(attempt_of(script.def(), {}), host);
  INFO(outcome.message);
  REQUIRE(outcome.kind == Kind::succeeded);
  auto one = script.vm->predict(Value::map({}), {{"a", 2, "00-t", "t"}});
  REQUIRE(one.ok());
  CHECK(to_json(one->outputs) == R"({"all":2,"id":"a","rows":["a 2 t 00-t"],"trace":"t"})");
  auto two = script.vm->predict(Value::map({}), {{"a", 2, "00-t", "t"}, {"", 3, "", ""}});
  REQUIRE(two.ok());
  CHECK(to_json(two->outputs) == R"({"all":5,"rows":["a 2 t 00-t","nil 3 nil nil"]})");
  Value top = Value::map({{Value("top"), Value(0.5)}});
  Value of_x = Value::map({{Value("x"), Value::map({{Value("a"), Value(true)}})}});
  std::vector<PredictedRequest> requests(2);
  for (PredictedRequest& each : requests) each.rows = 1;
  requests[0].parameters = top;
  requests[1].input_parameters = of_x;
  auto with = script.vm->predict(Value::map({}), requests);
  REQUIRE(with.ok());
  CHECK(to_json(with->outputs) == R"({"all":2,"rows":[0.5,true]})");
}

TEST_CASE("predict may return a second table, for the response") {
  Files files = {{"p.lua",
                  "local flow = require 'flow'\n"
                  "local t = flow.service('t', { port = 0 }, function(ctx)\n"
                  "  return { predict = function(inputs)\n"
                  "    if inputs.plain then return { y = 1 } end\n"
                  "    return { y = 1 }, { parameters = { model = 'v3', top = inputs.top } }\n"
                  "  end }\n"
                  "end)\n"
                  "return flow.pipeline('p', {}, function() t() end)"}};
  LoadedScript script(files);
  FakeHost host;
  auto outcome = script.vm->start_service(attempt_of(script.def(), {}), host);
  INFO(outcome.message);
  REQUIRE(outcome.kind == Kind::succeeded);
  auto with = script.vm->predict(Value::map({{Value("top"), Value(0.5)}}), {});
  REQUIRE(with.ok());
  CHECK(to_json(with->outputs) == R"({"y":1})");
  CHECK(to_json(with->response) == R"({"parameters":{"model":"v3","top":0.5}})");
  auto plain = script.vm->predict(Value::map({{Value("plain"), Value(true)}}), {});
  REQUIRE(plain.ok());
  CHECK(plain->response.is_nil());
}

TEST_CASE("a response's tensors are the script's own, without a digest, and nothing is stored") {
  Files files = {
      {"p.lua",
       "local flow = require 'flow'\n"
       "local t = flow.service('t', { port = 0 }, function(ctx)\n"
       "  local sum = flow.zeros({ 2 }, { dtype = 'u8' })\n"
       "  return { predict = function(inputs) sum:add_(inputs.x) return { y = sum } end }\n"
       "end)\n"
       "return flow.pipeline('p', {}, function() t() end)"}};
  LoadedScript script(files);
  FakeHost host;
  auto outcome = script.vm->start_service(attempt_of(script.def(), {}), host);
  INFO(outcome.message);
  REQUIRE(outcome.kind == Kind::succeeded);
  Tensor x;  // of a request, without a digest
  x.dtype = DType::u8;
  x.shape = {2};
  x.data = std::make_shared<const std::string>("\x01\x02");
  auto first = script.vm->predict(Value::map({{Value("x"), Value(x)}}), {});
  REQUIRE(first.ok());
  CHECK(*first->outputs.find("y")->as_tensor().data == "\x01\x02");
  auto second = script.vm->predict(Value::map({{Value("x"), Value(x)}}), {});
  REQUIRE(second.ok());
  CHECK(first->outputs.find("y")->as_tensor().data->data() ==
        second->outputs.find("y")->as_tensor().data->data());
  CHECK(*second->outputs.find("y")->as_tensor().data == "\x02\x04");
  CHECK(second->outputs.find("y")->as_tensor().digest == Digest());
  CHECK(host.blobs.empty());
}

TEST_CASE("a script that returns no pipeline gets an error with what it returned") {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"local x = 1", "p.lua: the script returned nothing, not a pipeline; end it with"},
      {"return 5", "the script returned an integer, not a pipeline"},
      {"\x1bLua", "p.lua: this is compiled Lua; flow loads source text only"},
      {"return require('flow').task('t', print)", "the script returned the task `t`"},
      {"require('flow').pipeline('digits', {}, function() end)",
       "write `return` before its flow.pipeline(\"digits\", …)"},
      {"local p = require('flow').pipeline('p', {}, function() end) return p, 2",
       "the script returned 2 values"},
  };
  for (const auto& c : cases) {
    auto built = build({{"p.lua", c.text}});
    REQUIRE_FALSE(built.ok());
    CHECK(built.error().kind == ErrorKind::user);
    CHECK_THAT(built.error().message, Catch::Contains(c.message));
  }
}

TEST_CASE("a build gives the same plan every time") {
  Files files = {
      {"p.lua",
       "local flow = require 'flow'\n"
       "local t = flow.task('t', function(ctx, x) return x end)\n"
       "return flow.pipeline('p', {}, function()\n"
       "  local out = {}\n"
       "  for name, n in pairs { b = 2, a = 1, c = math.random(100) } do out[name] = t(n) end\n"
       "  return out\n"
       "end)"}};
  auto once = build(files), twice = build(files);
  REQUIRE(once.ok());
  REQUIRE(twice.ok());
  CHECK(encode_plan(once->plan) == encode_plan(twice->plan));
  CHECK(once->bundle.digest() == twice->bundle.digest());
}

TEST_CASE("the bundle has the script and every module, in the order of loading") {
  auto built = build({{"p.lua",
                       "require 'b' require 'a' local flow = require 'flow'\n"
                       "return flow.pipeline('p', {}, function() require 'c' end)"},
                      {"a.lua", "return 1"},
                      {"b.lua", "return require 'a'"},
                      {"c.lua", "return 3"},
                      {"unused.lua", "return 4"}});
  REQUIRE(built.ok());
  std::vector<std::string> names;
  for (const auto& [path, text] : built->bundle.files) names.push_back(path);
  CHECK(names == std::vector<std::string>{"p.lua", "b.lua", "a.lua", "c.lua"});
  CHECK(make_script_vm()->load(built->bundle).ok());
}

TEST_CASE("an attempt reports whether it may have left programs running or written to a stream") {
  auto [body, reaches] = GENERATE(
      table<std::string, bool>({{"return 1", false},
                                {"io.write('x') print('y') io.stderr:write('z') return 1", false},
                                {"return os.time()", false},
                                {"os.execute('true')", true},
                                {"local run = os.execute pcall(run, 'true') error('no')", true},
                                {"io.popen('true'):close() os.execute('true')", true},
                                {"io.open('/dev/null', 'w'):close()", true}}));
  INFO(body);
  LoadedScript script(body);
  FakeHost host;
  CHECK(script.run(host).reached_outside == reaches);
  CHECK(host.calls == std::vector<std::string>(reaches ? 1 : 0, "outside"));
}

TEST_CASE("functions with external effects wait until the attempt's start is durable") {
  const std::set<std::string> pure = {
      "io.close",       "io.flush",        "io.stderr",    "io.stdout",   "io.type",
      "io.write",       "os.clock",        "os.date",      "os.difftime", "os.exit",
      "os.getenv",      "os.setlocale",    "os.time",      "fs.basename", "fs.dirname",
      "fs.extension",   "fs.join",         "data.batches", "data.loader", "data.windows",
      "text.ends_with", "text.join",       "text.replace", "text.split",  "text.trim",
      "text.tokens",    "text.starts_with"};
  LoadedScript names(R"(
local found = { "operations" }
for library, functions in pairs { io = io, os = os, fs = flow.fs, data = flow.data,
                                  image = flow.image, text = flow.text,
                                  safetensors = flow.safetensors } do
  for name in pairs(functions) do found[#found + 1] = library .. "." .. name end
end
return found)");
  FakeHost asked;
  AttemptOutcome found = names.run(asked);
  INFO(found.message);
  REQUIRE(found.result.as_table().list.size() > 40);
  CHECK_FALSE(asked.waited_durable);
  for (const Value& name : found.result.as_table().list) {
    const std::string& full = name.as_string();
    std::string library = full.substr(0, 2) == "io" || full.substr(0, 2) == "os" ? "" : "flow.";
    LoadedScript script(
        "local reach = " + library + full +
        " local _, made = pcall(reach, '/dev/null/a', '/dev/null/b')"  // this path cannot exist
        " if reach == os.tmpname then os.remove(made) end return 1");
    FakeHost host;
    script.run(host);
    INFO(full);
    CHECK(host.waited_durable != pure.contains(full));
  }
}

TEST_CASE("an attempt after one with external effects does not report them") {
  LoadedScript script("if ... then os.execute('true') end");
  FakeHost host;
  CHECK(script.run(host, {Value(true)}).reached_outside);
  CHECK_FALSE(script.run(host, {Value(false)}).reached_outside);
}
