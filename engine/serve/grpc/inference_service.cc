#include "engine/serve/grpc/inference_service.hpp"

#include <google/protobuf/util/json_util.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>

#include "engine/serve/grpc/call_rules.hpp"
#include "engine/serve/grpc/infer_stream.hpp"
#include "engine/serve/grpc/message_coding.hpp"
#include "engine/serve/service_metadata.hpp"

namespace flow {

namespace {

// Bytes of a compressed message that has no tensors: it has names.
constexpr size_t kDescriptionMax = 64 * 1024;

/// The status of HTTP.
int http_status(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return 200;
    case grpc::StatusCode::INVALID_ARGUMENT:
      return 400;
    case grpc::StatusCode::UNAUTHENTICATED:
      return 401;
    case grpc::StatusCode::NOT_FOUND:
      return 404;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return 413;
    case grpc::StatusCode::UNAVAILABLE:
      return 503;
    default:
      return 500;
  }
}

}  // namespace

template <typename Request, typename Response, typename Fill>
InferenceService::Reactor* InferenceService::answer(Context& context, const char* method,
                                                    const Message& request, Message& response,
                                                    const Fill& fill) const {
  Message bytes = request;  // shares its memory
  Request asked;
  Response filled;
  grpc::Status status = grpc_status(decompress_message(bytes, kDescriptionMax));
  if (status.ok() && !grpc::SerializationTraits<Request>::Deserialize(&bytes, &asked).ok())
    status = grpc_status({400, "the bytes of the request are no message of this call"});
  if (status.ok()) status = fill(asked, filled);
  bool owns_bytes = false;
  if (status.ok())
    status = grpc::SerializationTraits<Response>::Serialize(filled, &response, &owns_bytes);
  return finished(context, method, std::move(status));
}

InferenceService::Reactor* InferenceService::finished(Context& context, const char* method,
                                                      grpc::Status status) const {
  RequestRecord record = record_of(context, method);
  record.status = http_status(status);
  options_.backend.note(std::move(record));
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  reactor->Finish(std::move(status));
  return reactor;
}

grpc::Status InferenceService::describe(Context& context, Endpoint endpoint,
                                        google::protobuf::Message& response, const char* before,
                                        const char* after) const {
  if (CallStatus key = check_key(options_.backend, context); key.status != 200)
    return grpc_status(key);
  google::protobuf::util::JsonParseOptions rules;
  rules.ignore_unknown_fields = true;  // those that only HTTP has
  auto read = google::protobuf::util::JsonStringToMessage(
      before + options_.backend.describe(endpoint) + after, &response, rules);
  if (read.ok()) return grpc::Status::OK;
  return grpc_status({500, "the description cannot be sent: " + std::string(read.message())});
}

template <typename Request>
grpc::Status InferenceService::describe_model(Context& context, Endpoint endpoint,
                                              const Request& request,
                                              google::protobuf::Message& response) const {
  grpc::Status status = describe(context, endpoint, response);
  if (!status.ok()) return status;
  return grpc_status(check_model(options_.backend, request.name(), request.version()));
}

InferenceService::Reactor* InferenceService::ServerLive(Context* context, const Message* request,
                                                        Message* response) {
  return answer<inference::ServerLiveRequest, inference::ServerLiveResponse>(
      *context, "ServerLive", *request, *response, [](const auto&, auto& filled) {
        filled.set_live(true);
        return grpc::Status::OK;
      });
}

InferenceService::Reactor* InferenceService::ServerReady(Context* context, const Message* request,
                                                         Message* response) {
  return answer<inference::ServerReadyRequest, inference::ServerReadyResponse>(
      *context, "ServerReady", *request, *response, [&](const auto&, auto& filled) {
        filled.set_ready(options_.backend.is_ready());
        return grpc::Status::OK;
      });
}

InferenceService::Reactor* InferenceService::ModelReady(Context* context, const Message* request,
                                                        Message* response) {
  return answer<inference::ModelReadyRequest, inference::ModelReadyResponse>(
      *context, "ModelReady", *request, *response, [&](const auto& asked, auto& filled) {
        // One that is not here is not ready, which is no error: clients wait for a model with this
        // call.
        CallStatus model = check_model(options_.backend, asked.name(), asked.version());
        filled.set_ready(model.status == 200 && options_.backend.is_ready());
        return grpc::Status::OK;
      });
}

InferenceService::Reactor* InferenceService::ServerMetadata(Context* context,
                                                            const Message* request,
                                                            Message* response) {
  return answer<inference::ServerMetadataRequest, inference::ServerMetadataResponse>(
      *context, "ServerMetadata", *request, *response,
      [&](const auto&, auto& filled) { return describe(*context, Endpoint::server, filled); });
}

InferenceService::Reactor* InferenceService::ModelMetadata(Context* context, const Message* request,
                                                           Message* response) {
  return answer<inference::ModelMetadataRequest, inference::ModelMetadataResponse>(
      *context, "ModelMetadata", *request, *response, [&](const auto& asked, auto& filled) {
        return describe_model(*context, Endpoint::model, asked, filled);
      });
}

InferenceService::Reactor* InferenceService::ModelConfig(Context* context, const Message* request,
                                                         Message* response) {
  return answer<inference::ModelConfigRequest, inference::ModelConfigResponse>(
      *context, "ModelConfig", *request, *response, [&](const auto& asked, auto& filled) {
        return describe_model(*context, Endpoint::model_configuration, asked,
                              *filled.mutable_config());
      });
}

InferenceService::Reactor* InferenceService::ModelStatistics(Context* context,
                                                             const Message* request,
                                                             Message* response) {
  return answer<inference::ModelStatisticsRequest, inference::ModelStatisticsResponse>(
      *context, "ModelStatistics", *request, *response, [&](const auto& asked, auto& filled) {
        // Without a name the statistics are those of all models.
        return asked.name().empty()
                   ? describe(*context, Endpoint::model_statistics, filled)
                   : describe_model(*context, Endpoint::model_statistics, asked, filled);
      });
}

InferenceService::Reactor* InferenceService::RepositoryIndex(Context* context,
                                                             const Message* request,
                                                             Message* response) {
  return answer<inference::RepositoryIndexRequest, inference::RepositoryIndexResponse>(
      *context, "RepositoryIndex", *request, *response, [&](const auto& asked, auto& filled) {
        grpc::Status status =
            describe(*context, Endpoint::repository_index, filled, "{\"models\":", "}");
        if (asked.ready()) {
          auto& models = *filled.mutable_models();
          models.erase(std::remove_if(models.begin(), models.end(),
                                      [](const auto& model) { return model.state() != "READY"; }),
                       models.end());
        }
        return status;
      });
}

grpc::Status InferenceService::refuse_load(Context& context, const std::string& model) const {
  CallStatus status = check_key(options_.backend, context);
  if (status.status == 200) status = check_model(options_.backend, model, "");
  if (status.status == 200) status = {503, std::string(kNoModelLoad)};
  return grpc_status(status);
}

InferenceService::Reactor* InferenceService::RepositoryModelLoad(Context* context,
                                                                 const Message* request,
                                                                 Message* response) {
  return answer<inference::RepositoryModelLoadRequest, inference::RepositoryModelLoadResponse>(
      *context, "RepositoryModelLoad", *request, *response,
      [&](const auto& asked, auto&) { return refuse_load(*context, asked.model_name()); });
}

InferenceService::Reactor* InferenceService::RepositoryModelUnload(Context* context,
                                                                   const Message* request,
                                                                   Message* response) {
  return answer<inference::RepositoryModelUnloadRequest, inference::RepositoryModelUnloadResponse>(
      *context, "RepositoryModelUnload", *request, *response,
      [&](const auto& asked, auto&) { return refuse_load(*context, asked.model_name()); });
}

InferenceService::Reactor* InferenceService::ModelInfer(Context* context, const Message* request,
                                                        Message* response) {
  // gRPC made the object, not as a constant one, and uses it no more.
  return InferCall::start(options_, *context, *const_cast<Message*>(request), *response);
}

grpc::ServerBidiReactor<InferenceService::Message, InferenceService::Message>*
InferenceService::ModelStreamInfer(Context* context) {
  return InferStream::start(options_, *context);
}

}  // namespace flow
