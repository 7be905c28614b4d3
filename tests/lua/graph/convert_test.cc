// Values to Lua and back: every kind, files as paths, and the path to values that cannot be
// converted.
#include <catch2/catch.hpp>
#include <cmath>

#include "host.hpp"
#include "lua/state/vm_context.hpp"

using namespace flow;
using namespace flow::lua;

namespace {

// A state in a task's attempt.
struct Lua {
  Lua() {
    *static_cast<VmContext**>(lua_getextraspace(L)) = &context;
    luaL_openlibs(L);
    lua_newtable(L);
    open_graph(L, -1);
    lua_setglobal(L, "flow");
    request.dir = "/state/scratch/1";
    request.state_dir = "/state";
    context.phase = ScriptPhase::task;
    context.request = &request;
    context.host = &host;
  }
  ~Lua() { lua_close(L); }
  Result<Value> read(const std::string& expression) {
    REQUIRE(luaL_dostring(L, ("return " + expression).c_str()) == LUA_OK);
    auto value = read_value(L, -1, "result", false);
    CHECK(lua_gettop(L) == 1);
    lua_settop(L, 0);
    return value;
  }
  std::string json(const std::string& expression) {
    auto value = read(expression);
    return value.ok() ? to_json(*value) : value.error().message;
  }
  Value round_trip(const Value& value) {
    push_value(L, value);
    auto back = read_value(L, -1, "result", false);
    lua_settop(L, 0);
    REQUIRE(back.ok());
    return *back;
  }

  VmContext context;
  AttemptRequest request;
  test::Host host;
  lua_State* L = luaL_newstate();
};

}  // namespace

TEST_CASE("every kind of value is converted to Lua and back") {
  Lua lua;
  const Value values[] = {
      Value(),
      Value::null(),
      Value(true),
      Value(INT64_MIN),
      Value(-0.0),
      Value(HUGE_VAL),
      Value(std::nan("")),
      Value(3.0),
      Value(std::string("a\0b\xff", 4)),
      Value::list({}),
      Value::list({Value(1), Value::null(), Value("x")}),
      Value::map({{Value(1), Value(1)},
                  {Value(3), Value(3)},
                  {Value("k"), Value(false)},
                  {Value(true), Value(2)},
                  {Value(-7), Value::list({})}}),
  };
  for (const Value& value : values)
    CHECK(encode_value(lua.round_trip(value)) == encode_value(value));
}

TEST_CASE("Lua tables are lists if their keys are 1..n, and maps otherwise") {
  Lua lua;
  CHECK(lua.json("{ 1, 2, [3.0] = 3 }") == "[1,2,3]");
  CHECK(lua.json("{ 1, nil, 3 }") == R"({"$map":[[1,1],[3,3]]})");
  CHECK(lua.json("{ [2] = 'b', [1] = 'a' }") == R"(["a","b"])");
  CHECK(lua.json("{ x = 1, 5 }") == R"({"$map":[[1,5],["x",1]]})");
  CHECK(lua.json("{ flow.null, {} }") == "[null,[]]");
  CHECK(lua.json("2^53") == "9007199254740992.0");
}

TEST_CASE("a value that cannot be converted is named by its path") {
  Lua lua;
  CHECK(lua.json("{ layers = { 1, { forward = print } } }") ==
        "returned a function at result.layers[2].forward: what crosses an edge is nil, a boolean, "
        "a number, "
        "a string, a table of these, a tensor or a file");
  CHECK_THAT(lua.json("print"), Catch::StartsWith("returned a function at result: "));
  CHECK_THAT(lua.json("{ [true] = io.stdout }"),
             Catch::StartsWith("returned a FILE* at result[true]: "));
  CHECK_THAT(lua.json("{ [0/0 == 0 and 1 or 2.5] = 1 }"),
             Catch::StartsWith("returned the key 2.5 at result: "));
  CHECK_THAT(lua.json("{ x = setmetatable({}, { __index = print }) }"),
             Catch::StartsWith("returned a table with a metatable at result.x: "));
  CHECK_THAT(lua.json("(function() local t = {}; t.self = { t } return t end)()"),
             Catch::StartsWith("returned a table that contains itself at result.self[1]: "));
  CHECK_THAT(lua.json("flow.task"), Catch::StartsWith("returned a function at result"));
}

TEST_CASE("tables nest to 200") {
  Lua lua;
  auto nested = [&](int depth) {
    return lua.read("(function() local t = {} for i = 2, " + std::to_string(depth) +
                    " do t = { t } end return t end)()");
  };
  CHECK(nested(200).ok());
  auto deeper = nested(201);
  REQUIRE(!deeper.ok());
  CHECK_THAT(deeper.error().message,
             Catch::StartsWith("returned a table nested too deep at result[1][1]"));
  CHECK(decode_value(encode_value(*nested(200))).ok());
}

TEST_CASE("in a task a file is its path, and the path becomes the file again") {
  Lua lua;
  File file;
  file.name = "reads.fq";
  file.size = 5;
  file.digest = sha256("reads");
  push_value(lua.L, Value::list({Value(file)}));
  lua_rawgeti(lua.L, 1, 1);
  CHECK(std::string(lua_tostring(lua.L, -1)) == "/state/objects/reads.fq");
  lua_settop(lua.L, 0);
  auto back = lua.read("{ f = '/state/objects/reads.fq', s = 'x/state/objects/reads.fq' }");
  REQUIRE(back.ok());
  CHECK(back->find("f")->as_file().digest == file.digest);
  CHECK(back->find("s")->kind() == Value::Kind::string);
}

TEST_CASE("a file that is not an input of the task has no content there") {
  Lua lua;
  lua.context.root = "/scripts";
  CHECK(lua.json("{ f = flow.file('x.csv') }") ==
        "returned the file `x.csv`, which is not an input of this task at result.f: pass the file "
        "to the "
        "task as an argument");
}

TEST_CASE("the error for a path of this attempt suggests ctx:file") {
  Lua lua;
  CHECK(lua.json("{ out = '/state/scratch/1/a/out.csv' }") ==
        "returned the path `/state/scratch/1/a/out.csv` at result.out: it is in ctx.dir, which is "
        "deleted after the attempt; use ctx:file(\"a/out.csv\")");
  CHECK_THAT(lua.json("'/state/scratch/1'"), Catch::Contains("use ctx:file(\".\")"));
  CHECK_THAT(lua.json("'/state/other'"), Catch::Contains("it is in the state directory"));
  CHECK_THAT(lua.json("{ ['/state/scratch/1/x'] = 1 }"), Catch::Contains("use ctx:file(\"x\")"));
  CHECK(lua.json("'/state2/other'") == "\"/state2/other\"");
}

TEST_CASE("an input that cannot be read is an error with its name") {
  Lua lua;
  File file;
  file.name = "gone";
  lua_pushcfunction(lua.L, [](lua_State* L) {
    push_value(L, *static_cast<const Value*>(lua_touserdata(L, 1)));
    return 1;
  });
  Value value(file);
  lua_pushlightuserdata(lua.L, &value);
  CHECK(lua_pcall(lua.L, 1, 1, 0) != LUA_OK);
  CHECK(std::string(lua_tostring(lua.L, -1)) ==
        "the input `gone` can't be read: its content is lost");
}
