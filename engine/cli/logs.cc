// flow logs [RUN] [TASK[@ATTEMPT]] [-f]
#include <chrono>
#include <thread>

#include "engine/cli/verbs.hpp"

namespace flow::cli {

namespace {

constexpr auto kFollowEvery = std::chrono::milliseconds(400);

const char* stream_name(int stream) {
  switch (stream) {
    case 0:
      return "log";
    case 1:
      return "stdout";
    default:
      return "stderr";
  }
}

void print_log(const LogLine& line, bool json, bool named) {
  if (json) {
    print_line(
        "{\"task\":" + json_text(line.task) + ",\"attempt\":" + std::to_string(line.attempt) +
        ",\"stream\":" + json_text(stream_name(line.stream)) +
        ",\"at\":" + json_text(iso_time(line.at_ms)) + ",\"text\":" + json_text(line.text) + "}");
    return;
  }
  std::string label = line.task + (line.attempt > 1 ? "@" + std::to_string(line.attempt) : "");
  print_raw((named ? label + " | " + line.text : line.text) + "\n");
}

bool goes_on(const std::string& status) {
  return status == "pending" || status == "running" || status == "serving" || status == "waiting";
}

/// Prints what came after the first `printed` lines of each task and attempt; counts them.
class Printer {
 public:
  Printer(bool json, bool named) : json_(json), named_(named) {}
  void print(const std::vector<LogLine>& lines) {
    std::map<std::pair<std::string, uint32_t>, size_t> seen;
    for (const LogLine& line : lines) {
      std::pair<std::string, uint32_t> source(line.task, line.attempt);
      if (++seen[source] > printed_[source]) print_log(line, json_, named_);
    }
    for (const auto& [source, count] : seen) printed_[source] = std::max(printed_[source], count);
    flush_output();
  }

 private:
  bool json_, named_;
  std::map<std::pair<std::string, uint32_t>, size_t> printed_;
};

}  // namespace

void add_logs(CLI::App& app, Session& session) {
  auto selector = std::make_shared<std::string>();
  auto task = std::make_shared<std::string>();
  auto follow = std::make_shared<bool>(false);
  CLI::App* verb = add_verb(app, session, "logs", "print what tasks logged and printed");
  add_run_argument(verb, *selector);
  verb->add_option("task", *task, "a task, or one attempt of it: train@2")
      ->type_name("TASK[@ATTEMPT]");
  verb->add_flag("-f,--follow", *follow, "go on until the run ends");
  verb->callback([&session, selector, task, follow] {
    session.action = [&session, selector, task, follow] {
      EngineOptions options = session.engine();
      std::string run = Reader(options).show(*selector).id;
      Printer printer(session.json, task->empty());
      for (;;) {
        // A reader sees the state as it was when it was opened.
        Reader reader(options);
        bool more = *follow && goes_on(reader.show(run).status);
        printer.print(reader.logs(run, *task));
        if (!more || output_error() != 0) return int{kDone};
        std::this_thread::sleep_for(kFollowEvery);
      }
    };
  });
}

}  // namespace flow::cli
