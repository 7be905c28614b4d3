// Parameters: types, bounds, text from the command line, and every problem at once.
#include <catch2/catch.hpp>

#include "build.hpp"

using namespace flow;
using namespace flow::test;

namespace {

const std::string kSchema =
    "local flow = require 'flow'\n"
    "return flow.pipeline('p', {\n"
    "  epochs = flow.param.int { default = 20, min = 1, max = 99, help = 'rounds' },\n"
    "  lr = flow.param.number { default = 1e-3, min = 0 },\n"
    "  name = flow.param.string { default = 'ab', pattern = '%l+', max = 5 },\n"
    "  fast = flow.param.boolean { default = false },\n"
    "  mode = flow.param.choice { 'slow', 'quick', default = 'slow' },\n"
    "  sizes = flow.param.list { of = 'int', default = { 1, 2 }, max = 10 },\n"
    "  data = flow.param.path { default = 'pipeline.lua' },\n"
    "}, function(p) return p end)\n";

using Text = std::vector<std::pair<std::string, std::string>>;

Result<BuildResult> built_with(const Text& text, const Value& params, const Folder& folder) {
  return build({kSchema, {}, text, params}, folder);
}

std::string error(const Text& text, const Value& params = Value::map({})) {
  Folder folder;
  auto built = built_with(text, params, folder);
  return built.ok() ? "built" : built.error().message;
}

std::string shown(const Text& text, const Value& params, const char* name) {
  Folder folder;
  auto built = built_with(text, params, folder);
  if (!built.ok()) return built.error().message;
  const Value* value = built->plan.params.find(std::string_view(name));
  return value == nullptr ? "missing" : to_json(*value);
}

}  // namespace

TEST_CASE("defaults, JSON and text are converted to the same types") {
  Value none = Value::map({});
  CHECK(shown({}, none, "epochs") == "20");
  CHECK(shown({{"epochs", "3"}}, none, "epochs") == "3");
  CHECK(shown({}, Value::map({{Value("epochs"), Value(4.0)}}), "epochs") == "4");
  CHECK(shown({{"epochs", "5"}}, Value::map({{Value("epochs"), Value(4)}}), "epochs") == "5");
  CHECK(shown({{"lr", "1"}}, none, "lr") == "1.0");
  CHECK(shown({{"lr", "1e-5"}}, none, "lr") == "1e-05");
  CHECK(shown({}, Value::map({{Value("lr"), Value(2)}}), "lr") == "2.0");
  CHECK(shown({{"fast", "true"}}, none, "fast") == "true");
  CHECK(shown({{"mode", "quick"}}, none, "mode") == "\"quick\"");
  CHECK(shown({{"sizes", "3, 4"}}, none, "sizes") == "[3,4]");
  CHECK(shown({{"sizes", "[5]"}}, none, "sizes") == "[5]");
  CHECK(shown({{"sizes", ""}}, none, "sizes") == "[]");
}

TEST_CASE(
    "a path is a file without a name in keys, relative to the script or to the working directory") {
  Folder folder, elsewhere;
  elsewhere.write("d.csv", "x");
  auto built = built_with({}, Value::map({}), folder);
  REQUIRE(built.ok());
  const File& file = built->plan.params.find("data")->as_file();
  CHECK(file.origin == folder.path + "/pipeline.lua");
  CHECK(file.name == "pipeline.lua");
  CHECK(file.anonymous);
  CHECK(file.digest.is_zero());

  folder.write("pipeline.lua", kSchema);
  BuildRequest request;
  request.root = folder.path;
  request.main = "pipeline.lua";
  request.params = Value::map({});
  request.working_directory = elsewhere.path;
  request.text_params = {{"data", "./d.csv"}};
  auto given = make_script_vm()->build(request);
  REQUIRE(given.ok());
  CHECK(given->plan.params.find("data")->as_file().origin == elsewhere.path + "/d.csv");
}

TEST_CASE("the error of an invalid parameter describes the expected value") {
  auto starts = [](const Text& text, const char* message) {
    CHECK_THAT(error(text), Catch::StartsWith(message));
  };
  starts({{"epochs", "3.5"}},
         "pipeline.lua:3: the parameter `epochs` must be a whole number, but is `3.5` (rounds)");
  starts({{"epochs", "0"}},
         "pipeline.lua:3: the parameter `epochs` must be at least 1, but is `0`");
  starts({{"epochs", "100"}},
         "pipeline.lua:3: the parameter `epochs` must be at most 99, but is `100`");
  starts({{"lr", "x"}}, "pipeline.lua:4: the parameter `lr` must be a number, but is `x`");
  starts({{"lr", "nan"}}, "pipeline.lua:4: the parameter `lr` must be a number, but is `nan`");
  starts({{"name", "AB"}},
         "pipeline.lua:5: the parameter `name` must match the Lua pattern `%l+`, but is `AB`");
  starts({{"name", "aB"}}, "pipeline.lua:5: the parameter `name` must match the Lua pattern");
  starts({{"name", "abcdef"}}, "pipeline.lua:5: the parameter `name` must be at most 5 bytes long");
  starts({{"fast", "yes"}},
         "pipeline.lua:6: the parameter `fast` must be true or false, but is `yes`");
  starts({{"mode", "quik"}},
         "pipeline.lua:7: the parameter `mode` must be one of slow, quick, but is `quik` (did you "
         "mean "
         "`quick`?)");
  starts({{"sizes", "1,x"}},
         "pipeline.lua:8: the parameter `sizes` has an item 2 that must be a whole number, but is "
         "`x`");
  starts({{"sizes", "11"}},
         "pipeline.lua:8: the parameter `sizes` has an item 1 that must be at most 10");
  starts({{"sizes", "[1"}},
         "pipeline.lua:8: the parameter `sizes` must be a list, but its JSON can't be read");
  starts({{"data", "gone.csv"}}, "pipeline.lua:9: the parameter `data` names `/tmp/");
  starts({{"epoch", "3"}},
         "pipeline.lua:2: unknown parameter `epoch` (did you mean `epochs`?); the parameters are: "
         "data, epochs");
  CHECK_THAT(
      error({}, Value::map({{Value("name"), Value(3)}})),
      Catch::StartsWith("pipeline.lua:5: the parameter `name` must be a string, but is `3`"));
}

TEST_CASE("every problem is reported at once") {
  CHECK(error({{"epoch", "3"}, {"lr", "x"}}) ==
        "pipeline.lua:2: unknown parameter `epoch` (did you mean `epochs`?); the parameters are: "
        "data, epochs, "
        "fast, lr, mode, name, sizes\n\n"
        "error: pipeline.lua:4: the parameter `lr` must be a number, but is `x`");
}

TEST_CASE("a schema is checked where it is written") {
  auto error = [](const std::string& schema) {
    return error_of({"local flow = require 'flow'\nreturn flow.pipeline('p', { x = " + schema +
                         " }, function(p) return p.x end)",
                     {},
                     {},
                     {}});
  };
  CHECK(error("flow.param.int()") ==
        "pipeline.lua:2: the parameter `x` is required: give it with --param x=…");
  CHECK(error("3") ==
        "pipeline.lua:2: the parameter `x` of `p` is an integer: write x = flow.param.int { "
        "default = 3 }");
  CHECK_THAT(
      error("flow.param.int { defualt = 3 }"),
      Catch::StartsWith(
          "pipeline.lua:2: flow.param.int has no field `defualt` (did you mean `default`?)"));
  CHECK_THAT(error("flow.param.int { default = 'x' }"),
             Catch::StartsWith(
                 "pipeline.lua:2: `default` of flow.param.int must be a whole number, but is `x`"));
  CHECK_THAT(error("flow.param.int { default = 1, min = 2 }"),
             Catch::StartsWith("pipeline.lua:2: `default` of flow.param.int must be at least 2"));
  CHECK_THAT(error("flow.param.boolean { min = 2 }"),
             Catch::Contains("flow.param.boolean has no field `min`"));
  CHECK_THAT(error("flow.param.choice {}"), Catch::Contains("flow.param.choice has no choices"));
  CHECK_THAT(error("flow.param.list { of = 'integer' }"), Catch::Contains("but is `integer`"));
  CHECK_THAT(error("flow.param.number { default = 1 }"), Catch::Equals("built"));
  CHECK_THAT(error("flow.param.integer {}"), Catch::Contains("flow.param.integer does not exist"));
}

TEST_CASE("a body that reads an unknown parameter gets the nearest name") {
  CHECK(error_of({"local flow = require 'flow'\nreturn flow.pipeline('p', { epochs = "
                  "flow.param.int { default = "
                  "1 } }, function(p)\n  return p.epocs\nend)",
                  {},
                  {},
                  {}}) ==
        "pipeline.lua:3: the pipeline has no parameter `epocs` (did you mean `epochs`?); its "
        "parameters are: "
        "epochs");
}
