// The changed lines of a function.
#include <catch2/catch.hpp>

#include "engine/query/code_diff.hpp"
#include "engine/query/key_changes.hpp"
#include "engine/query/task_groups.hpp"

using namespace flow;

namespace {

std::string diff(std::vector<std::string> before, std::vector<std::string> now) {
  std::string text;
  for (const std::string& line : line_diff({12, std::move(before)}, {20, std::move(now)}))
    text += line + "\n";
  return text;
}

KeyComponent argument(const Value& value, const std::string& from = "") {
  return {"argument 1",      sha256(to_json(value)),
          short_json(value), std::make_shared<const Value>(value),
          "argument `x`",    from};
}

std::vector<std::string> changes_between(const Value& before, const Value& now) {
  std::vector<KeyComponent> old_components{argument(before)}, new_components{argument(now, "make")};
  TaskDef def;
  std::vector<std::string> texts;
  for (const KeyChange& change : key_changes({old_components, def}, {new_components, def})) {
    CHECK(change.cause == "argument `x`");
    texts.push_back(change.text);
  }
  return texts;
}

File folder(std::vector<std::pair<std::string, std::string>> files) {
  File out;
  out.name = "data";
  out.is_folder = true;
  for (const auto& [path, content] : files)
    out.entries.push_back({path, false, content.size(), sha256(content)});
  out.digest = sha256(std::to_string(files.size()));
  return out;
}

}  // namespace

TEST_CASE("the source of a function is some lines of a file of the bundle") {
  Bundle bundle{
      "pipeline.lua", "/p", {{"pipeline.lua", "one\ntwo\nthree\nfour\n"}, {"m.lua", "x"}}};
  SourceLines lines = source_lines(bundle, "pipeline.lua:2-3");
  CHECK(lines.first == 2);
  CHECK(lines.lines == std::vector<std::string>{"two", "three"});
  CHECK(source_lines(bundle, "m.lua:1-1").lines == std::vector<std::string>{"x"});
  for (const char* source : {"", "pipeline.lua", "other.lua:1-2", "pipeline.lua:0-1", "m.lua:2-9",
                             "pipeline.lua:x-y", "-:", "m.lua:9-1"})
    CHECK(source_lines(bundle, source).lines.empty());
}

TEST_CASE("a diff has the changed lines with one line around them") {
  CHECK(diff({"a", "b", "c", "d", "e"}, {"a", "b", "C", "d", "e"}) ==
        "@@ -13 +21 @@\n b\n-c\n+C\n d\n");
  CHECK(diff({"a", "b"}, {"a", "x", "b"}) == "@@ -12 +20 @@\n a\n+x\n b\n");
  CHECK(diff({"a", "b"}, {"b"}) == "@@ -12 +20 @@\n-a\n b\n");
  CHECK(diff({"x", "a", "b", "c", "d", "y"}, {"X", "a", "b", "c", "d", "Y"}) ==
        "@@ -12 +20 @@\n-x\n+X\n a\n@@ -16 +24 @@\n d\n-y\n+Y\n");
  CHECK(diff({"a"}, {"a"}).empty());
  CHECK(diff({}, {}).empty());
}

TEST_CASE("a diff is short") {
  std::vector<std::string> many(1000), others(1000);
  for (size_t i = 0; i < many.size(); i++) {
    many[i] = std::to_string(i);
    others[i] = "x" + many[i];
  }
  auto lines = line_diff({1, many}, {1, others});
  REQUIRE(lines.size() == 31);
  CHECK(lines.back() == "…");
  CHECK(diff({std::string(500, 'a')}, {"b"}) ==
        "@@ -12 +20 @@\n-" + std::string(159, 'a') + "…\n+b\n");
  many.resize(2001);
  CHECK(line_diff({1, many}, {1, others}).empty());
}

TEST_CASE("lists are compared item by item, and an inserted item is one difference") {
  Value five = Value::list({1, 2, 3, 4, 5});
  CHECK(changes_between(five, Value::list({1, 2, 30, 4, 5})) ==
        std::vector<std::string>{"argument `x`[3] changed from `3` to `30` (from `make`)"});
  CHECK(changes_between(five, Value::list({1, 2, 9, 3, 4, 5})) ==
        std::vector<std::string>{"argument `x` has 1 item more: `9` (from `make`)"});
  CHECK(changes_between(five, Value::list({3, 4, 5})) ==
        std::vector<std::string>{"argument `x` has 2 items less: `1` and others (from `make`)"});
}

TEST_CASE("the files of a folder are named") {
  CHECK(changes_between(folder({{"a.csv", "1"}, {"b.csv", "2"}, {"c.csv", "3"}}),
                        folder({{"a.csv", "1"}, {"b.csv", "20"}, {"d.csv", "4"}, {"e", ""}})) ==
        std::vector<std::string>{"argument `x`: `data/b.csv` changed (from `make`)",
                                 "argument `x`: `data/d.csv` is new (from `make`)",
                                 "argument `x`: `data/e` is new (from `make`)",
                                 "argument `x`: `data/c.csv` is gone (from `make`)"});
}

TEST_CASE("tasks with the same cause are one group, and each is its own on request") {
  TaskGroups groups(false), each(true);
  for (TaskGroups* made : {&groups, &each}) {
    made->add("align[1]", "its function", ": changed");
    made->add("train", "its function", ": changed");
    made->add("align[2]", "its function", ": changed");
    made->add("align[3]", "argument", ": x is 3");
    made->add("align[4]", "argument", ": x is 4");
  }
  REQUIRE(groups.groups().size() == 3);
  CHECK(groups.groups()[0].names == std::vector<std::string>{"align[1]", "align[2]"});
  CHECK(groups.groups()[0].is_same_text);
  CHECK(groups.groups()[1].names == std::vector<std::string>{"train"});
  CHECK(groups.groups()[2].text == ": x is 3");
  CHECK_FALSE(groups.groups()[2].is_same_text);
  CHECK(each.groups().size() == 5);
}
