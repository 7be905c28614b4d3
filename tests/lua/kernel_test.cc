// Kernels that a task captures: the key, the GPU requirement, and fresh state in each attempt.
#include <catch2/catch.hpp>

#include "vm.hpp"

using namespace flow;
using namespace flow::test;

namespace {

struct KernelDefinition {
  std::string source = "__global__ void f(float* x) {}";
  std::string signature = "x: inout f32";
  std::string options = "{ fallback = function(x) x:add_(1) end }";
};

Files files_of(const KernelDefinition& definition, const std::string& above = "",
               const std::string& module = "return {}") {
  return {{"p.lua", "local flow = require 'flow'\n" + above + "\nlocal k = flow.kernel('f', [[" +
                        definition.source + "]], '" + definition.signature + "', " +
                        definition.options +
                        ")\nlocal t = flow.task('t', function(ctx, x) return k(x) end)\n"
                        "return flow.pipeline('p', {}, function() t(1) end)\n"},
          {"m.lua", module}};
}

TaskDef task_of(const Files& files) {
  auto built = build(files);
  INFO((built.ok() ? "" : built.error().message));
  REQUIRE(built.ok());
  return built->plan.defs.at(0);
}

}  // namespace

TEST_CASE("a kernel counts in a task's key by its definition, wherever it is captured") {
  Digest code = task_of(files_of({})).code;
  KernelDefinition same;
  same.signature = " x :inout  f32 ";
  CHECK(task_of(files_of(same)).code == code);
  CHECK(task_of(files_of({}, "\n\n-- lower down\n")).code == code);
  KernelDefinition others[7];
  others[0].source += " ";
  others[1].signature = "x: inout f64";
  others[2].options = "{ fallback = function(x) x:add_(2) end }";
  others[3].options = "{ fallback = function(x) x:add_(1) end, options = { '-DN=1' } }";
  others[4].options = "{ fallback = function(x) x:add_(1) end, block = 128 }";
  others[5].options = "{ fallback = function(x) x:add_(1) end, grid = function(x) return 3 end }";
  others[6].options = "nil";
  for (const KernelDefinition& other : others) CHECK_FALSE(task_of(files_of(other)).code == code);
  // The fallback's upvalues are the kernel's.
  KernelDefinition captures;
  captures.options = "{ fallback = function(x) x:add_(n) end }";
  CHECK_FALSE(task_of(files_of(captures, "local n = 1")).code ==
              task_of(files_of(captures, "local n = 2")).code);
}

TEST_CASE("the components of a code name the kernel and its fallback") {
  auto differing = [](const KernelDefinition& after) {
    std::vector<std::string> names;
    TaskDef a = task_of(files_of({})), b = task_of(files_of(after));
    REQUIRE(a.code_components.size() == b.code_components.size());
    for (size_t i = 0; i < a.code_components.size(); i++)
      if (a.code_components[i].digest != b.code_components[i].digest)
        names.push_back(a.code_components[i].name);
    return names;
  };
  KernelDefinition source, fallback;
  source.source += " ";
  fallback.options = "{ fallback = function(x) x:add_(2) end }";
  CHECK(differing(source) == std::vector<std::string>{"`k` in p.lua"});
  CHECK(differing(fallback) == std::vector<std::string>{"`k.fallback` in p.lua"});
}

TEST_CASE("a task whose code reaches a kernel without a fallback needs a GPU") {
  CHECK(task_of(files_of({})).gpu_kernel.empty());
  KernelDefinition bare;
  bare.options = "nil";
  CHECK(task_of(files_of(bare)).gpu_kernel == "f");
  const std::string kernel = "flow.kernel('g', '', 'x: inout f32')";
  auto needs = [&](const std::string& above, const std::string& body) {
    return task_of({{"p.lua", "local flow = require 'flow'\n" + above +
                                  "\nlocal t = flow.task('t', function(ctx, x) " + body +
                                  " end)\nreturn flow.pipeline('p', {}, function() t(1) end)\n"},
                    {"m.lua", "return { g = require 'flow'.kernel('g', '', 'x: inout f32') }"}})
        .gpu_kernel;
  };
  CHECK(needs("local k = { deep = { " + kernel + " } }", "return k.deep[1](x)") == "g");
  CHECK(needs("local k = " + kernel + " local function f(x) return k(x) end", "return f(x)") ==
        "g");
  CHECK(needs("local m = require 'm'", "return m.g(x)") == "g");
  CHECK(needs("_G.k = " + kernel, "return k(x)") == "g");
  CHECK(needs("local k = " + kernel, "return x") == "");
  // A module that requires something reaches every module, and would need a GPU for any kernel.
  CHECK(needs("local m = require 'm'", "require 'm' return x") == "");
}

TEST_CASE("a fallback starts each attempt with its upvalues as they were after loading") {
  auto built = build({{"p.lua", R"(
    local flow = require "flow"
    local calls = 0
    local k = flow.kernel("f", "", "x: inout f32", { fallback = function(x) calls = calls + 1 x:add_(calls) end })
    local t = flow.task("t", function() return k(flow.zeros(1)):item() end)
    return flow.pipeline("p", {}, function() t() end)
  )"}});
  REQUIRE(built.ok());
  auto vm = make_script_vm();
  REQUIRE(vm->load(built->bundle).ok());
  for (int attempt = 0; attempt < 3; attempt++) {
    FakeHost host;
    AttemptOutcome ended = vm->run(attempt_of(built->plan.defs[0]), host);
    CHECK(ended.message == "");
    CHECK(to_json(ended.result) == "1.0");
  }
}

TEST_CASE("a kernel cannot be passed on as a value") {
  auto built = build({{"p.lua", R"(
    local flow = require "flow"
    local k = flow.kernel("f", "", "x: inout f32", { fallback = print })
    local t = flow.task("t", function() return { k = k } end)
    return flow.pipeline("p", {}, function() t() end)
  )"}});
  REQUIRE(built.ok());
  auto vm = make_script_vm();
  REQUIRE(vm->load(built->bundle).ok());
  FakeHost host;
  CHECK_THAT(vm->run(attempt_of(built->plan.defs[0]), host).message,
             Catch::Contains("returned a kernel at result.k"));
}
