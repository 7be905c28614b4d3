#include "engine/serve/grpc/inference_service.hpp"

#include <google/protobuf/util/json_util.h>

#include "engine/serve/grpc/call_rules.hpp"
#include "engine/serve/grpc/infer_stream.hpp"
#include "engine/serve/service_metadata.hpp"

namespace flow {

namespace {

/// The status of HTTP.
int http_status(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return 200;
    case grpc::StatusCode::UNAUTHENTICATED:
      return 401;
    case grpc::StatusCode::NOT_FOUND:
      return 404;
    default:
      return 500;
  }
}

}  // namespace

grpc::ServerUnaryReactor* InferenceService::finished(Context& context, const char* method,
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

grpc::ServerUnaryReactor* InferenceService::ServerLive(Context* context,
                                                       const inference::ServerLiveRequest*,
                                                       inference::ServerLiveResponse* response) {
  response->set_live(true);
  return finished(*context, "ServerLive", grpc::Status::OK);
}

grpc::ServerUnaryReactor* InferenceService::ServerReady(Context* context,
                                                        const inference::ServerReadyRequest*,
                                                        inference::ServerReadyResponse* response) {
  response->set_ready(options_.backend.is_ready());
  return finished(*context, "ServerReady", grpc::Status::OK);
}

grpc::ServerUnaryReactor* InferenceService::ModelReady(Context* context,
                                                       const inference::ModelReadyRequest* request,
                                                       inference::ModelReadyResponse* response) {
  // One that is not here is not ready, which is no error: clients wait for a model with this call.
  CallStatus model = check_model(options_.backend, request->name(), request->version());
  response->set_ready(model.status == 200 && options_.backend.is_ready());
  return finished(*context, "ModelReady", grpc::Status::OK);
}

grpc::ServerUnaryReactor* InferenceService::ServerMetadata(
    Context* context, const inference::ServerMetadataRequest*,
    inference::ServerMetadataResponse* response) {
  return finished(*context, "ServerMetadata", describe(*context, Endpoint::server, *response));
}

grpc::ServerUnaryReactor* InferenceService::ModelMetadata(
    Context* context, const inference::ModelMetadataRequest* request,
    inference::ModelMetadataResponse* response) {
  grpc::Status status = describe(*context, Endpoint::model, *response);
  if (status.ok())
    status = grpc_status(check_model(options_.backend, request->name(), request->version()));
  return finished(*context, "ModelMetadata", std::move(status));
}

grpc::ServerUnaryReactor* InferenceService::ModelConfig(
    Context* context, const inference::ModelConfigRequest* request,
    inference::ModelConfigResponse* response) {
  grpc::Status status =
      describe(*context, Endpoint::model_configuration, *response->mutable_config());
  if (status.ok())
    status = grpc_status(check_model(options_.backend, request->name(), request->version()));
  return finished(*context, "ModelConfig", std::move(status));
}

grpc::ServerUnaryReactor* InferenceService::ModelStatistics(
    Context* context, const inference::ModelStatisticsRequest* request,
    inference::ModelStatisticsResponse* response) {
  grpc::Status status = describe(*context, Endpoint::model_statistics, *response);
  // Without a name the statistics are those of all models.
  if (status.ok() && !request->name().empty())
    status = grpc_status(check_model(options_.backend, request->name(), request->version()));
  return finished(*context, "ModelStatistics", std::move(status));
}

grpc::ServerUnaryReactor* InferenceService::RepositoryIndex(
    Context* context, const inference::RepositoryIndexRequest* request,
    inference::RepositoryIndexResponse* response) {
  grpc::Status status =
      describe(*context, Endpoint::repository_index, *response, "{\"models\":", "}");
  if (request->ready()) {
    auto& models = *response->mutable_models();
    models.erase(std::remove_if(models.begin(), models.end(),
                                [](const auto& model) { return model.state() != "READY"; }),
                 models.end());
  }
  return finished(*context, "RepositoryIndex", std::move(status));
}

grpc::ServerUnaryReactor* InferenceService::refuse_load(Context& context, const char* method,
                                                        const std::string& model) const {
  CallStatus status = check_key(options_.backend, context);
  if (status.status == 200) status = check_model(options_.backend, model, "");
  if (status.status == 200) status = {503, std::string(kNoModelLoad)};
  return finished(context, method, grpc_status(status));
}

grpc::ServerUnaryReactor* InferenceService::RepositoryModelLoad(
    Context* context, const inference::RepositoryModelLoadRequest* request,
    inference::RepositoryModelLoadResponse*) {
  return refuse_load(*context, "RepositoryModelLoad", request->model_name());
}

grpc::ServerUnaryReactor* InferenceService::RepositoryModelUnload(
    Context* context, const inference::RepositoryModelUnloadRequest* request,
    inference::RepositoryModelUnloadResponse*) {
  return refuse_load(*context, "RepositoryModelUnload", request->model_name());
}

grpc::ServerUnaryReactor* InferenceService::ModelInfer(Context* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  // gRPC made the object, not as a constant one, and uses it no more.
  return InferCall::start(options_, *context, *const_cast<grpc::ByteBuffer*>(request), *response);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* InferenceService::ModelStreamInfer(
    Context* context) {
  return InferStream::start(options_, *context);
}

}  // namespace flow
