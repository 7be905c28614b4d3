#include "engine/page/page_server.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <optional>
#include <utility>

#include "engine/base/engine_thread.hpp"
#include "engine/page/page_assets.hpp"
#include "engine/page/page_json.hpp"
#include "engine/page/page_routes.hpp"
#include "engine/page/page_views.hpp"
#include "engine/page/result_parts.hpp"
#include "engine/query/task_values.hpp"
#include "engine/store/lock.hpp"
#include "engine/submission/prepare.hpp"
#include "engine/submission/requester.hpp"

namespace flow {

namespace {

constexpr uint64_t kBodyBytesMax = 64u << 10;
constexpr size_t kRunsMax = 5'000, kRunsUsual = 500;
constexpr size_t kLinesMax = 20'000, kLinesUsual = 2'000;
constexpr size_t kValueBytesMax = 32u << 10;  // of a preview
constexpr size_t kStartedMax = 16;
constexpr size_t kWaitingMax = 20'000, kWaitingUsual = 2'000;
constexpr size_t kPointsMax = 10'000, kPointsUsual = 500;
constexpr size_t kAttemptsMax = 50'000, kAttemptsUsual = 5'000;
constexpr uint64_t kCostSecondsUsual = 7 * 86'400, kCostSecondsMax = uint64_t{100} * 365 * 86'400;

HttpResponse json_response(std::string json) { return {200, std::move(json)}; }

int status_of(const Error& error) {
  if (error.kind == ErrorKind::user) return 404;  // an unknown run, task or metric
  return error.kind == ErrorKind::environment ? 503 : 500;
}

HttpResponse response_of(Result<std::string> json) {
  return json.ok() ? json_response(std::move(*json))
                   : error_response(status_of(json.error()), json.error().message);
}

/// "" if there is none: then nothing is measured.
std::string executor_of(const EngineOptions& options) {
  auto executor = find_executor(options);
  return executor.ok() ? *executor : "";
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

HttpResponse task_response(const StateFollower& state, const std::string& run,
                           const std::string& name) {
  RunInfo info = state.show(run);
  auto task = std::ranges::find(info.tasks, name, &TaskInfo::name);
  if (task == info.tasks.end())
    return error_response(404, fmt::format("the run {} has no task `{}`", info.id, name));
  return json_response(page_task(info, *task, Reader(state.options()).why(info.id, name)));
}

HttpResponse refusal(const Error& error) { return error_response(status_of(error), error.message); }

HttpResponse picture_response(const std::string& state_dir, const std::string& run,
                              const std::string& task, const std::string& digest) {
  auto picture = result_picture(state_dir, run, task, digest);
  if (!picture.ok()) return refusal(picture.error());
  return {200, std::move(picture->bytes), picture->media};
}

HttpResponse values_response(const std::string& state_dir, const std::string& run,
                             const std::string& task) {
  auto values = task_values(state_dir, run, task, kValueBytesMax);
  if (!values.ok()) return refusal(values.error());
  auto parts = result_parts(state_dir, run, task);
  if (!parts.ok()) return refusal(parts.error());
  auto text = [](const std::string& json) { return json.empty() ? "null" : text_to_json(json); };
  return json_response(fmt::format(R"({{"arguments":{},"result":{},"parts":{}}})",
                                   text(values->arguments), text(values->result),
                                   page_parts(*parts)));
}

}  // namespace

PageServer::PageServer(EngineOptions options, std::string state_dir, const std::string& who)
    : options_(options),
      state_dir_(std::move(state_dir)),
      fields_(page_security_fields()),
      actions_(options, state_dir_, who),
      gpus_(std::make_shared<GpuReadings>(executor_of(options))),
      state_(std::move(options)) {
  state_.poll([this] { return streams_.is_watched(); },
              [this](const StateFollower& state) {
                streams_.send_changes(state, state_is_locked(state_dir_));
              });
}

Result<std::unique_ptr<PageServer>> PageServer::open(const EngineOptions& options,
                                                     const std::string& state_dir,
                                                     const HttpOptions& given,
                                                     PageExposure exposure,
                                                     const std::string& who) {
  std::unique_ptr<PageServer> page(new PageServer(options, state_dir, who));
  HttpOptions http = given;
  http.rules.body_max = kBodyBytesMax;
  http.rules.methods = page_methods;
  http.rules.keeps_fields = true;
  http.rules.hosts = exposure.names;
  http.rules.is_encrypted = exposure.is_encrypted;
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
  PageTokens tokens = PageTokens::make(exposure.keys.size());
  page->access_ =
      std::make_unique<PageAccess>(std::move(tokens), page->server_->port(), std::move(exposure));
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
  if (route.endpoint == PageEndpoint::sign_in) return send(reply, access_->sign_in(request));
  if (route.endpoint == PageEndpoint::home)
    return send(reply, asset_response(access_->wants_key(request) ? "sign-in.html" : "index.html"));
  if (route.endpoint == PageEndpoint::asset) return send(reply, asset_response(route.name));
  std::string by;
  if (is_action(route.endpoint))
    by = page_requester(actions_.who(), request.client_address, access_->key_fingerprint(request));
  auto shared = std::make_shared<HttpReply>(std::move(reply));
  if (start_view(route, PageQuery(request.query), shared)) return;
  auto job = [this, send, shared, route, query = PageQuery(request.query),
              body = std::move(request.body), by](const StateFollower& state) {
    if (shared->is_abandoned()) return;
    if (route.endpoint == PageEndpoint::events)
      return streams_.add(std::move(*shared), query.get("run"), fields_);
    if (is_action(route.endpoint)) return act(state, route, query, body, by, shared);
    send(*shared, answer(state, route, query));
  };
  auto refuse = [send, shared](const Error& error) {
    send(*shared, error_response(status_of(error), error.message));
  };
  // The name of an action's run may belong to another run than a moment ago.
  if (!state_.post(std::move(job), std::move(refuse), is_action(route.endpoint)))
    send(*shared, busy_response(503, "the page has too many requests"));
}

bool PageServer::start_view(const PageRoute& route, const PageQuery& query,
                            const std::shared_ptr<HttpReply>& reply) {
  using View = std::function<HttpResponse()>;
  auto view = [&]() -> View {
    switch (route.endpoint) {
      case PageEndpoint::services:
        return [options = options_] { return json_response(page_services(options)); };
      case PageEndpoint::values:
        return [dir = state_dir_, run = route.name, task = query.get("task")] {
          return values_response(dir, run, task);
        };
      case PageEndpoint::picture:
        return [dir = state_dir_, run = route.name, task = query.get("task"),
                digest = query.get("digest")] { return picture_response(dir, run, task, digest); };
      case PageEndpoint::attempts:
        return [options = options_, run = route.name, task = query.get("task"),
                limit = query.number("limit", kAttemptsUsual, kAttemptsMax)] {
          return json_response(page_earlier_attempts(options, run, task, limit));
        };
      case PageEndpoint::cost:
        return [options = options_, run = route.name, by = query.get("by")] {
          return json_response(page_cost(options, run, by));
        };
      case PageEndpoint::costs:
        return [options = options_, by = query.get("by"),
                since = query.number("since_s", kCostSecondsUsual, kCostSecondsMax)] {
          return json_response(page_costs(options, since, by));
        };
      default:
        return nullptr;
    }
  };
  if (route.endpoint == PageEndpoint::cluster) {
    start(
        Work::asks_writer,
        [dir = state_dir_, gpus = gpus_] { return response_of(page_cluster(dir, *gpus)); }, reply);
    return true;
  }
  View work = view();
  if (work == nullptr) return false;
  start(Work::reads_state, std::move(work), reply);
  return true;
}

HttpResponse PageServer::answer(const StateFollower& state, const PageRoute& route,
                                const PageQuery& query) {
  switch (route.endpoint) {
    case PageEndpoint::session:
      return json_response(session_json());
    case PageEndpoint::runs:
      return json_response(page_runs(state.list(), {query.get("q"), query.get("status")},
                                     query.number("limit", kRunsUsual, kRunsMax)));
    case PageEndpoint::run:
      return json_response(state.show(route.name).json());
    case PageEndpoint::tasks:
      return json_response(
          tables_.recent(state, route.name, std::chrono::milliseconds(StateThread::kStateMs))
              .changes(query.number("table", 0, UINT64_MAX), query.number("since", 0, UINT64_MAX)));
    case PageEndpoint::waiting:
      return json_response(page_waiting(state, query.number("limit", kWaitingUsual, kWaitingMax)));
    case PageEndpoint::graph:
      return json_response(page_graph(state.graph(route.name)));
    case PageEndpoint::task:
      return task_response(state, route.name, query.get("name"));
    case PageEndpoint::logs:
      return logs(route.name, query);
    case PageEndpoint::metrics:
      return json_response(page_metrics(state.metrics(route.name, query.get("task")),
                                        query.number("limit", kPointsUsual, kPointsMax)));
    default:
      return error_response(404, "the page has no such resource");
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
  return fmt::format(R"({{"state":{},"version":{},"writer":{},"who":{},"token":{}}})",
                     text_to_json(state_dir_), text_to_json(version()), state_is_locked(state_dir_),
                     text_to_json(actions_.who()), text_to_json(access_->tokens().action));
}

void PageServer::act(const StateFollower& state, const PageRoute& route, const PageQuery& query,
                     const std::string& body, const std::string& by,
                     std::shared_ptr<HttpReply> reply) {
  // The id, since a name may be given to another run before the writer reads it. A rollback is of
  // the name.
  bool is_of_name = route.endpoint == PageEndpoint::rollback;
  std::string run = is_of_name ? route.name : state.show(route.name).id;
  PageAction action;
  try {
    action = actions_.make(route.endpoint, run, query, body, by);
  } catch (const Failed& failed) {
    HttpResponse response = error_response(400, failed.error.message);
    response.fields += fields_;
    return reply->send(std::move(response));
  }
  start(
      Work::asks_writer,
      [state_dir = state_dir_, action = std::move(action)] {
        return answer_of_writer(state_dir, action);
      },
      std::move(reply));
}

void PageServer::start(Work kind, std::function<HttpResponse()> work,
                       std::shared_ptr<HttpReply> reply) {
  auto send = [fields = fields_, reply = std::move(reply)](HttpResponse response) {
    response.fields += fields;
    reply->send(std::move(response));
  };
  if (++*started_ > kStartedMax) {
    --*started_;
    return send(busy_response(503, "too many requests wait for the process that writes the state"));
  }
  // It has copies of all it uses.
  auto body = [started = started_, work = std::move(work), send] {
    HttpResponse response;
    try {
      response = work();
    } catch (const Failed& failed) {
      response = error_response(status_of(failed.error), failed.error.message);
    }
    --*started;
    send(std::move(response));
  };
  if (kind == Work::reads_state) return readers_.start(std::move(body));
  engine_thread(std::move(body)).detach();
}

}  // namespace flow
