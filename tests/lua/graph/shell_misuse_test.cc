// Every misuse of a shell task's call has its own message, while the graph is built.
#include <catch2/catch.hpp>

#include "misuse.hpp"

using namespace flow::test;

TEST_CASE("a shell call takes one table of names, or as many values as args has") {
  const Case cases[] = {
      {"return align(1)", "pipeline.lua:6: `align` is called without its argument `ref`"},
      {"return align(1, 2, 3)",
       "pipeline.lua:6: `align` is called with 3 arguments, and takes 2 (reads, ref)"},
      {"return align(1, nil)", "pipeline.lua:6: `align` is called without its argument `ref`"},
      {"return align(nil, 1)",
       "pipeline.lua:6: `align` is called with nil for its argument `reads`"},
      {"return align { 'a', 'b' }",
       "pipeline.lua:6: `align` is called with one table, which is a table of named arguments, and "
       "it has a key that is not a string: write `align { reads = … }`"},
      {"return align { reads = 1, rf = 2 }",
       "pipeline.lua:6: `align` has no argument `rf` (did you mean `ref`?)"},
      {"return align { reads = 1 }",
       "pipeline.lua:6: `align` is called without its argument `ref`"},
      {"return align(1, 2).bem",
       "pipeline.lua:6: the shell task `align` has no output `bem` (did you mean `bam`?); it has: "
       "stdout, bam"},
      {"return align(1, 2).bam.x",
       "pipeline.lua:6: the output `bam` of the shell task `align` is a file"},
      {"return flow.map(align, { 1 })",
       "pipeline.lua:6: item 1 of flow.map: `align` is called without its argument `ref`"},
      {"return flow.map(align, { 1 }, 2, 3)", "pipeline.lua:6: `align` is called with 3 arguments"},
      {"return flow.map(align, { 1 }, 2).bam",
       "pipeline.lua:6: `align` is a map, whose result is a list: take an item, `[1].bam`, or "
       "`:each(\"bam\")`"},
      {"return flow.map(align, { 1 }, 2):each('bom')",
       "pipeline.lua:6: the shell task `align` has no output `bom`"},
  };
  for (const Case& c : cases) {
    INFO(c.lines);
    CHECK_THAT(in_body(c.lines), Catch::StartsWith(c.error));
  }
  CHECK(in_body("return flow.map(align, { 1 }, 2):each('bam')") == "built");
  const Case files[] = {
      {"flow.shell('s', { args = { 'a' }, command = 'cat {b}' })",
       "pipeline.lua:2: task `s`, line 1 of the command: `{b}` is not an argument of this call"},
      {"flow.shell('s', { args = { 'seed' }, command = 'cat' })",
       "pipeline.lua:2: task `s`: in `args`, `seed` is reserved"},
      {"flow.shell('s', { args = { 'a', 'a' }, command = 'cat' })",
       "pipeline.lua:2: task `s`: in `args`, `a` is named twice"},
      {"flow.shell('s', { outputs = { a = '../x' }, command = 'cat' })",
       "pipeline.lua:2: task `s`: the option `outputs.a` must be a path inside"},
      {"flow.shell('s', { outputs = { a = '.' }, command = 'cat' })",
       "pipeline.lua:2: task `s`: the option `outputs.a` must be a path inside"},
      {"flow.shell('s', { outputs = { a = 'x/.' }, command = 'cat' })",
       "pipeline.lua:2: task `s`: the option `outputs.a` must be a path inside"},
      {"flow.shell('s', { outputs = { a = 'x\\0y' }, command = 'cat' })",
       "pipeline.lua:2: task `s`: the option `outputs.a` must be a file's name or a glob without "
       "NUL"},
      {"flow.shell('s', { args = { 'a' }, command = 'cat {memory}' })",
       "pipeline.lua:2: task `s`: the command names `{memory}`"},
      {"flow.shell('s', { command = 'cat', stage = 'link' })",
       "pipeline.lua:2: task `s`: the option `stage` must be \"copy\", but is `link`"},
      {"local s = flow.shell('s', { command = 'cat {files}' })\nreturn flow.pipeline('p', {}, "
       "function() return s(1) end)",
       "pipeline.lua:3: `s` is called with positional arguments, and its `args` is missing: add "
       "`args = { "
       "\"files\" }`"},
      {"local s = flow.shell('s', { command = 'cat {files}' })\nreturn flow.pipeline('p', {}, "
       "function() return s { fils = 1 } end)",
       "pipeline.lua:3: task `s`, line 1 of the command: `{files}` is not an argument of this "
       "call: "
       "did you mean `{fils}`?"},
      {"local s = flow.shell('s', { command = 'cat {a.nam}' })\nreturn flow.pipeline('p', {}, "
       "function() return s { a = { name = 1 } } end)",
       "pipeline.lua:3: task `s`: the command names `{a.nam}`, and `a` has no field `nam` (did you "
       "mean `name`?)"},
  };
  for (const Case& c : files) {
    INFO(c.lines);
    CHECK_THAT(in_file(c.lines), Catch::StartsWith(c.error));
  }
}

TEST_CASE("values that a command cannot take are rejected while the graph is built") {
  const Case cases[] = {
      {"return align({ a = 1 }, 'r')",
       "pipeline.lua:6: task `align`: the placeholder `{reads}` is a table with fields: name one, "
       "`{reads.a}`"},
      {"return align {\n reads = { { 1 } }, ref = 'r' }",
       "pipeline.lua:6: task `align`: the placeholder `{reads}` is a list of tables"},
      {"return align('a\\0b', 'r')",
       "pipeline.lua:6: task `align`: the placeholder `{reads}` is a string with a NUL byte"},
      {"return align({ 'x', 'a\\0b' }, 'r')",
       "pipeline.lua:6: task `align`: the placeholder `{reads}` is a string with a NUL byte"},
      {"return align(flow.null, 'r')",
       "pipeline.lua:6: task `align`: the placeholder `{reads}` is without a value"},
      {"return flow.map(align, { 'x', { 'a\\0' } }, 'r')",
       "pipeline.lua:6: item 2 of flow.map: task `align`: the placeholder `{reads}` is a string"},
      {"return flow.map(align, { { reads = 'x', ref = { a = 1 } } })",
       "pipeline.lua:6: item 1 of flow.map: task `align`: the placeholder `{ref}` is a table with"},
      {"return flow.map(align, count(1), { a = 1 })",
       "pipeline.lua:6: task `align`: the placeholder `{ref}` is a table with fields"},
  };
  for (const Case& c : cases) {
    INFO(c.lines);
    CHECK_THAT(in_body(c.lines), Catch::StartsWith(c.error));
  }
  CHECK(in_body("return align(count(1).x, { count(2), 'r' })") == "built");
  CHECK(in_body("return flow.map(align, count(1), count(2))") == "built");
  CHECK(in_body("return flow.map(align, {}, 'r')") == "built");
  const Case files[] = {
      {"local s = flow.shell('s', { command = 'cat {a.b}' })\nreturn flow.pipeline('p', {}, "
       "function() return s { a = { b = { c = 1 } } } end)",
       "pipeline.lua:3: task `s`: the placeholder `{a.b}` is a table with fields: name one"},
      {"local s = flow.shell('s', { command = 'cat {a.3}' })\nreturn flow.pipeline('p', {}, "
       "function() return s { a = { 1, 2 } } end)",
       "pipeline.lua:3: task `s`: the placeholder `{a.3}`: `a` has no field `3`"},
      {"local s = flow.shell('s', { command = 'echo $(( {a} ))' })\nreturn flow.pipeline('p', {}, "
       "function() return s { a = 'x' } end)",
       "pipeline.lua:3: task `s`: the placeholder `{a}` is within $(( )), which allows only a "
       "number"},
      {"local s = flow.shell('s', { command = 'true' })\nreturn flow.pipeline('p', {}, "
       "function() return s { a = { b = '\\0' } } end)",
       "built"},
      {"local t = flow.task('t', print)\n"
       "local s = flow.shell('s', { command = 'cat {a.b.c} {a.d} $(( {n} ))' })\n"
       "return flow.pipeline('p', {}, function() local x = t() "
       "return s { a = { b = x, d = { x, 1 } }, n = x } end)",
       "built"},
  };
  for (const Case& c : files) {
    INFO(c.lines);
    CHECK_THAT(in_file(c.lines), Catch::StartsWith(c.error));
  }
}
