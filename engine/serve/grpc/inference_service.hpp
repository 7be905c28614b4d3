// The methods of the protocol, for one model.
#pragma once
#include "engine/serve/grpc/infer_call.hpp"
#include "engine/serve/grpc/inference.grpc.pb.h"

namespace flow {

using InferenceStubs = inference::GRPCInferenceService;
/// Calls of inference get bytes, so that tensors are not copied; all others get messages.
using RawMethods = InferenceStubs::WithRawCallbackMethod_ModelInfer<
    InferenceStubs::WithRawCallbackMethod_ModelStreamInfer<InferenceStubs::Service>>;
using RepositoryMethods = InferenceStubs::WithCallbackMethod_RepositoryIndex<
    InferenceStubs::WithCallbackMethod_RepositoryModelLoad<
        InferenceStubs::WithCallbackMethod_RepositoryModelUnload<RawMethods>>>;
using ModelMethods = InferenceStubs::WithCallbackMethod_ModelReady<
    InferenceStubs::WithCallbackMethod_ModelMetadata<InferenceStubs::WithCallbackMethod_ModelConfig<
        InferenceStubs::WithCallbackMethod_ModelStatistics<RepositoryMethods>>>>;
using InferenceMethods =
    InferenceStubs::WithCallbackMethod_ServerLive<InferenceStubs::WithCallbackMethod_ServerReady<
        InferenceStubs::WithCallbackMethod_ServerMetadata<ModelMethods>>>;

class InferenceService final : public InferenceMethods {
 public:
  explicit InferenceService(InferCallOptions options) : options_(std::move(options)) {}

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  // These three need no key.
  Reactor* ServerLive(Context* context, const inference::ServerLiveRequest* request,
                      inference::ServerLiveResponse* response) override;
  Reactor* ServerReady(Context* context, const inference::ServerReadyRequest* request,
                       inference::ServerReadyResponse* response) override;
  Reactor* ModelReady(Context* context, const inference::ModelReadyRequest* request,
                      inference::ModelReadyResponse* response) override;

  Reactor* ServerMetadata(Context* context, const inference::ServerMetadataRequest* request,
                          inference::ServerMetadataResponse* response) override;
  Reactor* ModelMetadata(Context* context, const inference::ModelMetadataRequest* request,
                         inference::ModelMetadataResponse* response) override;
  Reactor* ModelConfig(Context* context, const inference::ModelConfigRequest* request,
                       inference::ModelConfigResponse* response) override;
  Reactor* ModelStatistics(Context* context, const inference::ModelStatisticsRequest* request,
                           inference::ModelStatisticsResponse* response) override;
  Reactor* RepositoryIndex(Context* context, const inference::RepositoryIndexRequest* request,
                           inference::RepositoryIndexResponse* response) override;
  // A service has one model, which is there until it ends: these two are refused.
  Reactor* RepositoryModelLoad(Context* context,
                               const inference::RepositoryModelLoadRequest* request,
                               inference::RepositoryModelLoadResponse* response) override;
  Reactor* RepositoryModelUnload(Context* context,
                                 const inference::RepositoryModelUnloadRequest* request,
                                 inference::RepositoryModelUnloadResponse* response) override;
  Reactor* ModelInfer(Context* context, const grpc::ByteBuffer* request,
                      grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ModelStreamInfer(
      Context* context) override;

 private:
  /// Ends the call, which is noted.
  Reactor* finished(Context& context, const char* method, grpc::Status status) const;
  /// Answers with the JSON that HTTP sends for `endpoint`, between `before` and `after`.
  grpc::Status describe(Context& context, Endpoint endpoint, google::protobuf::Message& response,
                        const char* before = "", const char* after = "") const;

  Reactor* refuse_load(Context& context, const char* method, const std::string& model) const;

  const InferCallOptions options_;
};

}  // namespace flow
