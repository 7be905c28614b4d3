#include "engine/log/log_output.hpp"

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <stdexcept>
#include <vector>

#include "engine/base/log.hpp"
#include "tests/log/temp_folder.hpp"

using namespace flow;

namespace {

/// Keeps the lines of a log.
struct KeptLog {
  explicit KeptLog(std::optional<LogLevel> level = {}) {
    LogOptions options;
    options.level = level;
    options.sink = [this](const EngineLogLine& line) { lines.push_back(line); };
    auto opened = log::open_log(options, "");
    REQUIRE(opened.ok());
    output = std::move(*opened);
  }
  std::vector<std::string> messages() const {
    std::vector<std::string> texts;
    for (const EngineLogLine& line : lines) texts.push_back(line.message);
    return texts;
  }

  std::vector<EngineLogLine> lines;
  std::shared_ptr<void> output;
};

using Texts = std::vector<std::string>;

void log_at_each_level() {
  log::write(LogLevel::trace, "t", {});
  log::debug("d");
  log::info("i");
  log::warning("w");
  log::error("e");
}

}  // namespace

TEST_CASE("no level is enabled without a log") {
  CHECK(!log::is_on(LogLevel::error));
  {
    KeptLog kept;
    CHECK(log::is_on(LogLevel::info));
    CHECK(!log::is_on(LogLevel::debug));
  }
  CHECK(!log::is_on(LogLevel::error));
  auto none = log::open_log({}, "");
  REQUIRE(none.ok());
  CHECK(*none == nullptr);
}

TEST_CASE("each log gets the lines of its level and above") {
  KeptLog all(LogLevel::trace), normal, few(LogLevel::error), off(LogLevel::off);
  log_at_each_level();
  CHECK(all.messages() == Texts{"t", "d", "i", "w", "e"});
  CHECK(normal.messages() == Texts{"i", "w", "e"});
  CHECK(few.messages() == Texts{"e"});
  CHECK(off.messages().empty());
  all.output.reset();
  log_at_each_level();
  CHECK(all.lines.size() == 5);
  CHECK(normal.lines.size() == 6);
}

TEST_CASE("a sink receives all ids and the time") {
  KeptLog kept;
  log::info("attempt requeued",
            {.run = "r", .task = "t", .attempt = 2, .worker = "w", .detail = "d"});
  REQUIRE(kept.lines.size() == 1);
  const EngineLogLine& line = kept.lines[0];
  CHECK(line.level == LogLevel::info);
  CHECK(line.time_ms > 1'700'000'000'000);
  CHECK(line.message == "attempt requeued");
  CHECK(line.run == "r");
  CHECK(line.task == "t");
  CHECK(line.attempt == 2);
  CHECK(line.worker == "w");
  CHECK(line.detail == "d");
}

TEST_CASE("exceptions and log calls of a sink do not stop anything") {
  LogOptions options;
  int calls = 0;
  options.sink = [&](const EngineLogLine&) {
    calls++;
    log::error("from inside");
    throw std::runtime_error("a mistake of the host");
  };
  auto output = log::open_log(options, "");
  REQUIRE(output.ok());
  log::info("one");
  log::info("two");
  CHECK(calls == 2);
}

TEST_CASE("secret values are redacted in every text, also as JSON writes them") {
  TempFolder folder;
  LogOptions options;
  options.file = folder / "flow.log";
  options.json = true;
  auto output = log::open_log(options, folder / "state");
  REQUIRE(output.ok());
  log::hide({"tok\"en\nline two", "state"});
  log::warning("cannot use tok\"en",
               {.task = "t-tok\"en", .detail = "{\"a\":\"tok\\\"en\\nline two\"}"});
  log::info("plain", {.detail = "tok\"en\nline two, state, " + (folder / "state")});
  std::string text = read_file(options.file);
  CHECK(text.find("tok") == std::string::npos);
  CHECK(text.find("line two") == std::string::npos);
  CHECK(text.find("\"message\":\"cannot use "
                  "***\",\"task\":\"t-***\",\"detail\":\"{\\\"a\\\":\\\"***\\\"}\"") !=
        std::string::npos);
  // The path of the state is not redacted.
  CHECK(text.find("\"detail\":\"***, ***, " + (folder / "state") + "\"") != std::string::npos);
}

TEST_CASE("a text is redacted before it becomes part of a line") {
  log::hide({"long-s3cret"});
  LogOptions options;
  options.sink = [](const EngineLogLine&) {};
  auto output = log::open_log(options, "/home/long-s3cret/state");
  REQUIRE(output.ok());
  CHECK(log::redacted("the long-s3cret") == "the ***");
  CHECK(log::redacted("in /home/long-s3cret/state") == "in /home/long-s3cret/state");
}

TEST_CASE("a log file inside the state is rejected") {
  TempFolder folder;
  std::filesystem::create_directory(folder / "state");
  std::filesystem::create_directory_symlink(folder / "state", folder / "link");
  for (const char* name : {"state/flow.log", "state/../state/db/flow.log", "link/flow.log"}) {
    LogOptions options;
    options.file = folder / name;
    auto output = log::open_log(options, folder / "state");
    REQUIRE(!output.ok());
    CHECK(output.error().kind == ErrorKind::user);
    CHECK(output.error().message.find("name a file outside of it") != std::string::npos);
  }
  LogOptions options;
  options.file = folder / "state.log";
  CHECK(log::open_log(options, folder / "state").ok());
}

TEST_CASE("lines that cannot be written are counted, and the file reports them later") {
  TempFolder folder;
  LogOptions options;
  options.file = folder / "flow.log";
  auto opened = log::LogOutput::open(options, "");
  REQUIRE(opened.ok());
  log::LogOutput& output = **opened;
  EngineLogLine line;
  line.message = "one";
  output.write(line);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit limit{40, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  output.write(line);
  output.write(line);
  CHECK(output.dropped() == 2);
  ::setrlimit(RLIMIT_FSIZE, &before);
  line.message = "four";
  output.write(line);
  CHECK(output.dropped() == 0);
  std::string text = read_file(options.file);
  CHECK(text.find("warning log lines were dropped detail=\"2 lines\"\n") != std::string::npos);
  CHECK(text.ends_with("info  four\n"));
}
