// The methods of the protocol, for one model.
#pragma once
#include "engine/serve/grpc/infer_call.hpp"
#include "engine/serve/grpc/inference.grpc.pb.h"

namespace flow {

/// Calls of inference get bytes, so that tensors are not copied; all others get messages.
using InferenceMethods = inference::GRPCInferenceService::WithCallbackMethod_ServerLive<
    inference::GRPCInferenceService::WithCallbackMethod_ServerReady<
        inference::GRPCInferenceService::WithCallbackMethod_ModelReady<
            inference::GRPCInferenceService::WithCallbackMethod_ServerMetadata<
                inference::GRPCInferenceService::WithCallbackMethod_ModelMetadata<
                    inference::GRPCInferenceService::WithCallbackMethod_ModelConfig<
                        inference::GRPCInferenceService::WithCallbackMethod_ModelStatistics<
                            inference::GRPCInferenceService::WithCallbackMethod_RepositoryIndex<
                                inference::GRPCInferenceService::WithRawCallbackMethod_ModelInfer<
                                    inference::GRPCInferenceService::
                                        WithRawCallbackMethod_ModelStreamInfer<
                                            inference::GRPCInferenceService::Service>>>>>>>>>>;

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
  Reactor* ModelInfer(Context* context, const grpc::ByteBuffer* request,
                      grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ModelStreamInfer(
      Context* context) override;

 private:
  /// Answers with the JSON that HTTP sends for `endpoint`, between `before` and `after`.
  grpc::Status describe(Context& context, Endpoint endpoint, google::protobuf::Message& response,
                        const char* before = "", const char* after = "") const;

  const InferCallOptions options_;
};

}  // namespace flow
