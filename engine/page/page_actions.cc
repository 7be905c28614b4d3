#include "engine/page/page_actions.hpp"

#include <fmt/format.h>

#include <utility>

#include "engine/base/files.hpp"
#include "engine/base/throwing.hpp"
#include "engine/client/messages.hpp"
#include "engine/client/run_stream.hpp"
#include "engine/page/page_json.hpp"
#include "engine/store/lock.hpp"
#include "engine/submission/prepare.hpp"
#include "flow/value.hpp"

namespace flow {

PageActions::PageActions(EngineOptions options, std::string state_dir, std::string who)
    : options_(std::move(options)), state_dir_(std::move(state_dir)), who_(std::move(who)) {}

PageAction PageActions::make(PageEndpoint endpoint, const std::string& run, const PageQuery& query,
                             const std::string& body, const std::string& by) const {
  switch (endpoint) {
    case PageEndpoint::cancel:
      return cancel(by, run);
    case PageEndpoint::stop:
      return stop(by, run);
    case PageEndpoint::retry:
      return retry(by, run, query.get("task"));
    case PageEndpoint::rollback:
      return rollback(by, run);
    default:
      return signal(by, run, query.get("name"), body);
  }
}

std::string PageActions::command(const std::string& words) const {
  return fmt::format("flow {} --state {}", words, quote_shell(state_dir_));
}

PageAction PageActions::cancel(const std::string& by, const std::string& run) const {
  PageAction action;
  action.request->mutable_cancel_run()->set_run(run);
  action.request->mutable_cancel_run()->set_by(by);
  action.run = run;
  action.command = command("cancel " + quote_shell(run));
  return action;
}

PageAction PageActions::stop(const std::string& by, const std::string& run) const {
  PageAction action;
  action.request->mutable_stop_run()->set_run(run);
  action.request->mutable_stop_run()->set_within_ms(-1);
  action.request->mutable_stop_run()->set_by(by);
  action.run = run;
  action.command = command("stop " + quote_shell(run));
  return action;
}

PageAction PageActions::signal(const std::string& by, const std::string& run,
                               const std::string& name, const std::string& json) const {
  if (name.empty()) throw Failed(user_error("a signal needs a name: ?name=NAME"));
  auto value = from_json(json);
  if (!value.ok())
    throw Failed(
        user_error(fmt::format("the value of the signal `{}` is not JSON: {}. A text "
                               "needs its quotes",
                               name, value.error().message)));
  PageAction action;
  client_protocol::SendSignal& signal = *action.request->mutable_send_signal();
  signal.set_run(run);
  signal.set_name(name);
  signal.set_json(json);
  signal.set_by(by);
  action.run = run;
  action.command = command(fmt::format("signal {} {} JSON", quote_shell(run), quote_shell(name)));
  return action;
}

void PageActions::put_submission_of_page(const std::string& by,
                                         client_protocol::Submission& to) const {
  RunOptions run;
  run.detached = true;
  Submission submission = value_or_throw(make_submission(options_, run));
  submission.user = who_;
  submission.by = by;
  put_submission(submission, to);
}

PageAction PageActions::retry(const std::string& by, const std::string& run,
                              const std::string& task) const {
  PageAction action;
  client_protocol::RetryTask& retry = *action.request->mutable_retry_task();
  retry.set_run(run);
  retry.set_task(task);
  put_submission_of_page(by, *retry.mutable_submission());
  action.run = run;
  std::string words = task.empty() ? quote_shell(run) : quote_shell(run) + " " + quote_shell(task);
  action.command = command("retry " + words);
  return action;
}

PageAction PageActions::rollback(const std::string& by, const std::string& name) const {
  PageAction action;
  client_protocol::ServeRun& serve = *action.request->mutable_serve_run();
  serve.set_run(name);
  serve.set_rolls_back(true);
  put_submission_of_page(by, *serve.mutable_submission());
  action.run = name;
  action.command = command("rollback " + quote_shell(name));
  return action;
}

HttpResponse answer_of_writer(const std::string& state_dir, const PageAction& action) {
  if (!state_is_locked(state_dir))
    return error_response(409, fmt::format("no process writes this state, and the page never does. "
                                           "Use the command `{}`",
                                           action.command));
  auto reply = send_to_writer(state_dir, *action.request);
  if (!reply.ok()) return error_response(503, reply.error().message);
  if (reply->has_error()) return error_response(409, reply->error().message());
  const std::string& run = reply->has_run_started() ? reply->run_started().run() : action.run;
  return {200, fmt::format(R"({{"run":{}}})", text_to_json(run))};
}

}  // namespace flow
