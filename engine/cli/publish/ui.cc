// flow ui: the web page of the state, until Ctrl-C.
#include "engine/cli/publish/publish_verbs.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>

#include "engine/cli/display/signals.hpp"
#include "flow/page.hpp"

namespace flow::cli {

namespace {

/// Blocks until the process is asked to end, also by the end of its terminal.
class EndWait {
 public:
  EndWait() : signals_([this](int) { end(); }) {}
  void wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return has_ended_; });
  }

 private:
  void end() {
    std::lock_guard lock(mutex_);
    has_ended_ = true;
    ended_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  Signals signals_;  // last: its thread uses the others
};

void print_link(const Page& page, bool json) {
  if (json) {
    print_line("{\"url\":" + json_text(page.link()) + ",\"address\":" + json_text(page.address()) +
               ",\"state\":" + json_text(page.state_dir()) + "}");
  } else {
    print_line("the page of `" + page.state_dir() + "`, for anyone with the link, until Ctrl-C:");
    print_line(page.link());
  }
  flush_output();
}

}  // namespace

void add_ui(CLI::App& app, VerbContext& context) {
  auto listen = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, context, "ui", "show the runs as a web page, until Ctrl-C");
  verb->add_option(
          "--listen", *listen,
          "address of loopback to listen on; port 0: a free port (default: a free port of a "
          "random address in 127.0.0.0/8)")
      ->type_name("HOST:PORT");
  verb->callback([&context, listen] {
    context.action = [&context, listen] {
      EndWait end;
      PageOptions options;
      if (!listen->empty()) options.listen = *listen;
      Page page(context.engine(), options);
      print_link(page, context.json);
      if (output_error() != 0) return int{kUnreachable};
      end.wait();
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
