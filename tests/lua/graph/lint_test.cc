// flow lint: finds in the source what Lua cannot detect, and nothing else.
#include <catch2/catch.hpp>

#include "lua/state/script.hpp"

namespace {

// The body starts at line 4.
std::vector<std::string> lint(const std::string& body) {
  return flow::lint_source(
      "p.lua",
      "local flow = require 'flow'\n"
      "local count = flow.task('count', function(ctx, x) if x then return not x end end)\n"
      "return flow.pipeline('p', { n = flow.param.int {} }, function(p)\n" +
          body + "\nend)\n");
}

}  // namespace

TEST_CASE("a handle where Lua has no hook causes a warning with its line") {
  const struct {
    const char* body;
    const char* warning;
  } cases[] = {
      {"local h = count(1)\nif h then end", "p.lua:5: `if` `h` does not test a result"},
      {"local h = count(1)\nif h.good then end", "p.lua:5: `if` `h.good`"},
      {"if count(1) then end", "p.lua:4: `if` `count(1)`"},
      {"local h = count(1)\nif p.n then elseif h then end", "p.lua:5: `if` `h`"},
      {"local h = count(1)\nlocal x = not h", "p.lua:5: `not` `h`"},
      {"local h = count(1)\nlocal x = h or 3", "p.lua:5: `or` `h`"},
      {"local h = count(1)\nlocal x = h and 3", "p.lua:5: `and` `h`"},
      {"local h = count(1)\nlocal x = h == 3", "p.lua:5: `==` `h`"},
      {"local h = count(1)\nlocal x = 3 ~= h[1].x", "p.lua:5: `~=` `h[1].x`"},
      {"local h = count(1)\nwhile h do end", "p.lua:5: `while` `h`"},
      {"local h = count(1)\nrepeat local x = 1 until h", "p.lua:5: `until` `h`"},
      {"local h = flow.map(count, {})\nif h then end", "p.lua:5: `if` `h`"},
      {"local h = count(1)\nlocal k = h.part\nif k then end", "p.lua:6: `if` `k`"},
      {"local h\nh = count(1):after(count(2))\nif h then end", "p.lua:6: `if` `h`"},
      {"local h = count(1)\nflow.when(h, function() if h then end end)", "p.lua:5: `if` `h`"},
  };
  for (const auto& c : cases) {
    INFO(c.body);
    auto warnings = lint(c.body);
    REQUIRE(warnings.size() == 1);
    CHECK_THAT(warnings[0], Catch::StartsWith(c.warning));
  }
}

TEST_CASE("other values, and correct uses of handles, cause no warning") {
  const char* bodies[] = {
      "local h = count(1)\nreturn count(h)",
      "if p.n then return count(1) end",
      "local h = p.n and count(1) or count(2)\nreturn h",
      "local h = p.n or count(2)\nreturn { h }",
      "local h = count(1)\ndo local h = 3 if h then end end",
      "local h = count(1)\nh = 3\nif h then end",
      "local h = count(1)\nlocal function f(h) if h then end end",
      "local h = count(1)\nfor i, h in ipairs({}) do if h then end end",
      "local h = count(1)\nlocal t = { h = 1 }\nif t.h then end",
      "-- if h then\nlocal s = 'if h then' local l = [[ not h ]]\nlocal h = count(1) return h",
      "for _, x in ipairs({ count(1) }) do end",
      "local h = count(1)\nif p.h == 3 then end",
      "if type(count) == 'x' then end",
  };
  for (const char* body : bodies) {
    INFO(body);
    auto warnings = lint(body);
    CHECK(warnings.empty());
    for (const std::string& warning : warnings) UNSCOPED_INFO(warning);
  }
}

TEST_CASE("a dynamic task's body is checked, other functions are not") {
  std::string head = "local flow = require 'flow'\nlocal t = flow.task('t', function() end)\n";
  CHECK(flow::lint_source("p.lua", head +
                                       "local d = flow.dynamic('d', { cpus = 1 }, function(ctx)\n"
                                       "local h = t(1) return not h end)")
            .size() == 1);
  CHECK(flow::lint_source("p.lua", head + "local function f() local h = t(1) return not h end")
            .empty());
  CHECK(flow::lint_source("p.lua", "if (((").empty());
  CHECK(flow::lint_source("p.lua", "local x = [==[ never closed").empty());
  CHECK(flow::lint_source("p.lua", "end end end until function(").empty());
}
