#include "engine/serve/grpc/inference_service.hpp"

#include <google/protobuf/util/json_util.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "engine/serve/grpc/call_rules.hpp"
#include "engine/serve/grpc/call_timer.hpp"
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

/// The methods in the order of inference.proto, as gRPC numbers them.
enum Method : int {
  kServerLive,
  kServerReady,
  kModelReady,
  kServerMetadata,
  kModelMetadata,
  kModelInfer,
  kModelStreamInfer,
  kModelConfig,
  kModelStatistics,
  kRepositoryIndex,
  kRepositoryModelLoad,
  kRepositoryModelUnload,
};

/// One call that is answered with a description. It owns itself until gRPC is done with it.
class DescriptionCall final : public CallReactor {
 public:
  using Answer = std::function<grpc::Status(grpc::ByteBuffer& request, grpc::ByteBuffer& response)>;

  DescriptionCall(const InferCallOptions& options, grpc::CallbackServerContext& context,
                  const char* method, Answer answer)
      : options_(options), context_(context), method_(method), answer_(std::move(answer)) {}

  static CallReactor* start(std::unique_ptr<DescriptionCall> call, bool needs_key) {
    DescriptionCall& reactor = *call;
    reactor.self_ = std::move(call);
    CallStatus key;
    const InferCallOptions& options = reactor.options_;
    if (needs_key) key = check_key(options.backend, options.connections, reactor.context_);
    // Also until the answer is taken: a call without a key must not stay.
    reactor.timer_.start(reactor.context_, options.describe_time);
    if (key.status == 200)
      reactor.StartRead(&reactor.request_);
    else
      reactor.finish(grpc_status(key));
    return &reactor;
  }

  void OnReadDone(bool ok) override {
    if (!ok) return finish(grpc_status(no_message()));
    try {
      finish(answer_(request_, response_));
    } catch (const std::bad_alloc&) {
      finish(grpc_status({503, "the service has too little memory left for this call"}));
    }
  }
  void OnDone() override {
    timer_.stop();
    std::unique_ptr<DescriptionCall> last = std::move(self_);
  }

 private:
  void finish(const grpc::Status& status) {
    RequestRecord record = record_of(context_, method_);
    record.status = http_status(status);
    options_.backend.note(std::move(record));
    if (status.ok())
      StartWriteAndFinish(&response_, {}, status);
    else
      Finish(status);
  }

  const InferCallOptions options_;
  grpc::CallbackServerContext& context_;  // until OnDone()
  const char* const method_;
  const Answer answer_;
  grpc::ByteBuffer request_, response_;
  CallTimer timer_;
  std::unique_ptr<DescriptionCall> self_;
};

}  // namespace

InferenceService::InferenceService(InferCallOptions options) : options_(std::move(options)) {
  add_health();
  add_descriptions();
  add_repository();
  add_inference();
}

void InferenceService::set_method(int index, std::function<CallReactor*(Context*)> start) {
  using Handler = grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>;
  MarkMethodStreamed(index, new Handler(start));  // gRPC owns both
  MarkMethodRawCallback(index, new Handler(std::move(start)));
}

template <typename Request, typename Response, typename Fill>
void InferenceService::set_answer(int index, const char* method, bool needs_key, Fill fill) {
  auto answer = [fill = std::move(fill)](grpc::ByteBuffer& bytes, grpc::ByteBuffer& response) {
    Request asked;
    Response filled;
    grpc::Status status = grpc_status(decompress_message(bytes, kDescriptionMax));
    if (status.ok() && !grpc::SerializationTraits<Request>::Deserialize(&bytes, &asked).ok())
      status = grpc_status({400, "the bytes of the request are no message of this call"});
    if (status.ok()) status = fill(asked, filled);
    bool owns_bytes = false;
    if (status.ok())
      status = grpc::SerializationTraits<Response>::Serialize(filled, &response, &owns_bytes);
    return status;
  };
  set_method(index, [this, method, needs_key, answer = std::move(answer)](Context* context) {
    return DescriptionCall::start(
        std::make_unique<DescriptionCall>(options_, *context, method, answer), needs_key);
  });
}

// ---- Health, which needs no key

void InferenceService::add_health() {
  using inference::ServerLiveRequest, inference::ServerLiveResponse;
  set_answer<ServerLiveRequest, ServerLiveResponse>(kServerLive, "ServerLive", false,
                                                    [](const auto&, auto& filled) {
                                                      filled.set_live(true);
                                                      return grpc::Status::OK;
                                                    });
  using inference::ServerReadyRequest, inference::ServerReadyResponse;
  set_answer<ServerReadyRequest, ServerReadyResponse>(
      kServerReady, "ServerReady", false, [this](const auto&, auto& filled) {
        filled.set_ready(options_.backend.is_ready());
        return grpc::Status::OK;
      });
  using inference::ModelReadyRequest, inference::ModelReadyResponse;
  set_answer<ModelReadyRequest, ModelReadyResponse>(
      kModelReady, "ModelReady", false, [this](const auto& asked, auto& filled) {
        // One that is not here is not ready, which is no error: clients wait for a model with this
        // call.
        CallStatus model = check_model(options_.backend, asked.name(), asked.version());
        filled.set_ready(model.status == 200 && options_.backend.is_ready());
        return grpc::Status::OK;
      });
}

// ---- Descriptions

void InferenceService::add_descriptions() {
  using inference::ServerMetadataRequest, inference::ServerMetadataResponse;
  set_answer<ServerMetadataRequest, ServerMetadataResponse>(
      kServerMetadata, "ServerMetadata", true,
      [this](const auto&, auto& filled) { return describe(Endpoint::server, filled); });
  using inference::ModelMetadataRequest, inference::ModelMetadataResponse;
  set_answer<ModelMetadataRequest, ModelMetadataResponse>(
      kModelMetadata, "ModelMetadata", true, [this](const auto& asked, auto& filled) {
        return describe_model(Endpoint::model, asked, filled);
      });
  using inference::ModelConfigRequest, inference::ModelConfigResponse;
  set_answer<ModelConfigRequest, ModelConfigResponse>(
      kModelConfig, "ModelConfig", true, [this](const auto& asked, auto& filled) {
        return describe_model(Endpoint::model_configuration, asked, *filled.mutable_config());
      });
  using inference::ModelStatisticsRequest, inference::ModelStatisticsResponse;
  set_answer<ModelStatisticsRequest, ModelStatisticsResponse>(
      kModelStatistics, "ModelStatistics", true, [this](const auto& asked, auto& filled) {
        // Without a name the statistics are those of all models.
        return asked.name().empty() ? describe(Endpoint::model_statistics, filled)
                                    : describe_model(Endpoint::model_statistics, asked, filled);
      });
}

grpc::Status InferenceService::describe(Endpoint endpoint, Message& response, const char* before,
                                        const char* after) const {
  google::protobuf::util::JsonParseOptions rules;
  rules.ignore_unknown_fields = true;  // those that only HTTP has
  auto read = google::protobuf::util::JsonStringToMessage(
      before + options_.backend.describe(endpoint) + after, &response, rules);
  if (read.ok()) return grpc::Status::OK;
  return grpc_status({500, "the description cannot be sent: " + std::string(read.message())});
}

template <typename Request>
grpc::Status InferenceService::describe_model(Endpoint endpoint, const Request& request,
                                              Message& response) const {
  grpc::Status status = describe(endpoint, response);
  if (!status.ok()) return status;
  return grpc_status(check_model(options_.backend, request.name(), request.version()));
}

// ---- The repository, which has one model until the service ends: loads are refused

void InferenceService::add_repository() {
  using inference::RepositoryIndexRequest, inference::RepositoryIndexResponse;
  set_answer<RepositoryIndexRequest, RepositoryIndexResponse>(
      kRepositoryIndex, "RepositoryIndex", true, [this](const auto& asked, auto& filled) {
        grpc::Status status = describe(Endpoint::repository_index, filled, "{\"models\":", "}");
        if (asked.ready()) {
          auto& models = *filled.mutable_models();
          models.erase(std::remove_if(models.begin(), models.end(),
                                      [](const auto& model) { return model.state() != "READY"; }),
                       models.end());
        }
        return status;
      });
  auto refuse = [this](const auto& asked, auto&) { return refuse_load(asked.model_name()); };
  using inference::RepositoryModelLoadRequest, inference::RepositoryModelLoadResponse;
  set_answer<RepositoryModelLoadRequest, RepositoryModelLoadResponse>(
      kRepositoryModelLoad, "RepositoryModelLoad", true, refuse);
  using inference::RepositoryModelUnloadRequest, inference::RepositoryModelUnloadResponse;
  set_answer<RepositoryModelUnloadRequest, RepositoryModelUnloadResponse>(
      kRepositoryModelUnload, "RepositoryModelUnload", true, refuse);
}

grpc::Status InferenceService::refuse_load(const std::string& model) const {
  CallStatus status = check_model(options_.backend, model, "");
  if (status.status == 200) status = {503, std::string(kNoModelLoad)};
  return grpc_status(status);
}

// ---- Inference

void InferenceService::add_inference() {
  set_method(kModelInfer,
             [this](Context* context) { return InferCall::start(options_, *context); });
  set_method(kModelStreamInfer,
             [this](Context* context) { return InferStream::start(options_, *context); });
}

}  // namespace flow
