// Tables may nest to a depth of 200: one more level is an error of the function that takes the
// value, with its path.
#include <catch2/catch.hpp>

#include "vm.hpp"

using namespace flow;
using namespace flow::test;

namespace {

const std::string kDeep =
    "local flow = require 'flow'\n"
    "local function deep(n) local t = 1 for i = 1, n do t = { x = t } end return t end\n"
    "local item = flow.task('item', function(ctx, x) return x end)\n";

/// The error of a task whose function is `body`, at line 4; "" for success.
std::string in_task(const std::string& body, const std::string& kind = "task") {
  auto built = build({{"p.lua", kDeep + "local t = flow." + kind + "('t', function(ctx) " + body +
                                    " end)\nreturn flow.pipeline('p', {}, function() t() end)"}});
  INFO((built.ok() ? "" : built.error().message));
  REQUIRE(built.ok());
  auto vm = make_script_vm();
  REQUIRE(vm->load(built->bundle).ok());
  for (const TaskDef& def : built->plan.defs) {
    if (def.name != "t") continue;
    FakeHost host;
    return vm->run(attempt_of(def), host).message;
  }
  FAIL("no task t");
  return "";
}

/// The error of a pipeline whose body is `body`, at line 4, or "built".
std::string in_body(const std::string& body) {
  auto built =
      build({{"p.lua", kDeep + "return flow.pipeline('p', {}, function() " + body + " end)"}});
  return built.ok() ? "built" : built.error().message;
}

}  // namespace

TEST_CASE("a task's result nests to 200, and its error has the path") {
  const struct {
    const char *before, *after, *error;
  } cases[] = {
      {"return deep(", ")", "t returned a table nested too deep at result.x.x"},
      {"ctx:step('s', function() return deep(", ") end)",
       "cannot take a table nested too deep at the result of step `s`.x.x"},
      {"ctx:checkpoint(deep(", "))", "cannot take a table nested too deep at checkpoint.x.x"},
  };
  for (const auto& c : cases) {
    INFO(c.before);
    CHECK(in_task(std::string(c.before) + "200" + c.after) == "");
    std::string error = in_task(std::string(c.before) + "201" + c.after);
    CHECK_THAT(error, Catch::StartsWith(std::string("p.lua:4: ") + c.error));
    CHECK_THAT(error, Catch::EndsWith("tables nest to 200 at most"));
  }
  CHECK_THAT(in_task("return item(deep(201))", "dynamic"),
             Catch::StartsWith("p.lua:4: `item` cannot take a table nested too deep at argument "
                               "1.x.x"));
}

TEST_CASE("a body's result nests to 200, and its error has the path") {
  const struct {
    const char *before, *after, *error;
  } cases[] = {
      {"item(deep(", "))", "`item` cannot take a table nested too deep at argument 1.x.x"},
      {"flow.map(item, { 1, deep(", ") })",
       "`item` cannot take a table nested too deep at item 2.x.x"},
      {"return deep(", ")",
       "the body of pipeline `p` returned a table nested too deep at result.x.x"},
  };
  for (const auto& c : cases) {
    INFO(c.before);
    CHECK(in_body(std::string(c.before) + "200" + c.after) == "built");
    CHECK_THAT(in_body(std::string(c.before) + "201" + c.after),
               Catch::StartsWith(std::string("p.lua:4: ") + c.error));
  }
}

TEST_CASE("JSON that a task reads nests to 200") {
  CHECK(in_task("flow.json.decode(('['):rep(200) .. (']'):rep(200))") == "");
  CHECK_THAT(in_task("flow.json.decode(('['):rep(201) .. (']'):rep(201))"),
             Catch::StartsWith("p.lua:4: flow.json.decode: this JSON cannot be read: it is nested "
                               "deeper than 200"));
}
