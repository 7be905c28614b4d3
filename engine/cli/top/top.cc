// flow top: a screen that follows the state, or one frame of it as text or JSON.
#include "engine/cli/top/top.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "engine/cli/display/screen.hpp"
#include "engine/cli/display/signals.hpp"
#include "engine/cli/top/full_screen.hpp"
#include "engine/cli/top/view_thread.hpp"

namespace flow::cli {

namespace {

constexpr int64_t kIntervalMs = 1'000, kIntervalMsMin = 100;
constexpr int64_t kTickMs = 200;     // durations move, and a new size of the terminal is seen
constexpr size_t kTextRowsMax = 50;  // of each table, as text
constexpr size_t kTextColumnsMin = 80;

struct TopArguments {
  std::string run, interval;
  bool is_once = false;
};

int print_once(const VerbContext& context, const TopArguments& arguments) {
  ClusterView view = ClusterViewer(context.engine()).view(arguments.run);
  if (context.json) {
    print_line(view.json());
  } else {
    if (!has_unicode_locale()) use_ascii();
    size_t columns = std::max(output_columns(), kTextColumnsMin);
    print_text(top_text(view, columns, kTextRowsMax, now_ms()));
  }
  return kDone;
}

/// Takes what the threads bring to the screen.
void take_news(ViewThread& reader, RequestThread& requests, FullScreen& screen, TopView& view) {
  if (auto news = reader.take()) {
    view.set_problem(news->problem);
    if (news->view) view.set_view(std::move(news->view));
  }
  if (auto outcome = requests.take_outcome()) {
    view.set_note(*outcome);
    screen.forget();  // an engine may have written to the terminal
  }
}

int follow(const VerbContext& context, const TopArguments& arguments, int64_t interval_ms) {
  const EngineOptions options = context.engine();
  // An unknown run or a damaged state is an error.
  auto first = std::make_shared<const ClusterView>(ClusterViewer(options).view(arguments.run));
  std::unique_ptr<FullScreen> screen = FullScreen::open();
  if (!screen) {
    const char* term = std::getenv("TERM");
    fail("the terminal `" + std::string(term == nullptr ? "" : term) +
         "` ($TERM) is not known: `flow top --once` prints what it would show.");
  }
  std::atomic<bool> is_ended{false};
  auto wake = [&] { screen->wake(); };
  RequestThread requests(options, wake);
  ViewThread reader(options, arguments.run, interval_ms, wake);
  // Destroyed before the threads, which may have to wait: then signals end the program.
  Signals signals([&](int) {
    is_ended = true;
    screen->wake();
  });
  TopView view;
  view.set_run(arguments.run);
  view.set_view(std::move(first));
  while (!is_ended && !screen->is_closed() && !view.has_ended()) {
    take_news(reader, requests, *screen, view);
    TerminalSize size = screen->size();
    screen->draw(view.frame(size.columns, size.rows, now_ms()));
    screen->wait(kTickMs);
    while (auto key = screen->key()) {
      auto request = view.on_key(*key);
      if (request && !requests.send(*request)) view.set_note("the last request is under way");
    }
    reader.select(view.run());
  }
  screen->end();
  return kDone;
}

}  // namespace

void add_top(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<TopArguments>();
  CLI::App* verb =
      add_verb(app, context, "top", "follow runs, tasks, workers and GPUs on a screen");
  add_run_argument(verb, arguments->run);
  verb->add_option("--interval", arguments->interval, "time between two reads (default: 1s)")
      ->type_name("TIME");
  verb->add_flag("--once", arguments->is_once, "print one frame as text");
  add_head_options(verb, context);
  verb->callback([&context, arguments] {
    context.action = [&context, arguments] {
      int64_t interval_ms = kIntervalMs;
      if (!arguments->interval.empty())
        interval_ms = parse_duration("--interval", arguments->interval);
      if (interval_ms < kIntervalMsMin)
        fail("--interval is " + format_duration(kIntervalMsMin) + " or more, not `" +
             arguments->interval + "`.");
      bool is_live =
          !arguments->is_once && !context.json && is_terminal() && isatty(STDIN_FILENO) == 1;
      return is_live ? follow(context, *arguments, interval_ms) : print_once(context, *arguments);
    };
  });
}

}  // namespace flow::cli
