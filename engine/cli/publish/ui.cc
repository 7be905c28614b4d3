// flow ui: the web page of the state, until Ctrl-C.
#include "engine/cli/publish/publish_verbs.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>

#include "engine/cli/display/page_options.hpp"
#include "engine/cli/display/signals.hpp"

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

}  // namespace

void add_ui(CLI::App& app, VerbContext& context) {
  auto options = std::make_shared<PageOptions>();
  CLI::App* verb = add_verb(app, context, "ui", "show the runs as a web page, until Ctrl-C");
  verb->add_option(
          "--listen", options->listen,
          "address to listen on, beyond loopback only with --tls-cert, --tls-key and --keys; port "
          "0: a free port (default: a free port of a random address in 127.0.0.0/8)")
      ->type_name("HOST:PORT");
  add_page_options(*verb, *options);
  verb->callback([&context, options] {
    context.action = [&context, options] {
      EndWait end;
      Page page(context.engine(), *options);
      print_page(page, context.json);
      if (output_error() != 0) return int{kUnreachable};
      end.wait();
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
