#include "engine/front/forwarding_version.hpp"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "engine/base/size_units.hpp"
#include "engine/process/listening_socket.hpp"
#include "engine/serve/http/http_upload.hpp"
#include "engine/serve/http/trace_context.hpp"
#include "engine/serve/service_routes.hpp"

namespace flow {

namespace {

using std::chrono::milliseconds;

constexpr auto kDownTime = milliseconds(100);   // for which an unreachable server gets no request
constexpr int64_t kRemoteMs = 15'000;           // for a connection through a worker
constexpr auto kLookPause = milliseconds(100);  // between looks for clients that have left
constexpr int kStatusMax = 599;                 // that is counted as it is
constexpr int kBusy = 429;

/// A server that gets a trace which is not valid would have to begin a new one, without the state
/// of the other.
void drop_malformed_trace(HttpRequest& request) {
  if (!request.traceparent.empty()) return;
  auto is_named = [](const HttpField& field, const char* name) {
    return ::strcasecmp(field.name.c_str(), name) == 0;
  };
  std::erase_if(request.fields, [&](const HttpField& field) {
    return is_named(field, "traceparent") || is_named(field, "tracestate");
  });
}

/// For the log.
std::string failure_text(const HttpRequest& request, const std::string& message) {
  if (request.traceparent.empty()) return "request failed: " + message;
  return fmt::format("request of the trace {} failed: {}", trace_id_of(request.traceparent),
                     message);
}

}  // namespace

/// The sockets with which a server may listen at its port. Once it has closed them, any user of the
/// machine can listen there.
struct ForwardingVersion::ServerSockets {
  static constexpr size_t kKnownMax = 64;

  const std::string replica;
  const pid_t executor;  // that has started the server
  const uint16_t port;
  std::deque<uint64_t> known;  // up to kKnownMax; empty: any
  std::string refusal{};       // of the last look at the processes, which takes milliseconds,
  Clock::time_point refused_until{};  // and which is not repeated before

  void add(uint64_t cookie) {
    if (cookie == 0) return;
    if (known.size() == kKnownMax) known.pop_front();
    known.push_back(cookie);
  }

  /// Whether a connection that was made just now is one to the server. If a known socket listens,
  /// it has listened all the time, and the kernel lets no other user listen beside it.
  Status check() {
    if (known.empty()) return {};
    auto found = listening_socket(port);
    if (!found.ok()) return found.error();
    if (!*found)
      return environment_error(
          fmt::format("the server of `{}` no longer listens at 127.0.0.1:{}", replica, port));
    if (std::ranges::count(known, (*found)->cookie) > 0) return {};
    if (Clock::now() < refused_until) return environment_error(refusal);
    if (is_open_in_descendant(executor, **found)) {
      add((*found)->cookie);
      return {};
    }
    refused_until = Clock::now() + kDownTime;
    refusal = fmt::format(
        "a process of user {} listens at 127.0.0.1:{}, the port of the server of `{}`: "
        "no request is sent there",
        (*found)->user, port, replica);
    return environment_error(refusal);
  }
};

struct ForwardingVersion::Server {
  uint64_t number;
  FrontReplica* replica;
  std::shared_ptr<ServerSockets> sockets;
  HttpProxy proxy;
  uint64_t answered = 0;    // requests
  uint64_t last_start = 0;  // of a request
  Clock::time_point down_until{};
  bool is_leaving = false, is_replaced = false;
  // As is_leaving, for requests that end when the server was removed.
  std::shared_ptr<bool> leaves = std::make_shared<bool>(false);

  bool is_down() const { return Clock::now() < down_until; }
};

ForwardingVersion::ForwardingVersion(std::string id, ServiceOptions options, EventLoop& loop,
                                     std::function<void(const std::string&)> log,
                                     std::function<void()> changed)
    : ServiceVersion(std::move(id), std::move(options), std::move(log), std::move(changed)),
      loop_(loop) {}

ForwardingVersion::~ForwardingVersion() = default;

// ---- Requests

void ForwardingVersion::forward(HttpRequest request, HttpReply reply) {
  drop_malformed_trace(request);
  note_version(request.record.get());
  Request own{.proxied = {std::move(request), std::move(reply)}, .arrived = Clock::now()};
  Clock::duration timeout = milliseconds(options().request_timeout_ms);
  if (const std::string& asked = own.proxied.request.timeout; !asked.empty()) {
    auto parsed = parse_request_timeout(asked);
    if (!parsed.ok()) return refuse(own, 400, parsed.error().message);
    timeout = std::min<Clock::duration>(timeout, *parsed);
  }
  if (is_closed_) return refuse(own, 503, "the service is stopping");
  if (std::string full = full_text(); !full.empty()) return refuse(own, kBusy, full);
  own.proxied.deadline = own.arrived + timeout;
  own.proxied.patience = timeout;
  own.proxied.is_repeatable = options().is_idempotent;
  send_on(std::move(own));
}

std::string ForwardingVersion::full_text() const {
  const size_t most = requests_max();
  if (queued() + running() < most) return "";
  return fmt::format(
      "`{}` has {} requests, as many as its `queue` of {} for each server permits; "
      "try again later",
      options().name, most, options().queue);
}

/// More servers take more requests. Without one, requests wait for the first.
size_t ForwardingVersion::requests_max() const {
  auto staying = std::ranges::count_if(
      servers_, [](const auto& each) { return !each->is_leaving && !each->is_replaced; });
  return options().queue * std::max<size_t>(1, static_cast<size_t>(staying));
}

/// The one with the fewest requests; of several, the one that has had none for the longest time. A
/// server that died while it had the request gets it again only if there is no other.
ForwardingVersion::Server* ForwardingVersion::choose(const Request& request) const {
  bool stays = has_staying();
  auto rank = [&](const Server& each) {
    return std::tuple(each.number == request.last_server, each.proxy.in_flight(), each.last_start);
  };
  Server* chosen = nullptr;
  for (const auto& each : servers_) {
    if ((stays && each->is_leaving) || each->is_replaced || each->is_down()) continue;
    if (chosen == nullptr || rank(*each) < rank(*chosen)) chosen = each.get();
  }
  return chosen;
}

void ForwardingVersion::send_on(Request request) {
  if (Server* server = choose(request)) return start(*server, std::move(request));
  next_deadline_ = std::min(next_deadline_, request.proxied.deadline);
  waiting_.push_back(std::move(request));
  changed();
}

void ForwardingVersion::start(Server& server, Request request) {
  running_++;
  server.last_start = ++starts_;
  request.is_server_leaving = server.leaves;
  if (Clock::time_point now = Clock::now(); !std::exchange(request.has_begun, true))
    counters().count_wait(now - request.arrived, now);
  note_version(request.proxied.request.record.get());
  note_start(request.proxied.request.record.get(), *server.replica, 0);
  ProxiedRequest proxied = std::move(request.proxied);
  auto rest = std::make_shared<Request>(std::move(request));
  server.proxy.forward(std::move(proxied), [weak = weak_from_this(), rest, number = server.number](
                                               const ProxyOutcome& outcome, ProxiedRequest ended) {
    rest->proxied = std::move(ended);
    if (auto self = weak.lock())
      static_cast<ForwardingVersion&>(*self).finish(std::move(*rest), number, outcome);
  });
}

void ForwardingVersion::hand_over(const std::function<std::shared_ptr<ServiceVersion>()>& next) {
  next_ = next;
  for (auto requests = std::exchange(waiting_, {}); !requests.empty(); requests.pop_front())
    static_cast<ForwardingVersion&>(*next()).send_on(std::move(requests.front()));
}

size_t ForwardingVersion::close() {
  is_closed_ = true;
  if (running_ > 0)
    log(
        fmt::format("requests that the servers of `{}` had not answered completely at the end of "
                    "the service: {}",
                    options().name, running_));
  // An answer can bring the next request of its connection.
  auto requests = std::exchange(waiting_, {});
  for (Request& each : requests) reject(each, 503, "the service is stopping");
  return requests.size();
}

RequestWaits ForwardingVersion::waits(Clock::time_point now) const {
  RequestWaits waits;
  for (const Request& each : waiting_)
    if (!each.has_begun) waits.add(now - each.arrived);
  return waits;
}

// ---- Outcomes

void ForwardingVersion::finish(Request request, uint64_t number, const ProxyOutcome& outcome) {
  using Kind = ProxyOutcome::Kind;
  running_--;
  auto server = std::ranges::find(servers_, number, [](const auto& each) { return each->number; });
  bool is_there = server != servers_.end();
  if (is_there && outcome.kind == Kind::unreachable)
    (*server)->down_until = Clock::now() + kDownTime;
  if (is_there && outcome.kind != Kind::unreachable) (*server)->answered++;
  if (running_ == 0 || (is_there && (*server)->is_leaving)) changed();
  note_body(request, outcome);
  switch (outcome.kind) {
    case Kind::unreachable:
    case Kind::died:
      return run_again(std::move(request), number, outcome);
    case Kind::broken:
      log(failure_text(request.proxied.request, outcome.message));
      return count(502, Clock::now() - request.arrived);
    case Kind::invalid:
      log(failure_text(request.proxied.request, outcome.message));
      [[fallthrough]];
    case Kind::responded:
      // A server that is full answers at once, as the front would.
      if (outcome.status == kBusy) return count_refused(kBusy, Clock::now() - request.arrived);
      [[fallthrough]];
    case Kind::left:
    case Kind::timeout:
    case Kind::rejected:
      return count(std::min(outcome.status, kStatusMax), Clock::now() - request.arrived);
  }
}

void ForwardingVersion::note_body(const Request& request, const ProxyOutcome& outcome) {
  constexpr int kFailureMin = 400;
  const BodyTimes& body = outcome.body;
  if (!body.first || outcome.status >= kFailureMin) return;
  own_metrics().count_first_byte(*body.first - request.arrived);
  if (body.events < 2) return;
  own_metrics().count_events((body.last_event - body.first_event) /
                             static_cast<int64_t>(body.events - 1));
}

/// Its server died or could not be reached, and the client has nothing of the response. A closed
/// version gives the request to the next version.
void ForwardingVersion::run_again(Request request, uint64_t number, const ProxyOutcome& outcome) {
  std::shared_ptr<ForwardingVersion> next;
  if (is_closed_ && next_) next = std::static_pointer_cast<ForwardingVersion>(next_());
  if (is_closed_ && (!next || next->is_closed_))
    return reject(request, 503, "the service is stopping");
  if (outcome.kind == ProxyOutcome::Kind::died) {
    request.last_server = number;
    request.runs++;
    std::string why = why_not_repeated(request, outcome.message);
    if (!why.empty()) return fail(request, why);
    request.proxied.renew_deadline();
  }
  if (!next) return send_on(std::move(request));
  request.last_server = 0;  // which is not one of the next version
  next->send_on(std::move(request));
}

/// Why a request whose server died with `cause` does not run again; "" if it does.
std::string ForwardingVersion::why_not_repeated(const Request& request,
                                                const std::string& cause) const {
  const HttpRequest& http = request.proxied.request;
  if (!options().is_idempotent && !is_safe_method(http.method))
    return fmt::format(
        "the server of `{}` ended its connection before a response ({}), and "
        "a {} is not repeated, because the service is not `idempotent`",
        options().name, cause, http.method);
  if (http.upload != nullptr && !http.upload->is_repeatable())
    return fmt::format(
        "the server of `{}` ended its connection before a response ({}), and "
        "the request is not repeated, because its body was sent already: of "
        "those that arrive in parts, up to {} are kept",
        options().name, cause, format_bytes(HttpUpload::kKeptMax));
  if (request.runs >= kRunsMax)
    return fmt::format(
        "servers of `{}` ended the connection {} times before a response to the "
        "request ({})",
        options().name, request.runs, cause);
  return "";
}

void ForwardingVersion::fail(Request& request, const std::string& message) {
  bool was_stopped = request.is_server_leaving != nullptr && *request.is_server_leaving;
  std::string why =
      was_stopped ? "; the server was stopped at the end of the `--grace` of its run" : "";
  log(failure_text(request.proxied.request, message + why));
  reject(request, was_stopped ? 503 : 502, message + why);
}

void ForwardingVersion::refuse(Request& request, int status, const std::string& message) {
  count_refused(status, Clock::now() - request.arrived);
  answer(request, status, message);
}

void ForwardingVersion::reject(Request& request, int status, const std::string& message) {
  count(status, Clock::now() - request.arrived);
  answer(request, status, message);
}

void ForwardingVersion::answer(Request& request, int status, const std::string& message) {
  bool is_busy = status == kBusy || status == 503;
  request.proxied.reply.send(is_busy ? busy_response(status, message)
                                     : error_response(status, message));
}

// ---- Replicas

void ForwardingVersion::begin(FrontReplica& replica, const FrontReplica::Description& description) {
  auto sockets = std::make_shared<ServerSockets>(
      ServerSockets{description.name, description.pid, description.server, {}});
  sockets->add(description.server_socket);
  if (description.connect) {
    servers_.push_back(std::unique_ptr<Server>(
        new Server{++last_number_, &replica, sockets,
                   HttpProxy(loop_.context(), description.connect, {.connect_ms = kRemoteMs})}));
    return;
  }
  auto check = [weak = weak_from_this(), sockets] {
    Status checked = sockets->check();
    if (auto self = weak.lock(); self && !checked.ok()) self->log(checked.error().message);
    return checked;
  };
  servers_.push_back(std::unique_ptr<Server>(
      new Server{++last_number_, &replica, sockets,
                 HttpProxy(loop_.context(), description.server, {}, std::move(check))}));
}

void ForwardingVersion::add_socket(const FrontReplica& replica, uint64_t cookie) {
  server_of(replica).sockets->add(cookie);
}

void ForwardingVersion::end(FrontReplica& replica) {
  std::erase_if(servers_, [&](const auto& each) { return each->replica == &replica; });
}

void ForwardingVersion::set_leaving(FrontReplica& replica, bool is_replaced) {
  server_of(replica).is_leaving = *server_of(replica).leaves = true;
  server_of(replica).is_replaced = is_replaced;
}

ForwardingVersion::Server& ForwardingVersion::server_of(const FrontReplica& replica) const {
  auto server = std::ranges::find(servers_, &replica, [](const auto& each) {
    return static_cast<const FrontReplica*>(each->replica);
  });
  FLOW_CHECK(server != servers_.end());
  return **server;
}

ServiceVersion::ReplicaState ForwardingVersion::state(const FrontReplica& replica) const {
  const Server& server = server_of(replica);
  return {.batches = server.answered,
          .is_busy = server.proxy.in_flight() > 0,
          .is_leaving = server.is_leaving};
}

bool ForwardingVersion::has_staying() const {
  return std::ranges::any_of(servers_, [](const auto& each) { return !each->is_leaving; });
}

bool ForwardingVersion::is_overdue() const {
  return std::ranges::all_of(servers_, [](const auto& each) { return each->is_down(); });
}

// ---- Time

ServiceVersion::Clock::time_point ForwardingVersion::next_request_event() const {
  if (waiting_.empty()) return Clock::time_point::max();
  // Also to see which clients have left.
  Clock::time_point next = std::min(next_deadline_, Clock::now() + kLookPause);
  for (const auto& each : servers_)
    if (each->is_down()) next = std::min(next, each->down_until);
  return next;
}

void ForwardingVersion::run_requests_due(Clock::time_point now) {
  std::vector<Request> lapsed;
  next_deadline_ = Clock::time_point::max();
  for (auto requests = std::exchange(waiting_, {}); !requests.empty(); requests.pop_front()) {
    Request& request = requests.front();
    const HttpUpload* upload = request.proxied.request.upload.get();
    bool is_over = now >= request.proxied.deadline || request.proxied.reply.is_abandoned() ||
                   (upload != nullptr && upload->error());
    if (is_over) {
      lapsed.push_back(std::move(request));
    } else if (Server* server = choose(request)) {
      start(*server, std::move(request));
    } else {
      next_deadline_ = std::min(next_deadline_, request.proxied.deadline);
      waiting_.push_back(std::move(request));
    }
  }
  for (Request& each : lapsed) {
    auto time = std::chrono::ceil<milliseconds>(each.proxied.deadline - each.arrived);
    const HttpUpload* upload = each.proxied.request.upload.get();
    if (upload != nullptr && upload->error()) {
      reject(each, upload->error()->status, upload->error()->message);
    } else if (each.proxied.reply.is_abandoned()) {
      reject(each, 499, "the client closed its side of the connection while the request waited");
    } else {
      reject(each, 504,
             fmt::format("no server of `{}` was there for the request within {}", options().name,
                         format_duration(time.count())));
    }
  }
}

}  // namespace flow
