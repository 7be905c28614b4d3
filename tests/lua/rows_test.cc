// The rows of a CSV file in a task.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "vm.hpp"

using namespace flow;
using namespace flow::test;

TEST_CASE("a row's fields have the header's names, whatever bytes are in them") {
  std::string path = (std::filesystem::temp_directory_path() / "flow-rows-XXXXXX").string();
  int descriptor = ::mkstemp(path.data());
  REQUIRE(descriptor >= 0);
  ::close(descriptor);
  Files files = {{"p.lua", R"(local flow = require "flow"
local t = flow.task("t", function(ctx, path)
  local file = io.open(path, "w")
  file:write("a\0b,a\n1,2\n")
  file:close()
  return flow.data.csv(path)[1]
end)
return flow.pipeline("p", {}, function() t() end)
)"}};
  auto built = build(files);
  REQUIRE(built.ok());
  auto vm = make_script_vm();
  REQUIRE(vm->load(built->bundle).ok());
  FakeHost host;
  AttemptOutcome outcome = vm->run(attempt_of(built->plan.defs.front(), {path}), host);
  std::filesystem::remove(path);
  REQUIRE(outcome.message == "");
  CHECK(outcome.result == Value::map({{std::string("a\0b", 3), 1}, {"a", 2}}));
}
