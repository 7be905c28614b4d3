#include "engine/serve/grpc/call_rules.hpp"

#include <fmt/format.h>

#include <chrono>

#include "engine/base/remote_url.hpp"
#include "engine/serve/http/trace_context.hpp"
#include "engine/serve/service_metadata.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kMessageMax = 2000;  // bytes of an error: gRPC sends it as a header field
constexpr size_t kModelShownMax = 256;

grpc::StatusCode code_of(int status) {
  switch (status) {
    case 200:
      return grpc::StatusCode::OK;
    case 400:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case 401:
      return grpc::StatusCode::UNAUTHENTICATED;
    case 404:
      return grpc::StatusCode::NOT_FOUND;
    case 413:
    case 429:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case 499:
      return grpc::StatusCode::CANCELLED;
    case 502:
    case 503:
      return grpc::StatusCode::UNAVAILABLE;
    case 504:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    default:
      return grpc::StatusCode::INTERNAL;
  }
}

/// "127.0.0.1" of "ipv4:127.0.0.1:5000", "::1" of "ipv6:%5B::1%5D:5000".
std::string client_address(const std::string& peer) {
  size_t begin = peer.find(':') + 1, end = peer.rfind(':');
  if (begin == 0 || end < begin) return peer;
  std::string address = percent_decode(std::string_view(peer).substr(begin, end - begin));
  if (address.starts_with('[') && address.ends_with(']'))
    return address.substr(1, address.size() - 2);
  return address;
}

}  // namespace

grpc::Status grpc_status(const CallStatus& status) {
  if (status.status == 200) return grpc::Status::OK;
  return {code_of(status.status), cut_text(to_utf8(status.message), kMessageMax)};
}

CallStatus no_message() { return {400, "the call ends without a message"}; }

CallStatus check_key(const InferenceBackend& backend, GrpcConnections& connections,
                     const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  auto [first, last] = metadata.equal_range("authorization");
  bool is_single = first != last && std::next(first) == last;
  std::string_view value;
  if (is_single) value = {first->second.data(), first->second.size()};
  if (backend.permits(value)) {
    connections.trust(context.peer());
    return {};
  }
  return {401, "this service needs a key: send the metadata `authorization: Bearer KEY`"};
}

CallStatus check_model(const InferenceBackend& backend, const std::string& model,
                       const std::string& version) {
  std::string served = backend.model();
  if (model != served)
    return {404, fmt::format("there is no model `{}` here, only `{}`",
                             cut_text(model, kModelShownMax), served)};
  if (!version.empty() && version != kModelVersion)
    return {404, fmt::format("`{}` has no version `{}`, only `{}`", served,
                             cut_text(version, kModelShownMax), kModelVersion)};
  return {};
}

std::string traceparent_of(const grpc::CallbackServerContext& context) {
  auto [first, last] = context.client_metadata().equal_range("traceparent");
  bool is_single = first != last && std::next(first) == last;
  if (!is_single) return "";
  std::string_view value(first->second.data(), first->second.size());
  return is_traceparent(value) ? std::string(value) : "";
}

RequestRecord record_of(const grpc::CallbackServerContext& context, const char* method) {
  RequestRecord record;
  record.protocol = "grpc";
  record.client = client_address(context.peer());
  record.method = "POST";
  record.path = std::string("/inference.GRPCInferenceService/") + method;
  record.trace = trace_id_of(traceparent_of(context));
  record.arrived = RequestRecord::Clock::now();
  return record;
}

std::optional<InferenceBackend::Clock::time_point> deadline_of(
    const grpc::CallbackServerContext& context) {
  constexpr auto kLongest = std::chrono::hours(24 * 365);
  auto now = std::chrono::system_clock::now();
  auto deadline = context.deadline();
  if (deadline > now + kLongest) return std::nullopt;
  return InferenceBackend::Clock::now() +
         std::chrono::duration_cast<InferenceBackend::Clock::duration>(deadline - now);
}

}  // namespace flow
