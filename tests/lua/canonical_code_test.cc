// The code part of a key: which edits must change it, and which must not.
#include <catch2/catch.hpp>

#include "vm.hpp"

using namespace flow;
using namespace flow::test;

namespace {

const std::string kHead = "local flow = require 'flow'\n";
const std::string kTail = "\nreturn flow.pipeline('p', {}, function() t() end)\n";

TaskDef task_of(const Files& files) {
  auto built = build(files);
  INFO((built.ok() ? "" : built.error().message));
  REQUIRE(built.ok());
  for (const TaskDef& def : built->plan.defs)
    if (def.name == "t") return def;
  FAIL("no task t");
  return {};
}

/// The code of the task `t` of a file whose middle is `text`; it may `require "m"`.
Digest code(const std::string& text, const std::string& module = "return {}") {
  return task_of({{"p.lua", kHead + text + kTail}, {"m.lua", module}}).code;
}

// A task and its captures in `text`, with $ as its function.
std::string task(const std::string& body) {
  return "local t = flow.task('t', function(ctx) " + body + " end)";
}

struct Pair {
  const char* why;
  std::string before, after;
};

}  // namespace

TEST_CASE("edits without an effect on a task keep its code") {
  const Pair pairs[] = {
      {"lines above", task("return 1"), "\n\n-- a comment\n\n" + task("return 1")},
      {"comments inside", task("return 1"), task("--[[ why ]] return 1 -- yes\n")},
      {"layout", task("local a = 1 return a"), task("\n\n local a = 1;\n\n return a\n")},
      {"locals above", task("return 1"), "local x, y, z = 1, 2, 3\n" + task("return 1")},
      {"locals above a captured one", "local rate = 2 " + task("return rate"),
       "local a, b local rate = 2 " + task("return rate")},
      {"the name of a local", task("local a = 1 return a"), task("local b = 1 return b")},
      {"the name of a captured variable", "local rate = 2 " + task("return rate"),
       "local speed = 2 " + task("return speed")},
      {"a const captured variable", "local r = {} " + task("return r"),
       "local r <const> = {} " + task("return r")},
      {"another task", task("return 1"),
       "local u = flow.task('u', function() return 5 end) " + task("return 1")},
      {"another global", "_G.a = 1 " + task("return a"), "_G.a = 1 _G.b = 2 " + task("return a")},
      {"a value from elsewhere", "local rate = 6 " + task("return rate"),
       "local rate = 2 * 3 " + task("return rate")},
      {"the order in which a table was filled", "local t1 = { a = 1, b = 2 } " + task("return t1"),
       "local t1 = {} t1.b = 2 t1.a = 1 " + task("return t1")},
      {"the code of a task that it names",
       "local u = flow.task('u', function() return 1 end) " + task("return u"),
       "local u = flow.task('u', function() return 2 end) " + task("return u")},
      {"a resource option", "local t = flow.task('t', { cpus = 1 }, function() return 1 end)",
       "local t = flow.task('t', { cpus = 2 }, function() return 1 end)"},
      {"an unused helper", task("return 1"), "local function f() end " + task("return 1")},
      {"lines in a nested function", task("return function() return 1 end"),
       task("return function()\n\n return 1\n end")},
      {"a library function set to itself", task("return 1"),
       "string.format = string.format " + task("return 1")},
      {"a set of objects in another order",
       "local a, b = { 1 }, { 2 } local s = { [a] = 1, [b] = 2 } " + task("return s"),
       "local b, a = { 2 }, { 1 } local s = { [b] = 2, [a] = 1 } " + task("return s")},
  };
  for (const Pair& pair : pairs) {
    INFO(pair.why);
    CHECK(code(pair.before) == code(pair.after));
  }
}

TEST_CASE("edits that may affect a task change its code") {
  const std::string recursion =
      "local function f(n) if n == 0 then return 1 end return f(n - 1) end ";
  const std::string other = "local function f(n) if n == 0 then return 2 end return f(n - 1) end ";
  const std::string mutual =
      "local odd local function even(n) return n == 0 or odd(n - 1) end "
      "function odd(n) return n ~= 0 and even(n - 1) end ";
  const std::string mutual_other =
      "local odd local function even(n) return n == 0 or odd(n - 1) end "
      "function odd(n) return n ~= 1 and even(n - 1) end ";
  const Pair pairs[] = {
      {"a constant", task("return 1"), task("return 2")},
      {"the type of a constant", task("return 1"), task("return 1.0")},
      {"a large constant", task("return 100000"), task("return 100001")},
      {"a string", task("return 'a'"), task("return 'b'")},
      {"an operation", task("return ctx + 1"), task("return ctx - 1")},
      {"a nested function", task("return function() return 1 end"),
       task("return function() return 2 end")},
      {"what a nested function captures", task("local a, b = 1, 2 return function() return a end"),
       task("local a, b = 1, 2 return function() return b end")},
      {"a captured number", "local r = 1 " + task("return r"), "local r = 2 " + task("return r")},
      {"a captured -0.0", "local r = 0.0 " + task("return r"),
       "local r = -0.0 " + task("return r")},
      {"which captured variable", "local a, b = 1, 2 " + task("return a - b"),
       "local a, b = 1, 2 " + task("return b - a")},
      {"a field", "local r = { x = 1 } " + task("return r"),
       "local r = { x = 2 } " + task("return r")},
      {"a deep field", "local r = { x = { y = 1 } } " + task("return r"),
       "local r = { x = { y = 2 } } " + task("return r")},
      {"a key", "local r = { x = 1 } " + task("return r"),
       "local r = { y = 1 } " + task("return r")},
      {"a metatable", "local r = {} " + task("return r"),
       "local r = setmetatable({}, { __index = { a = 1 } }) " + task("return r")},
      {"in a metatable", "local r = setmetatable({}, { __index = { a = 1 } }) " + task("return r"),
       "local r = setmetatable({}, { __index = { a = 2 } }) " + task("return r")},
      {"a helper", "local function f() return 1 end " + task("return f()"),
       "local function f() return 2 end " + task("return f()")},
      {"a helper's helper",
       "local function g() return 1 end local function f() return g() end " + task("return f()"),
       "local function g() return 2 end local function f() return g() end " + task("return f()")},
      {"recursion", recursion + task("return f(3)"), other + task("return f(3)")},
      {"mutual recursion", mutual + task("return even(3)"), mutual_other + task("return even(3)")},
      {"two tables or one", "local a = {} local b = {} " + task("return a, b"),
       "local a = {} local b = a " + task("return a, b")},
      {"a shared captured variable",
       "local n = 0 local function f() n = n + 1 end local function g() return n end " +
           task("f() return g()"),
       "local n, m = 0, 0 local function f() n = n + 1 end local function g() return m end " +
           task("f() return g()")},
      {"a cycle", "local a = { b = {} } a.b.c = a " + task("return a"),
       "local a = { b = {} } a.b.c = a.b " + task("return a")},
      {"which task it names", "local u = flow.task('u', function() end) " + task("return u"),
       "local u = flow.task('v', function() end) " + task("return u")},
      {"a global it reads", "_G.rate = 1 " + task("return rate"),
       "_G.rate = 2 " + task("return rate")},
      {"a global that a nested function reads",
       "_G.rate = 1 " + task("return function() return function() return rate end end"),
       "_G.rate = 2 " + task("return function() return function() return rate end end")},
      {"any global, with _G as a value", "_G.rate = 1 " + task("return _G"),
       "_G.rate = 2 " + task("return _G")},
      {"any global, with _ENV as a value", "_G.rate = 1 " + task("local e = _ENV return e"),
       "_G.rate = 2 " + task("local e = _ENV return e")},
      {"any global, with _G captured", "_G.rate = 1 local g = _G " + task("return g"),
       "_G.rate = 2 local g = _G " + task("return g")},
      {"a new function of a library", task("return 1"),
       "function string.trim() end " + task("return 1")},
      {"that function's code", "function string.trim() return 1 end " + task("return 1"),
       "function string.trim() return 2 end " + task("return 1")},
      {"the strings' metatable", task("return 1"),
       "getmetatable('').__call = string.rep " + task("return 1")},
      {"which library function", "local f = string.upper " + task("return f"),
       "local f = string.lower " + task("return f")},
      {"the text around a coroutine", "local co = coroutine.create(print) " + task("return co"),
       "local co = coroutine.create(print) -- other\n" + task("return co")},
      {"a comment where a generator is captured",
       "local words = ('a b'):gmatch('%a') " + task("return words()"),
       "local words = ('a b'):gmatch('%a') -- why\n" + task("return words()")},
      {"variadic", "local t = flow.task('t', function(a) return 1 end)",
       "local t = flow.task('t', function(...) return 1 end)"},
  };
  for (const Pair& pair : pairs) {
    INFO(pair.why);
    CHECK(code(pair.before) != code(pair.after));
  }
}

TEST_CASE("a module counts by the part that the task reaches") {
  const std::string uses = "local m = require 'm' " + task("return m.f()");
  const std::string local_f = "local f = require('m').f " + task("return f()");
  const std::string module = "local m = {} function m.f() return 1 end return m";
  CHECK(code(uses, module) ==
        code(uses, "-- a comment\nlocal m = {}\nfunction m.f() return 1 end return m"));
  CHECK(code(uses, module) != code(uses, "local m = {} function m.f() return 2 end return m"));
  const std::string larger = "local m = {} function m.f() return 1 end function m.g() end return m";
  CHECK(code(uses, module) != code(uses, larger));
  CHECK(code(local_f, module) == code(local_f, larger));

  const std::string requires_inside = "require 'm' " + task("return require('m').f()");
  CHECK(code(requires_inside, module) != code(requires_inside, larger));
}

TEST_CASE("a helper may move to another file") {
  Digest here = code("local function f() return 1 end " + task("return f()"));
  Digest there =
      code("local f = require 'm' " + task("return f()"), "return function() return 1 end");
  CHECK(here == there);
}

TEST_CASE("a task from a factory counts by its values") {
  const std::string factory =
      "local function make(n) return flow.task('t', function() return n end) end ";
  CHECK(code(factory + "local t = make(1)") == code(factory + "local t = make(1)"));
  CHECK(code(factory + "local t = make(1)") != code(factory + "local t = make(2)"));
}

TEST_CASE("the pipeline's body does not affect a key, even through a module's memo table") {
  const std::string module =
      "local memo = {} return function(n) memo[n] = memo[n] or n * 2 return memo[n] end";
  auto files = [&](const std::string& body) {
    return Files{{"p.lua", kHead + "local f = require 'm' " + task("return f(1)") +
                               "\nreturn flow.pipeline('p', {}, function() " + body + " t() end)"},
                 {"m.lua", module}};
  };
  CHECK(task_of(files("")).code == task_of(files("f(7)")).code);
}

TEST_CASE("the components of a code are named in words") {
  TaskDef def =
      task_of({{"p.lua", kHead + "local m = require 'features'\nlocal rate = 0.25\n_G.size = 3 " +
                             task("return m.normalize(rate) + size") + kTail},
               {"features.lua", "local m = {}\nfunction m.normalize(x) return x end\nreturn m"}});
  std::vector<std::string> names;
  for (const CodeComponent& part : def.code_components)
    names.push_back(part.name + (part.text.empty() ? "" : " = " + part.text));
  CHECK(names == std::vector<std::string>{"its function", "`m` in p.lua", "`rate` in p.lua = 0.25",
                                          "the global `size` = 3",
                                          "`m.normalize` in features.lua"});
  TaskDef changed = task_of(
      {{"p.lua", kHead + "local m = require 'features'\nlocal rate = 0.25\n_G.size = 3 " +
                     task("return m.normalize(rate) + size") + kTail},
       {"features.lua", "local m = {}\nfunction m.normalize(x) return x + 1 end\nreturn m"}});
  std::vector<std::string> differing;
  for (size_t i = 0; i < def.code_components.size(); i++)
    if (def.code_components[i].digest != changed.code_components[i].digest)
      differing.push_back(def.code_components[i].name);
  CHECK(differing == std::vector<std::string>{"`m.normalize` in features.lua"});
}

TEST_CASE("a thousand globals and a deep table have a code") {
  std::string deep = "local list = nil for i = 1, 100000 do list = { list } end ";
  CHECK(code(deep + task("return list")) == code(deep + task("return list")));
  std::string many;
  for (int i = 0; i < 300; i++) many += "do local _ = 'constant" + std::to_string(i) + "' end ";
  CHECK(code("_G.rate = 1 " + task(many + "return rate")) !=
        code("_G.rate = 2 " + task(many + "return rate")));
}

TEST_CASE("sets of objects that refer to one another have a code") {
  const std::string cyclic = "local a, b = {}, {} a[a] = 1 a[b] = 2 b[a] = 3 ";
  CHECK(code(cyclic + task("return a")) == code(cyclic + task("return a")));
  CHECK(code(cyclic + task("return a")) != code(cyclic + "b[a] = 4 " + task("return a")));
  const std::string deep = "local t1 = {} for i = 1, 10000 do t1 = { [t1] = i } end ";
  CHECK(code(deep + task("return t1")) == code(deep + task("return t1")));
}

TEST_CASE("an object of the stdlib counts by its class's name and its own content") {
  const std::string model = "local m = flow.nn.linear(2, 3) ";
  TaskDef def = task_of({{"p.lua", kHead + model + task("return m") + kTail}});
  std::vector<std::string> names;
  for (const CodeComponent& part : def.code_components) names.push_back(part.name);
  CHECK(names == std::vector<std::string>{"its function", "`m` in p.lua"});
  CHECK(code(model + task("return m")) !=
        code("local m = flow.nn.linear(2, 4) " + task("return m")));
}
