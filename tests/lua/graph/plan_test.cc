// Goldens: the nodes of a plan, their names, edges and guards.
#include <catch2/catch.hpp>

#include "build.hpp"

using flow::test::build;
using flow::test::plan_of;

namespace {

const std::string kHead =
    "local flow = require 'flow'\n"
    "local ingest = flow.task('ingest', function(ctx, path) end)\n"
    "local train = flow.task('train', { retries = 3 }, function(ctx, data, hp) end)\n"
    "local split = flow.shell('split', { outputs = { parts = 'part.*' }, command = [[split "
    "{corpus} "
    "part.]] })\n"
    "local merge = flow.shell('merge', { args = { 'files' }, command = 'cat {files}' })\n"
    "local web = flow.service('web', { port = 0, batch = { max = 32, wait = '2ms' } }, "
    "function(ctx, m) "
    "end)\n";

std::string plan(const std::string& params, const std::string& body) {
  return plan_of(
      {kHead + "return flow.pipeline('p', " + params + ", function(p)\n" + body + "\nend)",
       {},
       {},
       {}});
}

}  // namespace

TEST_CASE("calls become nodes, named after their tasks in call order") {
  CHECK(plan("{}",
             "local data = ingest('x')\n"
             "local a = train(data.train, { lr = 0.5, rows = { data.n } })\n"
             "local b = train(data[1][true], nil, nil)\n"
             "web(a):after(b, data)\n"
             "return { model = a, b:part('after'), data:each('bam') }") ==
        "ingest {\"x\"}\n"
        "train {<ingest.train>, {lr=0.5, rows={<ingest.n>}}}\n"
        "train#2 {<ingest[1]" +
            std::string("[true]") +
            ">}\n"
            "web {<train>} after train#2 after ingest\n"
            "-> {<train#2.after>, <ingest:bam>, model=<train>}\n");
}

TEST_CASE("a map is one node over a list or a handle") {
  CHECK(plan("{}",
             "local s = split { corpus = 'c' }\n"
             "local m = flow.map(train, s.parts, { lr = 1 }):limit(4)\n"
             "local n = flow.map(train, { s.parts[1], 2, flow.null })\n"
             "local none = flow.map(train, {})\n"
             "m:after(none)\n"
             "return merge(flow.map(merge, m):each('stdout'))") ==
        "split {{corpus=\"c\"}} named\n"
        "train map <split.parts> {{lr=1}} limit 4 after train#3\n"
        "train#2 map {<split.parts[1]>, 2, null} {}\n"
        "train#3 map {} {}\n"
        "merge map <train> {} named\n"
        "merge#2 {<merge:stdout>}\n"
        "-> <merge#2>\n");
}

TEST_CASE("a when guards the nodes of its branches and joins what they return") {
  CHECK(plan("{}",
             "local a = ingest(1)\n"
             "local r = flow.when(a.good, function()\n"
             "  local t = train(a)\n"
             "  return flow.when(t.best, function() return { train(t) } end)\n"
             "end, function() return 'none' end)\n"
             "local plain = flow.when(false, function() return ingest(2) end, function() return 7 "
             "end)\n"
             "local null = flow.when(flow.null, function() return ingest(3) end)\n"
             "return { r.x, plain, null }") ==
        "ingest {1}\n"
        "when when <ingest.good> then <when#2> else \"none\"\n"
        "train {<ingest>} if when\n"
        "when#2 when <train.best> then {<train#2>} else null if when\n"
        "train#2 {<train>} if when#2\n"
        "-> {<when.x>, 7}\n");
}

TEST_CASE("a pipeline within a body is inlined under its name") {
  std::string head = kHead +
                     "local inner = flow.pipeline('inner', { data = flow.param.path {}, n = "
                     "flow.param.int { default = 2, max = 5 } }, function(p)\n"
                     "  local i = ingest(p.data)\n"
                     "  return { out = train(i, p.n) }\n"
                     "end)\n"
                     "return flow.pipeline('outer', {}, function()\n";
  CHECK(plan_of({head + "local a = inner { data = ingest(1).path }\n"
                        "local b = inner { data = 'x.csv', n = 3 }\n"
                        "return { a.out, b.out }\nend)",
                 {},
                 {},
                 {}}) ==
        "ingest {1}\n"
        "inner/ingest {<ingest.path>}\n"
        "inner/train {<inner/ingest>, 2}\n"
        "inner#2/ingest {file x.csv}\n"
        "inner#2/train {<inner#2/ingest>, 3}\n"
        "-> {<inner/train>, <inner#2/train>}\n");
  auto error = [&](const char* call) { return plan_of({head + call + "\nend)", {}, {}, {}}); };
  CHECK(error("return inner { dat = 'x' }") ==
        "error: pipeline.lua:12: the pipeline `inner`: unknown parameter `dat` (did you mean "
        "`data`?); its "
        "parameters are: data, n");
  CHECK(error("return inner {}") ==
        "error: pipeline.lua:12: the pipeline `inner`: the parameter `data` is required");
  CHECK(error("return inner { data = 'x', n = 9 }") ==
        "error: pipeline.lua:12: the pipeline `inner`: the parameter `n` must be at most 5, but is "
        "`9`");
  CHECK_THAT(error("return inner(3)"), Catch::Contains("is called with one table of parameters"));
}

TEST_CASE("tasks of different files share a name and its numbers") {
  CHECK(plan_of(
            {"local flow = require 'flow'\n"
             "local other = require 'other'\n"
             "local t = flow.task('t', print)\n"
             "local made = other.make('made')\n"
             "return flow.pipeline('p', {}, function() return { t(1), other.t(2), made(3) } end)",
             {{"other.lua",
               "local flow = require 'flow'\n"
               "return { t = flow.task('t', print), make = function(n) return flow.task(n, print) "
               "end }\n"}},
             {},
             {}}) ==
        "t {1}\n"
        "t#2 {2}\n"
        "made {3}\n"
        "-> {<t>, <t#2>, <made>}\n");
}

TEST_CASE("definitions keep their options, in units of the plan") {
  flow::test::Folder folder;
  auto built = build(
      {"local flow = require 'flow'\n"
       "local t = flow.task('t', { cpus = 0.5, memory = '2GiB', timeout = '10m', cache = 'v2', "
       "priority = "
       "-3, queue = 'q', seed = 7, env = { TOKEN = flow.env('SECRET'), MODE = 'fast', N = 3 }, "
       "retries = { "
       "max = 2, backoff = '1.5s', factor = 3, cap = '2m', oom = { max = 1, memory = 'x4' }, infra "
       "= 9 } "
       "}, print)\n"
       "local s = flow.shell('s', { args = { 'a' }, outputs = { z = 'z', b = '*.b' }, shell = { "
       "'sh', '-c' "
       "}, stage = 'copy', cache = false, command = 'cat {a}' })\n"
       "local w = flow.service('w', { port = 8080, batch = { max = 8, wait = '2ms' } }, print)\n"
       "local unused = flow.task('unused', print)\n"
       "return flow.pipeline('p', {}, function() return { s(1), t(2), w() } end)",
       {},
       {},
       {}},
      folder);
  REQUIRE(built.ok());
  const auto& defs = built->plan.defs;
  REQUIRE(defs.size() == 3);
  CHECK(defs[0].name == "s");
  CHECK(defs[0].ordinal == 1);
  CHECK(defs[0].shell.outputs ==
        std::vector<std::pair<std::string, std::string>>{{"b", "*.b"}, {"z", "z"}});
  CHECK(defs[0].shell.shell == std::vector<std::string>{"sh", "-c"});
  CHECK(defs[0].stage_copy);
  CHECK(!defs[0].cache);
  CHECK(defs[0].cache_written);
  const flow::TaskDef& t = defs[1];
  CHECK(t.file == "pipeline.lua");
  CHECK(t.line == 2);
  CHECK(t.resources.cpus_milli == 500);
  CHECK(t.resources.memory_bytes == int64_t{2} << 30);
  CHECK(t.timeout_ms == 600'000);
  CHECK(t.cache);
  CHECK(t.cache_salt == "v2");
  CHECK(t.priority == -3);
  CHECK(t.queue == "q");
  CHECK(!t.seed.empty());
  REQUIRE(t.env.size() == 3);
  CHECK(t.env[0].name == "MODE");
  CHECK(t.env[1].value == "3");
  CHECK(t.env[2].from_submitter);
  CHECK(t.env[2].value == "SECRET");
  CHECK(t.retry.max == 2);
  CHECK(t.retry.backoff_ms == 1500);
  CHECK(t.retry.factor == 3);
  CHECK(t.retry.cap_ms == 120'000);
  CHECK(t.retry.oom_max == 1);
  CHECK(t.retry.oom_memory_factor == 4);
  CHECK(t.retry.infra == 9);
  CHECK(defs[2].service.port == 8080);
  CHECK(defs[2].service.batch_wait_us == 2000);
  CHECK(flow::check_plan(built->plan).empty());
}

TEST_CASE("lists that a script passes to an inlined pipeline may hold handles") {
  flow::test::Folder folder;
  auto built = build({"local flow = require 'flow'\n"
                      "local t = flow.task('t', print)\n"
                      "local inner = flow.pipeline('inner', { r = flow.param.files {}, l = "
                      "flow.param.list { of = 'path' } }, function(p) return t(p.r, p.l) end)\n"
                      "return flow.pipeline('p', {}, function()\n"
                      "  return inner { r = { t(1).a }, l = { t(2) } }\n"
                      "end)",
                      {},
                      {},
                      {}},
                     folder);
  REQUIRE(built.ok());
  CHECK(flow::test::plan_text(built->plan) ==
        "t {1}\n"
        "t#2 {2}\n"
        "inner/t {{<t.a>}, {<t#2>}}\n"
        "-> <inner/t>\n");
}

TEST_CASE("a map over a pipeline inlines it for each item") {
  flow::test::Folder folder;
  auto built =
      build({"local flow = require 'flow'\n"
             "local t = flow.task('t', print)\n"
             "local inner = flow.pipeline('inner', { n = flow.param.int {} }, function(p)\n"
             "  if p.n == 2 then t(p.n) return end\n"
             "  return t(p.n).x\n"
             "end)\n"
             "return flow.pipeline('p', {}, function()\n"
             "  return flow.map(inner, { { n = 1 }, { n = 2 }, { n = 3 } })\n"
             "end)",
             {},
             {},
             {}},
            folder);
  REQUIRE(built.ok());
  CHECK(flow::test::plan_text(built->plan) ==
        "inner/t {1}\n"
        "inner#2/t {2}\n"
        "inner#3/t {3}\n"
        "-> {<inner/t.x>, null, <inner#3/t.x>}\n");
}

TEST_CASE("`with` gives a call other options, of the same task and under its name") {
  flow::test::Folder folder;
  auto built = build(
      {"local flow = require 'flow'\n"
       "local t = flow.task('t', { cpus = 2, memory = '1G', retries = { max = 4, backoff = '9s' }, "
       "resources = { fpga = 1 } }, print)\n"
       "local four = t:with { cpus = 4 }\n"
       "return flow.pipeline('p', {}, function()\n"
       "  local list = { t(1), four(2), t:with { cpus = 4 }(3) }\n"
       "  list[4] = four:with { retries = 1, resources = { license = 2 }, ranks = { min = 2, max = "
       "3 }, "
       "on_error = 'ignore', timeout = '5s' }(4)\n"
       "  list[5] = flow.map(t:with { ranks = 2 }, { 5 })\n"
       "  return list\n"
       "end)",
       {},
       {},
       {}},
      folder);
  REQUIRE(built.ok());
  const flow::Plan& plan = built->plan;
  CHECK(flow::check_plan(plan).empty());
  REQUIRE(plan.nodes.size() == 5);
  REQUIRE(plan.defs.size() == 4);  // the second and the third call ask for the same
  CHECK(plan.nodes[0].name == "t");
  CHECK(plan.nodes[3].name == "t#4");
  CHECK(plan.nodes[1].def == plan.nodes[2].def);
  auto def = [&](size_t node) { return plan.defs[plan.nodes[node].def]; };
  for (size_t node = 0; node < 5; node++) {
    CHECK(def(node).name == "t");
    CHECK(def(node).ordinal == 0);
    CHECK(def(node).code == def(0).code);
    CHECK(def(node).resources.memory_bytes == int64_t{1} << 30);
  }
  CHECK(!def(0).code.is_zero());
  CHECK(def(0).resources.cpus_milli == 2000);
  CHECK(def(1).resources.cpus_milli == 4000);
  CHECK(def(1).retry.backoff_ms == 9000);
  CHECK(def(1).resources.custom_resources.size() == 1);
  CHECK(def(3).resources.cpus_milli == 4000);
  CHECK(def(3).retry.max == 1);
  CHECK(def(3).retry.backoff_ms == flow::RetryPolicy().backoff_ms);
  REQUIRE(def(3).resources.custom_resources.size() == 1);
  CHECK(def(3).resources.custom_resources[0].first == "license");
  CHECK(def(3).resources.ranks == 2);
  CHECK(def(3).resources.ranks_max == 3);
  CHECK(def(3).ignores_failure);
  CHECK(def(3).timeout_ms == 5000);
  CHECK(def(4).resources.ranks == 2);
}

TEST_CASE("with a dynamic task the variants made by `with` follow all tasks in the plan") {
  flow::test::Folder folder;
  auto built = build({"local flow = require 'flow'\n"
                      "local a = flow.task('a', print)\n"
                      "local large = a:with { cpus = 7 }\n"
                      "local d = flow.dynamic('d', function(ctx) return large(1) end)\n"
                      "return flow.pipeline('p', {}, function()\n"
                      "  return { d(), a:with { cpus = 8 }(), large() }\n"
                      "end)",
                      {},
                      {},
                      {}},
                     folder);
  REQUIRE(built.ok());
  REQUIRE(built->plan.defs.size() == 4);
  CHECK(built->plan.defs[2].resources.cpus_milli == 7000);
  CHECK(built->plan.nodes[0].def == 1);
  CHECK(built->plan.nodes[1].def == 3);
  CHECK(built->plan.nodes[2].def == 2);
  CHECK(built->plan.defs[2].code == built->plan.defs[0].code);
}

TEST_CASE("more CPUs than any machine has may be requested, and the machine clamps them") {
  flow::test::Folder folder;
  auto built = build({"local flow = require 'flow'\n"
                      "local t = flow.task('t', { cpus = 1e9 }, print)\n"
                      "return flow.pipeline('p', {}, function() return t() end)",
                      {},
                      {},
                      {}},
                     folder);
  REQUIRE(built.ok());
  CHECK(built->plan.defs[0].resources.cpus_milli == 100'000'000);
  CHECK(flow::check_plan(built->plan).empty());
}

TEST_CASE("with a dynamic task every task is in the plan, by its ordinal") {
  flow::test::Folder folder;
  auto built = build({"local flow = require 'flow'\n"
                      "local a = flow.task('a', print)\n"
                      "local b = flow.task('b', print)\n"
                      "local d = flow.dynamic('d', function(ctx) return a(1) end)\n"
                      "return flow.pipeline('p', {}, function() return { d(), b() } end)",
                      {},
                      {},
                      {}},
                     folder);
  REQUIRE(built.ok());
  REQUIRE(built->plan.defs.size() == 3);
  for (uint32_t i = 0; i < 3; i++) CHECK(built->plan.defs[i].ordinal == i);
  CHECK(built->plan.nodes[0].def == 2);
  CHECK(built->plan.nodes[1].def == 1);
}

TEST_CASE("a dynamic task's key counts the order of tasks, by which its calls name them") {
  auto code = [](const std::string& more) {
    flow::test::Folder folder;
    auto built = build({"local flow = require 'flow'\n" + more +
                            "local a = flow.task('a', print)\n"
                            "local d = flow.dynamic('d', function(ctx) return a(1) end)\n"
                            "return flow.pipeline('p', {}, function() return d() end)",
                        {},
                        {},
                        {}},
                       folder);
    REQUIRE(built.ok());
    return built->plan.defs[built->plan.nodes[0].def].code;
  };
  CHECK(code("") == code("\n-- a comment\n"));
  CHECK(code("") != code("local b = flow.task('b', print)\n"));
}

TEST_CASE("a hundred thousand calls are built") {
  flow::test::Folder folder;
  auto built = build({"local flow = require 'flow'\n"
                      "local t = flow.task('t', print)\n"
                      "return flow.pipeline('p', {}, function()\n"
                      "  local last\n"
                      "  for i = 1, 100000 do last = t(i, last) end\n"
                      "  return last\nend)",
                      {},
                      {},
                      {}},
                     folder);
  REQUIRE(built.ok());
  CHECK(built->plan.nodes.size() == 100'000);
  CHECK(built->plan.nodes.back().name == "t#100000");
}
