#include "engine/page/page_server.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <optional>
#include <utility>

#include "engine/base/engine_thread.hpp"
#include "engine/base/files.hpp"
#include "engine/client/messages.hpp"
#include "engine/client/run_stream.hpp"
#include "engine/page/page_assets.hpp"
#include "engine/page/page_json.hpp"
#include "engine/page/page_routes.hpp"
#include "engine/query/task_values.hpp"
#include "engine/store/lock.hpp"

namespace flow {

namespace {

constexpr uint64_t kBodyBytesMax = 64u << 10;
constexpr size_t kRunsMax = 5'000, kRunsUsual = 500;
constexpr size_t kLinesMax = 20'000, kLinesUsual = 2'000;
constexpr size_t kValueBytesMax = 32u << 10;  // of a preview
constexpr size_t kActionsMax = 8;
constexpr size_t kPointsMax = 10'000, kPointsUsual = 500;

HttpResponse json_response(std::string json) { return {200, std::move(json)}; }

int status_of(const Error& error) {
  if (error.kind == ErrorKind::user) return 404;  // an unknown run, task or metric
  return error.kind == ErrorKind::environment ? 503 : 500;
}

std::string_view type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  return "image/svg+xml";
}

HttpResponse asset_response(std::string_view name) {
  for (const PageAsset& asset : page_assets())
    if (asset.name == name)
      return {200, std::string(asset.content), std::string(type_of(asset.name))};
  return error_response(404, fmt::format("the page has no file `{}`", name));
}

HttpResponse task_response(const Reader& reader, const std::string& run, const std::string& name) {
  RunInfo info = reader.show(run);
  auto task = std::ranges::find(info.tasks, name, &TaskInfo::name);
  if (task == info.tasks.end())
    return error_response(404, fmt::format("the run {} has no task `{}`", info.id, name));
  return json_response(page_task(info, *task, reader.why(info.id, name)));
}

HttpResponse values_response(const std::string& state_dir, const std::string& run,
                             const std::string& task) {
  auto values = task_values(state_dir, run, task, kValueBytesMax);
  if (!values.ok()) return error_response(status_of(values.error()), values.error().message);
  auto text = [](const std::string& json) { return json.empty() ? "null" : page_text(json); };
  return json_response(fmt::format(R"({{"arguments":{},"result":{}}})", text(values->arguments),
                                   text(values->result)));
}

HttpResponse answer_of_writer(const std::string& state_dir,
                              const client_protocol::ClientRequest& request, const std::string& run,
                              const std::string& command) {
  if (!state_is_locked(state_dir))
    return error_response(409, fmt::format("no process writes this state, and the page never does. "
                                           "Use the command `{}`",
                                           command));
  auto reply = send_to_writer(state_dir, request);
  if (!reply.ok()) return error_response(503, reply.error().message);
  if (reply->has_error()) return error_response(409, reply->error().message());
  return json_response(fmt::format(R"({{"run":{}}})", page_text(run)));
}

/// What is wrong with a signal, if anything is.
std::optional<HttpResponse> signal_problem(const std::string& name, const std::string& json) {
  if (name.empty()) return error_response(400, "a signal needs a name: ?name=NAME");
  auto value = from_json(json);
  if (value.ok()) return std::nullopt;
  return error_response(400, fmt::format("the value of the signal `{}` is not JSON: {}. A text "
                                         "needs its quotes",
                                         name, value.error().message));
}

}  // namespace

/// What a writer is asked to do.
struct PageServer::Action {
  std::shared_ptr<client_protocol::ClientRequest> request =
      std::make_shared<client_protocol::ClientRequest>();
  std::string run, command = {};  // the command does the same, for the case that there is no writer
};

PageServer::PageServer(EngineOptions options, std::string state_dir)
    : options_(options),
      state_dir_(std::move(state_dir)),
      fields_(page_security_fields()),
      state_(std::move(options)) {
  state_.poll(
      [this] { return streams_.is_watched(); },
      [this](const Reader& reader) { streams_.send_changes(reader, state_is_locked(state_dir_)); });
}

Result<std::unique_ptr<PageServer>> PageServer::open(const EngineOptions& options,
                                                     const std::string& state_dir,
                                                     const HttpOptions& given) {
  std::unique_ptr<PageServer> page(new PageServer(options, state_dir));
  HttpOptions http = given;
  http.rules.body_max = kBodyBytesMax;
  http.rules.methods = page_methods;
  http.rules.keeps_fields = true;
  // A request may arrive before the port is known here; it waits for it.
  auto is_open = std::make_shared<std::promise<void>>();
  auto opened = is_open->get_future().share();
  auto server =
      HttpServer::open(http, [&page = *page, opened](HttpRequest request, HttpReply reply) {
        opened.wait();
        page.handle(std::move(request), std::move(reply));
      });
  if (!server.ok()) return server.error();
  page->server_ = std::move(*server);
  page->access_ = std::make_unique<PageAccess>(PageTokens::make(), page->server_->port());
  is_open->set_value();
  return page;
}

void PageServer::handle(HttpRequest request, HttpReply reply) {
  auto send = [this](HttpReply& to, HttpResponse response) {
    response.fields += fields_;
    to.send(std::move(response));
  };
  PageRoute route = page_route_of(request.path);
  if (auto refusal = access_->check(request, route.endpoint))
    return send(reply, std::move(*refusal));
  if (route.endpoint == PageEndpoint::home) return send(reply, asset_response("index.html"));
  if (route.endpoint == PageEndpoint::asset) return send(reply, asset_response(route.name));
  auto shared = std::make_shared<HttpReply>(std::move(reply));
  auto job = [this, send, shared, route, query = PageQuery(request.query),
              body = std::move(request.body)](const Reader& reader) {
    if (shared->is_abandoned()) return;
    if (route.endpoint == PageEndpoint::events)
      return streams_.add(std::move(*shared), query.get("run"), fields_);
    if (route.endpoint == PageEndpoint::cancel)
      return start(cancel(reader.show(route.name).id), shared);
    if (route.endpoint != PageEndpoint::signal) return send(*shared, answer(reader, route, query));
    const std::string& name = query.get("name");
    if (auto problem = signal_problem(name, body)) return send(*shared, std::move(*problem));
    start(signal(reader.show(route.name).id, name, body), shared);
  };
  auto refuse = [send, shared](const Error& error) {
    send(*shared, error_response(status_of(error), error.message));
  };
  if (!state_.post(std::move(job), std::move(refuse)))
    send(*shared, busy_response(503, "the page has too many requests"));
}

HttpResponse PageServer::answer(const Reader& reader, const PageRoute& route,
                                const PageQuery& query) const {
  switch (route.endpoint) {
    case PageEndpoint::session:
      return json_response(session_json());
    case PageEndpoint::runs:
      return json_response(page_runs(reader.list(), {query.get("q"), query.get("status")},
                                     query.number("limit", kRunsUsual, kRunsMax)));
    case PageEndpoint::run:
      return json_response(reader.show(route.name).json());
    case PageEndpoint::graph:
      return json_response(page_graph(reader.graph(route.name)));
    case PageEndpoint::task:
      return task_response(reader, route.name, query.get("name"));
    case PageEndpoint::values:
      return values_response(state_dir_, route.name, query.get("task"));
    case PageEndpoint::logs:
      return logs(route.name, query);
    case PageEndpoint::metrics:
      return json_response(page_metrics(reader.metrics(route.name, query.get("task")),
                                        query.number("limit", kPointsUsual, kPointsMax)));
    default:
      return error_response(404, "there is no such resource");
  }
}

HttpResponse PageServer::logs(const std::string& run, const PageQuery& query) const {
  auto matches = [&wanted = query.get("q")](std::string_view text) {
    return page_contains(text, wanted);
  };
  return json_response(page_logs(log_tail(options_, run, query.get("task"), matches,
                                          query.number("limit", kLinesUsual, kLinesMax))));
}

std::string PageServer::session_json() const {
  return fmt::format(R"({{"state":{},"version":{},"writer":{},"token":{}}})", page_text(state_dir_),
                     page_text(version()), state_is_locked(state_dir_),
                     page_text(access_->tokens().action));
}

PageServer::Action PageServer::cancel(const std::string& run) const {
  Action action;
  action.request->mutable_cancel_run()->set_run(run);
  action.run = run;
  action.command =
      fmt::format("flow cancel {} --state {}", quote_shell(run), quote_shell(state_dir_));
  return action;
}

PageServer::Action PageServer::signal(const std::string& run, const std::string& name,
                                      const std::string& json) const {
  Action action;
  client_protocol::SendSignal& signal = *action.request->mutable_send_signal();
  signal.set_run(run);
  signal.set_name(name);
  signal.set_json(json);
  action.run = run;
  action.command = fmt::format("flow signal {} {} JSON --state {}", quote_shell(run),
                               quote_shell(name), quote_shell(state_dir_));
  return action;
}

void PageServer::start(Action action, std::shared_ptr<HttpReply> reply) const {
  auto send = [fields = fields_, reply = std::move(reply)](HttpResponse response) {
    response.fields += fields;
    reply->send(std::move(response));
  };
  if (++*actions_ > kActionsMax) {
    --*actions_;
    return send(busy_response(503, "too many actions wait for the process that writes the state"));
  }
  // The thread has copies of all it uses, so the end of the page need not wait for the writer.
  engine_thread([state_dir = state_dir_, actions = actions_, action = std::move(action), send] {
    HttpResponse response =
        answer_of_writer(state_dir, *action.request, action.run, action.command);
    --*actions;
    send(std::move(response));
  }).detach();
}

}  // namespace flow
