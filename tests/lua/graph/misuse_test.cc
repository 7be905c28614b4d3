// Every misuse has its own message: what, file and line, why, and the correction.
#include <catch2/catch.hpp>

#include "misuse.hpp"

using namespace flow::test;

TEST_CASE("a handle used as a value is an error with the correction") {
  const Case cases[] = {
      {"local h = count(1)\nreturn h + 1", "pipeline.lua:7: arithmetic on `count`"},
      {"local h = count(1)\nreturn -h", "pipeline.lua:7: arithmetic on `count`"},
      {"local h = count(1)\nreturn 2 // h.x", "pipeline.lua:7: arithmetic on `count.x`"},
      {"local h = count(1)\nreturn h & 1", "pipeline.lua:7: arithmetic on `count`"},
      {"return #count(1).rows", "pipeline.lua:6: `#` of `count.rows`"},
      {"return 'x' .. count(1)", "pipeline.lua:6: `..` of `count`"},
      {"return count(1) < 3", "pipeline.lua:6: comparison of `count`"},
      {"return 3 >= count(1)", "pipeline.lua:6: comparison of `count`"},
      {"return count(1) == count(2)", "pipeline.lua:6: comparison of `count`"},
      {"local h = count(1)\nh.x = 1", "pipeline.lua:7: assignment to a field of `count`"},
      {"return count(1)(2)", "pipeline.lua:6: `count` is called"},
      {"for k in pairs(count(1)) do end", "pipeline.lua:6: `pairs` of `count`"},
      {"for k in ipairs(count(1).x) do end", "pipeline.lua:6: `ipairs` of `count.x`"},
      {"return next(count(1))", "pipeline.lua:6: `next` of `count`"},
      {"return table.unpack(count(1))", "pipeline.lua:6: "},
      {"table.sort(count(1))", "pipeline.lua:6: "},
      {"return tostring(count(1))", "pipeline.lua:6: `tostring` of `count`"},
      {"return string.format('%s', count(1))", "pipeline.lua:6: `%s` of `count`"},
      {"return ('%d %s'):format(1, count(1)[2])", "pipeline.lua:6: `%s` of `count[2]`"},
      {"return count(1)[{}]", "pipeline.lua:6: `[…]` of a handle takes the name or the number"},
  };
  for (const Case& c : cases) {
    INFO(c.lines);
    CHECK_THAT(in_body(c.lines), Catch::StartsWith(c.error));
    CHECK_THAT(in_body(c.lines), Catch::Contains("a handle"));
  }
}

TEST_CASE("an error that a body raises has its text and its place") {
  CHECK(in_body("error('no')") == "pipeline.lua:6: no");
  CHECK(in_body("error({ code = 3 })") == "pipeline.lua:6: error {\"code\":3}");
  CHECK(in_body("error()") == "pipeline.lua:6: error without a message (nil)");
  CHECK(in_body("error({ message = 'm' })") == "m");
  CHECK(in_file("\nerror({ 1 })") == "pipeline.lua:3: error [1]");
}

TEST_CASE("print shows a handle") { CHECK(in_body("print(count(1).x[1], count)") == "built"); }

TEST_CASE("a method without a call is an error that says so") {
  const Case cases[] = {
      {"return count(count(1).after)",
       "pipeline.lua:6: `count` cannot take a method at argument 1: `h.after` is a method that was "
       "not called: write h:after(…); for a field of that name write h:part(\"after\")"},
      {"return { x = count(1).each }",
       "pipeline.lua:5: the body of pipeline `p` returned a method at result.x: `h.each` is"},
      {"return count(1).part + 1", "pipeline.lua:6: `h.part` is a method that was not called"},
      {"return count(1).after.x", "pipeline.lua:6: `h.after` is a method that was not called"},
      {"return count(1).after(count(2))",
       "pipeline.lua:6: `after` is called with a dot: write h:after(…), with a colon"},
      {"return count(1):aftr(count(2))", "pipeline.lua:6: `count.aftr` is called"},
      {"return count(1):aftr(count(2))", "pipeline.lua:6: "},
      {"return count(1):after(3)",
       "pipeline.lua:6: `:after` takes handles, and argument 1 is an integer"},
      {"return count(1):after({ count(2) })",
       "pipeline.lua:6: `:after` takes handles, and argument 1 is a table: write "
       "h:after(table.unpack(list))"},
      {"return count(1):after()", "pipeline.lua:6: `:after` takes the handles to come after"},
      {"return count(1):each()", "pipeline.lua:6: `:each` takes one name"},
      {"local h = count(1)\nh:after(h.x)", "pipeline.lua:7: `count` would wait for itself"},
      {"return flow.map(count, {}):limit(0)", "pipeline.lua:6: `:limit` takes how many"},
      {"return count(1):limit(2)", "pipeline.lua:6: `count.limit` is called"},
      {"return flow.map(count, {}):results { missing = 1 }",
       "pipeline.lua:6: `:results` takes one table"},
      {"return flow.map(inner, count(1))",
       "pipeline.lua:6: flow.map of the pipeline `inner` takes a list of tables of parameters"},
      {"return flow.map(inner, { 1 })",
       "pipeline.lua:6: flow.map of the pipeline `inner`: item 1 is"},
      {"return flow.map(inner, {}, 2)",
       "pipeline.lua:6: flow.map of the pipeline `inner` takes no more arguments"},
      {"return count:with()",
       "pipeline.lua:6: `with` takes one table of options: write count:with"},
      {"return count:with { env = {} }(1)",
       "pipeline.lua:6: task `count`: `with` can't change the option `env`"},
      {"return count:with { gpu_s = 1 }(1)",
       "pipeline.lua:6: task `count`: `with` has no option `gpu_s` (did you mean `gpus`?)"},
      {"return count:with { cpus = count(2) }(1)",
       "pipeline.lua:6: task `count`: the option `cpus` must be a number of CPUs, at least 0.001, "
       "but is a handle"},
      {"return count.with(1, {})", "pipeline.lua:6: `with` is a method of a task"},
      {"return count(1):tag(7)", "pipeline.lua:6: the tag of `count` is a string"},
      {"return flow.when(count(1).after, print)",
       "pipeline.lua:6: flow.when: `h.after` is a method"},
  };
  for (const Case& c : cases) {
    INFO(c.lines);
    CHECK_THAT(in_body(c.lines), Catch::StartsWith(c.error));
  }
  CHECK_THAT(in_body("return count(1):aftr(count(2))"),
             Catch::EndsWith("(did you mean `:after(…)`?)"));
}

TEST_CASE("a service's handle can be used for order and returned, but not as a value") {
  CHECK(in_body("local w = web(count(1))\ncount(2):after(w)\nreturn { w = w }") == "built");
  const Case cases[] = {
      {"return count(web(1))",
       "pipeline.lua:6: `count` cannot take the service `web` at argument 1: "
       "a service has no result: order with `x:after(service)`"},
      {"return count { deep = { web(1) } }",
       "pipeline.lua:6: `count` cannot take the service `web` at argument 1.deep[1]"},
      {"return web(1).url", "pipeline.lua:6: the service `web` has no part `url`"},
      {"return flow.map(count, web(1))", "pipeline.lua:6: flow.map of `count`: the service `web`"},
      {"return flow.when(web(1), print)", "pipeline.lua:6: flow.when: the service `web`"},
      {"return flow.map(web, { 1 })", "pipeline.lua:6: flow.map: `web` is a service"},
  };
  for (const Case& c : cases) {
    INFO(c.lines);
    CHECK_THAT(in_body(c.lines), Catch::StartsWith(c.error));
  }
}

TEST_CASE("the places where a task may be defined and called") {
  const Case cases[] = {
      {"local t = flow.task('t', print)",
       "pipeline.lua:6: flow.task defines `t` inside a pipeline's body: a task is defined while "
       "its "
       "file loads"},
      {"flow.pipeline('q', {}, print)", "pipeline.lua:6: flow.pipeline defines `q` inside"},
      {"return count.x", "pipeline.lua:6: `count` is a task and has no part `x`"},
      {"return count(count)",
       "pipeline.lua:6: `count` cannot take the task `count` at argument 1: call it"},
  };
  for (const Case& c : cases) {
    INFO(c.lines);
    CHECK_THAT(in_body(c.lines), Catch::StartsWith(c.error));
  }
  const Case files[] = {
      {"local t = flow.task('t', print)\nt(1)",
       "pipeline.lua:3: the task `t` is called while the script loads: call it inside the function "
       "of flow.pipeline, where a call becomes a node of the graph. An option that takes a task, "
       "such as the `gate` of a canary, takes it without a call"},
      {"flow.map(1, {})", "pipeline.lua:2: flow.map is called while the script loads"},
      {"flow.task('a b', print)",
       "pipeline.lua:2: flow.task: the name `a b` has the character ` `"},
      {"flow.task('ü', print)",
       "pipeline.lua:2: flow.task: the name `ü` has the character `ü`; a name is made of letters, "
       "digits, `_`, `.` and `-`"},
      {"flow.service('a\\xFFb', print)",
       "pipeline.lua:2: flow.service: the name `a\uFFFDb` has the character `\uFFFD`"},
      {"flow.task(('x'):rep(99) .. 'ü', print)",
       "pipeline.lua:2: flow.task: the name `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
       "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx` has 101 characters"},
      {"flow.service('..', print)",
       "pipeline.lua:2: flow.service: the name `..` is that of a folder in a path; take another"},
      {"flow.task('.', print)", "pipeline.lua:2: flow.task: the name `.` is that of a folder"},
      {"flow.task('', print)", "pipeline.lua:2: flow.task: the name `` has 0 characters"},
      {"flow.task(('x'):rep(101), print)", "pipeline.lua:2: flow.task: the name `xxx"},
      {"flow.task(7, print)", "pipeline.lua:2: the name of flow.task is a string, not an integer"},
      {"flow.task('t')",
       "pipeline.lua:2: flow.task of `t` has no function: write flow.task(\"name\""},
      {"flow.task('t', print, {})", "pipeline.lua:2: flow.task of `t`: argument 3 is a table"},
      {"flow.task('t', print)\n\nflow.task('t', print)",
       "pipeline.lua:4: two tasks of `pipeline.lua` are named `t`: the other is defined at line 2"},
      {"flow.shell('s')", "pipeline.lua:2: flow.shell of `s` has no command"},
      {"flow.shell('s', {})", "pipeline.lua:2: task `s`: flow.shell needs the option `command`"},
  };
  for (const Case& c : files) {
    INFO(c.lines);
    CHECK_THAT(in_file(c.lines), Catch::StartsWith(c.error));
  }
}

TEST_CASE("the error of an unknown or invalid option names the valid ones") {
  const Case cases[] = {
      {"{ retires = 3 }",
       "pipeline.lua:2: task `t`: unknown option `retires` (did you mean `retries`?); the options "
       "are: cpus, memory"},
      {"{ batchsize = 3 }", "pipeline.lua:2: task `t`: unknown option `batchsize`; "},
      {"{ command = 'x' }", "pipeline.lua:2: task `t`: the option `command` belongs to flow.shell"},
      {"{ port = 1 }", "pipeline.lua:2: task `t`: the option `port` belongs to flow.service"},
      {"{ 'cpus' }", "pipeline.lua:2: task `t`: the options are a table of names"},
      {"{ cpus = 0 }",
       "pipeline.lua:2: task `t`: the option `cpus` must be a number of CPUs, at least 0.001, but "
       "is `0`"},
      {"{ memory = 'lots' }",
       "pipeline.lua:2: task `t`: the option `memory`: `lots` is not a size"},
      {"{ timeout = 10 }",
       "pipeline.lua:2: task `t`: the option `timeout` must be a duration such as \"10m\", but is "
       "the number 10: write a string with the unit"},
      {"{ timeout = '10' }",
       "pipeline.lua:2: task `t`: the option `timeout`: `10` is not a duration"},
      {"{ gpus = 1.5 }",
       "pipeline.lua:2: task `t`: the option `gpus` must be a whole number of GPUs"},
      {"{ ranks = { min = 3, max = 2 } }",
       "pipeline.lua:2: task `t`: the option `ranks` is { min =, max = }, and its min, 3, is "
       "above its max, 2"},
      {"{ ranks = { min = 1 } }",
       "pipeline.lua:2: task `t`: the option `ranks` is { min =, max = }, where only min may be "
       "left out"},
      {"{ ranks = 100000 }",
       "pipeline.lua:2: task `t`: the option `ranks` must be a whole number of 1..4096, or { "
       "min =, max = }, but is `100000`"},
      {"{ ranks = { max = 4097 } }",
       "pipeline.lua:2: task `t`: the option `ranks.max` must be a whole number of 1..4096, but is "
       "`4097`"},
      {"{ retries = -1 }",
       "pipeline.lua:2: task `t`: the option `retries` must be a whole number from 0"},
      {"{ retries = { mx = 1 } }",
       "pipeline.lua:2: task `t`: the option `retries` has the unknown entry `mx` (did you mean "
       "`max`?)"},
      {"{ retries = { oom = { memory = '2' } } }",
       "pipeline.lua:2: task `t`: the option `retries.oom.memory` must be a factor from 1"},
      {"{ cache = {} }",
       "pipeline.lua:2: task `t`: the option `cache` must be true, false, or a salt"},
      {"{ env = { ['A-B'] = '1' } }",
       "pipeline.lua:2: task `t`: `A-B` in the option `env` is not a valid name of a variable: "},
      {"{ env = { A = true } }",
       "pipeline.lua:2: task `t`: the option `env.A` must be a string, or flow.env"},
      {"{ resources = { ['f\\0pga'] = 1 } }",
       "pipeline.lua:2: task `t`: `f"},  // including the text behind the NUL
      {"{ seed = print }",
       "pipeline.lua:2: task `t`: the option `seed` cannot take a function at seed"},
  };
  for (const Case& c : cases) {
    INFO(c.lines);
    CHECK_THAT(in_file(std::string("flow.task('t', ") + c.lines + ", print)"),
               Catch::StartsWith(c.error));
  }
}

TEST_CASE("a graph is built whatever its tasks require: only running it is rejected") {
  auto with = [](const char* option) {
    return in_file(std::string("local t = flow.task('t', { ") + option +
                   " }, print)\nreturn flow.pipeline('p', {}, function() return t() end)");
  };
  CHECK(with("gpus = 1") == "built");
  CHECK(with("ranks = 2") == "built");
  CHECK(with("ranks = { min = 1, max = 4 }") == "built");
}

TEST_CASE("map and when report the arguments that they take") {
  const Case cases[] = {
      {"return flow.map(print, {})",
       "pipeline.lua:6: flow.map takes a task first, and this is a function"},
      {"return flow.map(count, 3)",
       "pipeline.lua:6: flow.map of `count` takes a list 1..n or a handle to one, and this is "
       "an integer"},
      {"return flow.map(count, { 1, nil, 3 })",
       "pipeline.lua:6: flow.map of `count`: the list has nil at 2 and an item at 3; put "
       "flow.null"},
      {"return flow.map(count, { a = 1 })",
       "pipeline.lua:6: flow.map of `count`: the table has the key `a`, so it is not a list"},
      {"return flow.map(count, { [0] = 1 })",
       "pipeline.lua:6: flow.map of `count`: the list has an item at 0"},
      {"return flow.map(count, { 1, { f = print } })",
       "pipeline.lua:6: `count` cannot take a function at item 2.f"},
      {"return flow.when(count(1), 3)",
       "pipeline.lua:6: flow.when takes a handle and one or two functions, and argument 2 is an "
       "integer"},
      {"return flow.when(count(1), print, 3)", "pipeline.lua:6: flow.when: argument 3"},
      {"return flow.when(count(1), function() return 1, 2 end)",
       "pipeline.lua:6: flow.when: the first branch returns 2 values"},
      {"return flow.when(count(1), function() return print end)",
       "pipeline.lua:6: flow.when: the first branch returned a function at result"},
  };
  for (const Case& c : cases) {
    INFO(c.lines);
    CHECK_THAT(in_body(c.lines), Catch::StartsWith(c.error));
  }
}

TEST_CASE("a value that cannot be passed on is named by its path") {
  const Case cases[] = {
      {"return count({ layers = { 1, { forward = print } } })",
       "pipeline.lua:6: `count` cannot take a function at argument 1.layers[2].forward: what "
       "crosses an edge is nil, a boolean"},
      {"return count(1, coroutine.create(print))",
       "pipeline.lua:6: `count` cannot take a coroutine at argument 2"},
      {"return count(setmetatable({}, {}))",
       "pipeline.lua:6: `count` cannot take a table with a metatable at argument 1"},
      {"local t = {}\nt.a = { b = t }\nreturn count(t)",
       "pipeline.lua:8: `count` cannot take a table that contains itself at argument 1.a.b"},
      {"return count({ [1.5] = 1 })",
       "pipeline.lua:6: `count` cannot take the key 1.5 at argument 1: a key is a string"},
      {"return count({ x = { [{}] = 1 } })",
       "pipeline.lua:6: `count` cannot take a key that is a table at argument 1.x"},
      {"return count({ ['a b'] = print })",
       "pipeline.lua:6: `count` cannot take a function at argument 1[\"a b\"]"},
      {"local t = {}\nfor i = 1, 300 do t = { t } end\nreturn count(t)",
       "pipeline.lua:8: `count` cannot take a table nested too deep at argument 1[1][1]"},
      {"return count(flow.env('X'))",
       "pipeline.lua:6: `count` cannot take a flow.env at argument 1: it belongs into the option "
       "`env"},
      {"return print", "pipeline.lua:5: the body of pipeline `p` returned a function at result"},
      {"return 1, 2",
       "pipeline.lua:5: the body of pipeline `p` returned 2 values, the second an integer at "
       "result 2"},
  };
  for (const Case& c : cases) {
    INFO(c.lines);
    CHECK_THAT(in_body(c.lines), Catch::StartsWith(c.error));
  }
}

TEST_CASE("a cycle through after names its lines") {
  CHECK(in_body("local a = count(1)\nlocal b = count(a)\na:after(b)") ==
        "pipeline.lua:8: an `:after` closes a cycle, so none of its tasks could ever start: "
        "`count` waits "
        "for "
        "`count#2` waits for `count`; remove the `:after` of line 8");
  CHECK(in_body("local a = count(1)\nlocal b = count(2)\na:after(b)\nb:after(a)") ==
        "pipeline.lua:8: an `:after` closes a cycle, so none of its tasks could ever start: "
        "`count` waits "
        "for "
        "`count#2` waits for `count`; remove the `:after` of line 8");
  CHECK(in_body("local a = count(1)\nlocal b = count(2)\na:after(b)") == "built");
  CHECK_THAT(
      in_body(
          "local a, w = count(1)\nw = flow.when(a, function() return count(2) end)\na:after(w)"),
      Catch::StartsWith("pipeline.lua:8: an `:after` closes a cycle"));
}

TEST_CASE("a body cannot change what a task could have seen") {
  auto error = [](const std::string& before, const std::string& body) {
    return error_of(
        {"local flow = require 'flow'\nlocal memo = require 'memo'\n" + before +
             "\nreturn flow.pipeline('p', {}, function(p)\n" + body + "\nend)",
         {{"memo.lua",
           "local M = { seen = {} }\nlocal n = 0\nfunction M.add(k) M.seen[k] = true; n = "
           "n + 1 end\nfunction M.new() return setmetatable({}, M) end\nreturn M\n"}},
         {},
         {}});
  };
  CHECK(error("local n = 0", "n = n + 1") ==
        "pipeline.lua:4: the body of pipeline `p` assigns the captured variable `n` (in the "
        "function at "
        "pipeline.lua:4): no task would see it, because each starts from the state that the load "
        "left; pass "
        "it as an argument");
  CHECK_THAT(
      error("local conf = { deep = { rate = 1 } }", "conf.deep.rate = 2"),
      Catch::Contains("stores into `conf.deep.rate`, of a table made in the script's own file"));
  CHECK_THAT(error("local list = { 1, 2 }", "list[2] = nil"),
             Catch::Contains("stores into `list[2]`"));
  CHECK_THAT(
      error("local n = 0; local function bump() n = n + 1 end", "bump()"),
      Catch::Contains("assigns the captured variable `n` (in the function at pipeline.lua:3)"));
  CHECK_THAT(
      error("local inner; do local k = 0; inner = flow.pipeline('i', {}, function() k = 1 end) end",
            "inner()"),
      Catch::Contains("assigns the captured variable `k`"));
  CHECK(error("local n = 0", "memo.add('x'); local n = n; n = n + 1") == "built");
  CHECK(error("local made = memo.new()", "made.x = 1") == "built");
}
