// The code part of a key, for each kind of Lua function and value.
#include <catch2/catch.hpp>

#include "vm.hpp"

using namespace flow;
using namespace flow::test;

namespace {

/// The code of the task `t` with the function `body`, defined after `above`; it may `require "m"`.
Digest code(const std::string& above, const std::string& body,
            const std::string& module = "return {}") {
  auto built = build({{"p.lua", "local flow = require 'flow'\n" + above +
                                    "\nlocal t = flow.task('t', function(ctx, ...) " + body +
                                    " end)\nreturn flow.pipeline('p', {}, function() t() end)\n"},
                      {"m.lua", module}});
  INFO((built.ok() ? "" : built.error().message));
  REQUIRE(built.ok());
  REQUIRE(built->plan.defs.size() == 1);
  return built->plan.defs[0].code;
}

struct Edit {
  const char *above, *body;  // before the edit
  const char *above_after, *body_after;
};

}  // namespace

TEST_CASE("another spelling of the same instructions and values keeps a task's code") {
  const Edit edits[] = {
      {"", "return 'a'", "", "return \"a\""},
      {"", "return 'a\\nb'", "", "return [[a\nb]]"},
      {"", "return 16, 100.0", "", "return 0x10, 1e2"},
      {"", "return 3", "", "return (1 + 2)"},
      {"", "goto a; ::a:: return 1", "", "goto b; ::b:: return 1"},
      {"", "for i = 1, 3 do ctx(i) end", "", "for k = 1, 3 do ctx(k) end"},
      {"", "for k, v in pairs(ctx) do k(v) end", "", "for a, b in pairs(ctx) do a(b) end"},
      {"", "local f <const> = 1 return f", "", "local g <const> = 1 return g"},
      {"local function f() return 1 end", "return f()", "local f = function() return 1 end",
       "return f()"},
      {"local a, b = 1, 2", "return a, b", "local b = 2 local unused = {} local a = 1",
       "return a, b"},
      {"local x = 0.1 + 0.2", "return x", "local x = 0.30000000000000004", "return x"},
      {"local s = 'a' .. 'b'", "return s", "local s = 'ab'", "return s"},
      {"local r = { 1, 2, 3 }", "return r", "local r = {} for i = 3, 1, -1 do r[i] = i end",
       "return r"},
      {"local r = { a = 1 }", "return r", "local r = { a = 1, b = 2 } r.b = nil", "return r"},
      {"local mt = { __index = { a = 1 } } local r = setmetatable({}, mt)", "return r",
       "local r = setmetatable({}, { __index = { a = 1 } })", "return r"},
      {"local m = require 'm'", "return 1", "", "return 1"},
      {"local c = { seen = {} } c.seen.me = c", "return c",
       "local d = { seen = {} } d.seen.me = d local c = d", "return c"},
      {"local n = 0 local function f() n = n + 1 return n end", "return f()",
       "local k = 0 local function f()\n -- counts\n k = k + 1 return k end", "return f()"},
      {"local f function f(n) return n == 0 or f(n - 1) end", "return f(1)",
       "local function f(n) return n == 0 or f(n - 1) end", "return f(1)"},
  };
  for (const Edit& edit : edits) {
    INFO(edit.above << " | " << edit.body << " -> " << edit.above_after << " | "
                    << edit.body_after);
    CHECK(code(edit.above, edit.body) == code(edit.above_after, edit.body_after));
  }
}

TEST_CASE("another constant, type, jump, call or capture changes a task's code") {
  const Edit edits[] = {
      {"", "return 1", "", "return '1'"},
      {"", "return 2^53", "", "return 1 << 53"},
      {"", "return 0.0", "", "return -0.0"},
      {"", "return math.huge", "", "return -math.huge"},
      {"", "return true", "", "return false"},
      {"", "return nil", "", "return false"},
      {"", "return 'a'", "", "return 'a\\0'"},
      {"", "return ctx < 1", "", "return ctx <= 1"},
      {"", "return ctx < 1", "", "return ctx > 1"},
      {"", "return ctx == 1", "", "return ctx ~= 1"},
      {"", "return ctx // 2", "", "return ctx / 2"},
      {"", "return ctx & 1", "", "return ctx | 1"},
      {"", "return #ctx", "", "return -ctx"},
      {"", "return ctx.a", "", "return ctx.b"},
      {"", "return ctx:up()", "", "return ctx:down()"},
      {"", "return ctx:up()", "", "return ctx.up(ctx)"},
      {"", "return ctx(1)", "", "return (ctx(1))"},
      {"", "return ...", "", "return (...)"},
      {"", "return select('#', ...)", "", "return select(1, ...)"},
      {"", "local a = ... return a", "", "local a, b = ... return a"},
      {"", "return { 1, 2 }", "", "return { 2, 1 }"},
      {"", "return { a = 1 }", "", "return { b = 1 }"},
      {"", "return { 1 }", "", "return { [2] = 1 }"},
      {"", "for i = 1, 3 do ctx(i) end", "", "for i = 1, 4 do ctx(i) end"},
      {"", "for i = 1, 3 do ctx(i) end", "", "for i = 1, 3, 2 do ctx(i) end"},
      {"", "::a:: ctx() if ctx then goto a end", "", "ctx() ::a:: if ctx then goto a end"},
      {"", "while ctx() do end", "", "repeat until ctx()"},
      {"", "local x <close> = ctx", "", "local x = ctx"},
      {"", "local a, b = 1, 1 return function() return a end, function() return a end", "",
       "local a, b = 1, 1 return function() return a end, function() return b end"},
      {"", "return function(...) return ... end", "", "return function(a) return a end"},
      {"local r = 1", "return r", "local r = 1.0", "return r"},
      {"local r = 1", "return r", "local r = '1'", "return r"},
      {"local r = nil", "return r", "local r = false", "return r"},
      {"local r = { 1, 2 }", "return r", "local r = { 1.0, 2.0 }", "return r"},
      {"local r = { 1, 2 }", "return r", "local r = { 2, 1 }", "return r"},
      {"local r = { [1] = true }", "return r", "local r = { ['1'] = true }", "return r"},
      {"local r = { [true] = 1 }", "return r", "local r = { [false] = 1 }", "return r"},
      {"local r = { f = math.min }", "return r", "local r = { f = math.max }", "return r"},
      {"local f = function(x) return x end", "return f", "local f = function(x, y) return x end",
       "return f"},
      {"local n = 1 local function f() return function() return n end end", "return f()()",
       "local n = 2 local function f() return function() return n end end", "return f()()"},
      {"local n = 0 local r = { function() n = 1 end, function() return n end }", "return r",
       "local n, m = 0, 0 local r = { function() n = 1 end, function() return m end }", "return r"},
      {"local mt = {} local a, b = setmetatable({}, mt), setmetatable({}, mt)", "return a, b",
       "local a, b = setmetatable({}, {}), setmetatable({}, {})", "return a, b"},
      {"local r = setmetatable({}, { __add = function() return 1 end })", "return r",
       "local r = setmetatable({}, { __add = function() return 2 end })", "return r"},
      {"local f function f(n) return n == 0 or f(n - 1) end", "return f(1)",
       "local g = function() end local f function f(n) return n == 0 or g(n - 1) end",
       "return f(1)"},
      {"local x = flow.ones(2)", "return x", "local x = flow.zeros(2)", "return x"},
      {"local x = flow.ones(2)", "return x", "local x = flow.ones(1, 2)", "return x"},
      {"local x = flow.ones(2)", "return x", "local x = flow.ones({ 2 }, 'f64')", "return x"},
  };
  for (const Edit& edit : edits) {
    INFO(edit.above << " | " << edit.body << " -> " << edit.above_after << " | "
                    << edit.body_after);
    CHECK(code(edit.above, edit.body) != code(edit.above_after, edit.body_after));
  }
}

TEST_CASE("a helper in another module counts by its instructions and its captures") {
  const std::string above = "local f = require('m').f";
  const std::string module = "local n = 1 local M = {} function M.f() return n end return M";
  Digest before = code(above, "return f()", module);
  CHECK(before == code(above, "return f()",
                       "-- why\nlocal k = 1\nlocal M = {}\nlocal function unused() end\n"
                       "function M.f()\n  return k\nend\nreturn M"));
  CHECK(before !=
        code(above, "return f()", "local n = 2 local M = {} function M.f() return n end return M"));
  CHECK(before != code(above, "return f()",
                       "local n = 1 local M = {} function M.f() return n, n end return M"));
}

TEST_CASE("a value without a canonical form counts by the text of every module") {
  const char* captures[] = {
      "local m = require 'm' local g = m.x:gmatch('%w+')",
      "local m = require 'm' local x = m.x local g = coroutine.wrap(function() return x end)",
      "local m = require 'm' local g = coroutine.create(m.f)",
      "local g = require('m').g",
      "local m = require 'm' local g = { deep = { m.x:gmatch('%w+') } }",
      "local m = require 'm' local w = m.x:gmatch('%w+') local function g() return w() end",
      "local m = require 'm' _G.words = m.x:gmatch('%w+') local function g() return words() end",
  };
  const std::string module =
      "local m = { x = 'one' } function m.f() return m.x end m.g = m.x:gmatch('%w+') return m";
  const std::string edited =
      "local m = { x = 'two' } function m.f() return m.x end m.g = m.x:gmatch('%w+') return m";
  for (const char* above : captures) {
    INFO(above);
    Digest before = code(above, "return g", module);
    CHECK(before == code(above, "return g", module));
    CHECK(before != code(above, "return g", edited));
  }
  // Without such a capture the module counts by what the task reaches of it.
  const std::string none = "local m = require 'm' local g = #m.x";
  CHECK(code(none, "return g", module) == code(none, "return g", edited));
}

TEST_CASE("a module that another module requires counts there too") {
  auto with = [](const std::string& value) {
    auto built = build({{"p.lua",
                         "local flow = require 'flow' local g = require('m').x:gmatch('%w+')\n"
                         "local t = flow.task('t', function() return g() end)\n"
                         "return flow.pipeline('p', {}, function() t() end)"},
                        {"m.lua", "return { x = require 'n' }"},
                        {"n.lua", "return '" + value + "'"}});
    REQUIRE(built.ok());
    return built->plan.defs.at(0).code;
  };
  CHECK(with("one") == with("one"));
  CHECK(with("one") != with("two"));
}
