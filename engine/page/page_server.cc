#include "engine/page/page_server.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <utility>

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

}  // namespace

PageServer::PageServer(EngineOptions options, std::string state_dir)
    : state_dir_(std::move(state_dir)),
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
    send(*shared, answer(reader, route, query, body));
  };
  auto refuse = [send, shared](const Error& error) {
    send(*shared, error_response(status_of(error), error.message));
  };
  if (!state_.post(std::move(job), std::move(refuse)))
    send(*shared, busy_response(503, "the page has too many requests"));
}

HttpResponse PageServer::answer(const Reader& reader, const PageRoute& route,
                                const PageQuery& query, const std::string& body) const {
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
      return json_response(page_logs(reader.logs(route.name, query.get("task")), query.get("q"),
                                     query.number("limit", kLinesUsual, kLinesMax)));
    case PageEndpoint::metrics:
      return json_response(page_metrics(reader.metrics(route.name, query.get("task")),
                                        query.number("limit", kPointsUsual, kPointsMax)));
    case PageEndpoint::cancel:
      return cancel(reader.show(route.name).id);
    case PageEndpoint::signal:
      return signal(reader.show(route.name).id, query.get("name"), body);
    default:
      return error_response(404, "there is no such resource");
  }
}

std::string PageServer::session_json() const {
  return fmt::format(R"({{"state":{},"version":{},"writer":{},"token":{}}})", page_text(state_dir_),
                     page_text(version()), state_is_locked(state_dir_),
                     page_text(access_->tokens().action));
}

HttpResponse PageServer::act(const client_protocol::ClientRequest& request, const std::string& run,
                             const std::string& command) const {
  if (!state_is_locked(state_dir_))
    return error_response(409, fmt::format("no process writes this state, and the page never does. "
                                           "Use the command `{}`",
                                           command));
  auto reply = send_to_writer(state_dir_, request);
  if (!reply.ok()) return error_response(503, reply.error().message);
  if (reply->has_error()) return error_response(409, reply->error().message());
  return json_response(fmt::format(R"({{"run":{}}})", page_text(run)));
}

HttpResponse PageServer::cancel(const std::string& run) const {
  client_protocol::ClientRequest request;
  request.mutable_cancel_run()->set_run(run);
  return act(request, run, fmt::format("flow cancel {}", run));
}

HttpResponse PageServer::signal(const std::string& run, const std::string& name,
                                const std::string& json) const {
  if (name.empty()) return error_response(400, "a signal needs a name: ?name=NAME");
  if (auto value = from_json(json); !value.ok())
    return error_response(400, fmt::format("the value of the signal `{}` is not JSON: {}. A text "
                                           "needs its quotes",
                                           name, value.error().message));
  client_protocol::ClientRequest request;
  client_protocol::SendSignal& signal = *request.mutable_send_signal();
  signal.set_run(run);
  signal.set_name(name);
  signal.set_json(json);
  return act(request, run, fmt::format("flow signal {} {} JSON", run, name));
}

}  // namespace flow
