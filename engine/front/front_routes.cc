#include "engine/front/front_routes.hpp"

#include <fmt/format.h>

#include <new>
#include <optional>
#include <utility>

#include "engine/front/forwarding_version.hpp"
#include "engine/serve/http/field_text.hpp"
#include "engine/serve/http/forwarded_fields.hpp"
#include "engine/serve/http/gzip.hpp"
#include "engine/serve/http_responder.hpp"
#include "engine/serve/oip.hpp"
#include "engine/serve/service_metadata.hpp"
#include "flow/value.hpp"

namespace flow {

namespace {

constexpr size_t kInlineBytesMax = 64 * 1024;  // decoded without another thread
constexpr size_t kDecodesMax = 64;             // requests that wait for the decoder

constexpr const char* kStops = "the service is stopping";
constexpr const char* kNoWebSocket = "WebSocket is not forwarded to the server of a service";

bool needs_no_key(Endpoint endpoint) {
  return endpoint == Endpoint::live || endpoint == Endpoint::ready ||
         endpoint == Endpoint::model_ready;
}

Endpoint endpoint_of(std::string_view path, const ServiceOptions& options) {
  return options.forwards ? front_endpoint(path) : route_of(path).endpoint;
}

HttpResponse ready_response(std::string body, bool is_ready) {
  return {.status = is_ready ? 200 : 503, .body = std::move(body)};
}

}  // namespace

/// A request for inference from its arrival to its version.
struct FrontRoutes::Inference {
  HttpRequest http;
  std::string model, version;  // of the path
  std::shared_ptr<ModelVersion> assigned;
  std::unique_ptr<PendingRequest> pending;
  int status = 200;  // of an error
  std::string message = {};
};

FrontRoutes::FrontRoutes(EventLoop& loop, ThreadPool& decoder, const VersionSet& versions,
                         Callbacks callbacks)
    : loop_(loop), decoder_(decoder), versions_(versions), callbacks_(std::move(callbacks)) {}

FrontRoutes::~FrontRoutes() = default;

bool FrontRoutes::permits(std::string_view path, std::string_view authorization) const {
  const VersionSet::Entry* primary = versions_.primary();
  return primary == nullptr || primary->version->options().keys.empty() ||
         needs_no_key(endpoint_of(path, primary->version->options())) ||
         primary->keys.permit(authorization);
}

void FrontRoutes::handle(HttpRequest request, HttpReply reply) {
  const VersionSet::Entry* primary = versions_.primary();
  if (primary == nullptr) return reply.send(busy_response(503, kStops));
  if (primary->version->options().forwards)
    return forward(std::move(request), std::move(reply), *primary->version);
  Route route = route_to(request.path);
  const std::string& name = primary->version->options().name;
  if (route.endpoint == Endpoint::infer) return infer(request, reply, route);
  if (has_model(route.endpoint))
    if (Status there = VersionSet::check_model(name, route.model, route.version); !there.ok())
      return reply.send(error_response(404, there.error().message));
  reply.send(describe(route.endpoint));
}

/// `/v2/models/stats` is also the path of a model of this name.
Route FrontRoutes::route_to(std::string_view path) const {
  Route route = route_of(path);
  if (route.endpoint == Endpoint::statistics &&
      versions_.primary()->version->options().name == "stats")
    route = {.endpoint = Endpoint::model, .model = "stats"};
  return route;
}

// ---- Requests whose bodies are not worth sending

std::optional<HttpError> FrontRoutes::refusal(const HttpRequest& head) const {
  const VersionSet::Entry* primary = versions_.primary();
  if (primary == nullptr) return HttpError{503, kStops, {}, true};
  return primary->version->options().forwards ? forwarding_refusal(head) : model_refusal(head);
}

std::optional<HttpError> FrontRoutes::forwarding_refusal(const HttpRequest& head) const {
  if (front_endpoint(head.path) != Endpoint::unknown) return {};
  if (asks_for_websocket(head.fields)) return HttpError{501, kNoWebSocket};
  return refuse_if_full();
}

std::optional<HttpError> FrontRoutes::model_refusal(const HttpRequest& head) const {
  const Route route = route_to(head.path);
  const std::string& name = versions_.primary()->version->options().name;
  if (has_model(route.endpoint))
    if (Status there = VersionSet::check_model(name, route.model, route.version); !there.ok())
      return HttpError{404, there.error().message};
  if (route.endpoint != Endpoint::infer) return {};
  return refuse_if_full();
}

/// If one version has room, it may be the one that gets the request.
std::optional<HttpError> FrontRoutes::refuse_if_full() const {
  for (const VersionSet::Entry& each : versions_.all())
    if (each.version->full_text().empty()) return {};
  constexpr int kFull = 429;
  ServiceVersion& version = *versions_.primary()->version;
  version.count_refused(kFull, {});
  return HttpError{kFull, version.full_text(), {}, true};
}

HttpResponse FrontRoutes::describe(Endpoint endpoint) const {
  const VersionSet::Entry* primary = versions_.primary();
  if (primary == nullptr) return busy_response(503, kStops);
  const ServiceOptions& options = primary->version->options();
  const bool is_ready = callbacks_.is_ready();
  switch (endpoint) {
    case Endpoint::server:
      return {.body = server_metadata()};
    case Endpoint::live:
      return {.body = R"({"live":true})"};
    case Endpoint::ready:
      return ready_response(fmt::format(R"({{"ready":{}}})", is_ready), is_ready);
    case Endpoint::metrics:
      return {.body = versions_.metrics_text(callbacks_.is_draining()),
              .content_type = std::string(ServiceMetrics::kContentType)};
    case Endpoint::repository_index:
      return {.body = repository_index(options, is_ready)};
    case Endpoint::repository_load:
      return error_response(503, std::string(kNoModelLoad));
    case Endpoint::statistics:
    case Endpoint::model_statistics:
      return {.body = versions_.total().statistics(options.name, kModelVersion)};
    case Endpoint::model:
      return {.body = model_metadata(options)};
    case Endpoint::model_configuration:
      return {.body = model_configuration(options)};
    case Endpoint::model_ready:
      return ready_response(
          fmt::format(R"({{"name":{},"ready":{}}})", to_json(Value(options.name)), is_ready),
          is_ready);
    default:
      return error_response(404, "there is nothing at this path");
  }
}

void FrontRoutes::forward(HttpRequest request, HttpReply reply, const ServiceVersion& primary) {
  Endpoint endpoint = front_endpoint(request.path);
  if (endpoint != Endpoint::unknown) return reply.send(describe(endpoint));
  // The server would answer a request that does not ask for it, and not say why.
  if (asks_for_websocket(request.fields)) return reply.send(error_response(501, kNoWebSocket));
  auto version = callbacks_.route(primary.options().name, {});
  if (!version.ok()) return reply.send(busy_response(503, version.error().message));
  // Keys are for the front alone: those of a version are not for the server of another one either.
  if (versions_.has_keys())
    std::erase_if(request.fields,
                  [](const HttpField& field) { return equal_names(field.name, "authorization"); });
  static_cast<ForwardingVersion&>(**version).forward(std::move(request), std::move(reply));
}

// ---- Inference

/// Without forwarding all versions are of models.
Result<std::shared_ptr<ModelVersion>> FrontRoutes::route_model(const std::string& model,
                                                               const std::string& version) const {
  auto found = callbacks_.route(model, version);
  FLOW_TRY(found);
  return std::static_pointer_cast<ModelVersion>(std::move(*found));
}

void FrontRoutes::infer(HttpRequest& request, HttpReply& reply, const Route& route) {
  auto version = route_model(route.model, route.version);
  if (!version.ok()) return reply.send(error_response(404, version.error().message));
  auto responder = http_responder(std::move(reply), request.accept_encoding);
  std::optional<PendingRequest::Clock::duration> timeout;
  std::string malformed;
  if (!request.timeout.empty()) {
    auto asked = parse_request_timeout(request.timeout);
    if (asked.ok()) timeout = *asked;
    if (!asked.ok()) malformed = asked.error().message;
  }
  auto pending = (*version)->new_request(std::move(responder), timeout);
  pending->traceparent = request.traceparent;
  pending->record = request.record;
  if (!malformed.empty()) return (*version)->refuse(*pending, 400, malformed);
  bool is_small = request.body.size() <= kInlineBytesMax && request.content_encoding.empty();
  Inference inference{.http = std::move(request),
                      .model = route.model,
                      .version = route.version,
                      .assigned = std::move(*version),
                      .pending = std::move(pending)};
  if (!is_small) return decode_apart(std::make_shared<Inference>(std::move(inference)));
  decode(inference);
  admit(inference);
}

void FrontRoutes::decode_apart(const std::shared_ptr<Inference>& inference) {
  if (inference->assigned->is_full()) return inference->assigned->refuse_full(*inference->pending);
  if (decodes_ >= kDecodesMax)
    return inference->assigned->refuse(
        *inference->pending, 503, "too many requests with large or compressed bodies wait here");
  decodes_++;
  decoder_.post([this, inference] {
    decode(*inference);
    loop_.post([this, inference] {
      decodes_--;
      admit(*inference);
    });
  });
}

/// On any thread.
void FrontRoutes::decode(Inference& inference) {
  auto fail = [&](int status, std::string message) {
    inference.status = status;
    inference.message = std::move(message);
  };
  HttpRequest& http = inference.http;
  try {
    if (!http.content_encoding.empty()) {
      auto plain = decompress(http.content_encoding, http.body, kRequestBytesMax);
      if (plain.error) return fail(plain.error->status, plain.error->message);
      http.body = std::move(plain.bytes);
    }
    auto parsed = parse_infer_request(std::move(http.body), http.json_bytes);
    if (!parsed.ok()) return fail(400, parsed.error().message);
    inference.pending->request = std::move(*parsed);
  } catch (const std::bad_alloc&) {
    fail(503, "the service has too little memory left for this request");
  }
}

void FrontRoutes::admit(Inference& inference) {
  // Its version may have ended while the request was decoded.
  if (versions_.find(inference.assigned->id()) != inference.assigned.get()) {
    auto other = route_model(inference.model, inference.version);
    if (other.ok()) inference.assigned = std::move(*other);
  }
  if (inference.status != 200)
    return inference.assigned->refuse(*inference.pending, inference.status, inference.message);
  inference.assigned->admit(std::move(inference.pending));
  callbacks_.admitted();
}

}  // namespace flow
