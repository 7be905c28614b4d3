#include "engine/fetch/s3_client.hpp"

#include <catch2/catch.hpp>

using namespace flow;
using namespace flow::fetch;

TEST_CASE("a pattern matches whole keys") {
  auto matches = [](const char* pattern, const char* key) { return matches_key(pattern, key); };
  CHECK(matches("a/*.parquet", "a/b.parquet"));
  CHECK_FALSE(matches("a/*.parquet", "a/b/c.parquet"));
  CHECK_FALSE(matches("a/*.parquet", "a/.b.parquet"));
  CHECK(matches("a/.*.parquet", "a/.b.parquet"));
  CHECK(matches("a/**/*.parquet", "a/b.parquet"));
  CHECK(matches("a/**/*.parquet", "a/b/c/d.parquet"));
  CHECK_FALSE(matches("a/**/*.parquet", "a/.b/d.parquet"));
  CHECK_FALSE(matches("a/**/*.parquet", "b/a/d.parquet"));
  CHECK(matches("part-[0-9]?.csv", "part-01.csv"));
  CHECK(matches("what\\?", "what?"));
  CHECK_FALSE(matches("what\\?", "what!"));
}
