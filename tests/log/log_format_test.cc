#include "engine/log/log_format.hpp"

#include <catch2/catch.hpp>

#include "flow/value.hpp"

using namespace flow;

namespace {

EngineLogLine joined() {
  EngineLogLine line;
  line.time_ms = 1'795'860'000'123;  // 2026-11-28T10:00:00.123Z
  line.message = "worker joined";
  line.worker = "w1";
  return line;
}

}  // namespace

TEST_CASE("a text line has the time, the level, the message and the fields that are set") {
  EngineLogLine line = joined();
  CHECK(log::text_line(line) == "2026-11-28T10:00:00.123Z info  worker joined worker=w1");
  line.level = LogLevel::warning;
  line.run = "20261128-100000-abcd";
  line.task = "train#2[1]";
  line.attempt = 3;
  line.detail = "at 10.0.0.7:41231";
  CHECK(log::text_line(line) ==
        "2026-11-28T10:00:00.123Z warning worker joined run=20261128-100000-abcd task=train#2[1] "
        "attempt=3 worker=w1 detail=\"at 10.0.0.7:41231\"");
}

TEST_CASE("a text line is one line without control characters") {
  EngineLogLine line = joined();
  line.worker = "";
  line.detail = "a\nb\x1b[2J\xc2\x9b\"\\\t=";
  CHECK(log::text_line(line) ==
        "2026-11-28T10:00:00.123Z info  worker joined "
        "detail=\"a\\nb\\x1b[2J\\u009b\\\"\\\\\\t=\"");
}

TEST_CASE("a JSON line has its keys in a fixed order and omits empty ones") {
  EngineLogLine line = joined();
  CHECK(
      log::json_line(line) ==
      R"({"time":"2026-11-28T10:00:00.123Z","level":"info","message":"worker joined","worker":"w1"})");
  line.level = LogLevel::error;
  line.run = "r";
  line.task = "t";
  line.attempt = 1;
  line.detail = "a\n\"b\"\xff";
  CHECK(log::json_line(line) ==
        "{\"time\":\"2026-11-28T10:00:00.123Z\",\"level\":\"error\",\"message\":\"worker joined\","
        "\"run\":\"r\",\"task\":\"t\",\"attempt\":1,\"worker\":\"w1\","
        "\"detail\":\"a\\n\\\"b\\\"\xef\xbf\xbd\"}");
  CHECK(from_json(log::json_line(line)).ok());
}
