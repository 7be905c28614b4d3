// Names of tasks and files in exports, and in pipelines that are made from workflows.
#include <catch2/catch.hpp>

#include "engine/exports/unique_names.hpp"
#include "engine/exports/wfformat_pipeline.hpp"

using namespace flow;

TEST_CASE("a name that is wanted often tries each number once") {
  constexpr int kNames = 1000;
  UniqueNames names;
  int tried = 0;
  auto numbered = [&](int n) {
    tried++;
    return std::to_string(n) + "-a";
  };
  CHECK(names.add("3-a", numbered) == "3-a");
  CHECK(names.add("a", numbered) == "a");
  CHECK(names.add("a", numbered) == "2-a");
  CHECK(names.add("a", numbered) == "4-a");
  for (int i = 0; i < kNames; i++) names.add("a", numbered);
  CHECK(tried == kNames + 3);
}

TEST_CASE("no file of a workflow is named as the folder of flow in a task's working folder") {
  for (const char* id :
       {"inputs", "/data/inputs", "inputs/inputs", "../inputs", "./inputs", "s3://b/inputs"})
    CHECK(local_name(id) == "inputs_");
  CHECK(local_name("inputs/a.txt") == "a.txt");
  CHECK(local_name("data/inputs") == "data/inputs");
  CHECK(local_name("a/b/c.txt") == "a/b/c.txt");
  CHECK(local_name("/a/b/c.txt") == "c.txt");
  CHECK(local_name("a/../c.txt") == "c.txt");
  CHECK(local_name("//.") == "unnamed");
}
