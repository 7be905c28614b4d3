// The methods of the protocol, for one model.
#pragma once
#include "engine/serve/grpc/infer_call.hpp"
#include "engine/serve/grpc/inference.grpc.pb.h"

namespace flow {

using InferenceStubs = inference::GRPCInferenceService;
/// Calls get bytes, so that tensors are not copied, and so that what clients compress is
/// decompressed with a limit.
using InferMethods = InferenceStubs::WithRawCallbackMethod_ModelInfer<
    InferenceStubs::WithRawCallbackMethod_ModelStreamInfer<InferenceStubs::Service>>;
using RepositoryMethods = InferenceStubs::WithRawCallbackMethod_RepositoryIndex<
    InferenceStubs::WithRawCallbackMethod_RepositoryModelLoad<
        InferenceStubs::WithRawCallbackMethod_RepositoryModelUnload<InferMethods>>>;
using ModelMethods = InferenceStubs::WithRawCallbackMethod_ModelReady<
    InferenceStubs::WithRawCallbackMethod_ModelMetadata<
        InferenceStubs::WithRawCallbackMethod_ModelConfig<
            InferenceStubs::WithRawCallbackMethod_ModelStatistics<RepositoryMethods>>>>;
using InferenceMethods = InferenceStubs::WithRawCallbackMethod_ServerLive<
    InferenceStubs::WithRawCallbackMethod_ServerReady<
        InferenceStubs::WithRawCallbackMethod_ServerMetadata<ModelMethods>>>;

class InferenceService final : public InferenceMethods {
 public:
  explicit InferenceService(InferCallOptions options) : options_(std::move(options)) {}

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  using Message = grpc::ByteBuffer;

  // These three need no key.
  Reactor* ServerLive(Context* context, const Message* request, Message* response) override;
  Reactor* ServerReady(Context* context, const Message* request, Message* response) override;
  Reactor* ModelReady(Context* context, const Message* request, Message* response) override;

  Reactor* ServerMetadata(Context* context, const Message* request, Message* response) override;
  Reactor* ModelMetadata(Context* context, const Message* request, Message* response) override;
  Reactor* ModelConfig(Context* context, const Message* request, Message* response) override;
  Reactor* ModelStatistics(Context* context, const Message* request, Message* response) override;
  Reactor* RepositoryIndex(Context* context, const Message* request, Message* response) override;
  // A service has one model, which is there until it ends: these two are refused.
  Reactor* RepositoryModelLoad(Context* context, const Message* request,
                               Message* response) override;
  Reactor* RepositoryModelUnload(Context* context, const Message* request,
                                 Message* response) override;
  Reactor* ModelInfer(Context* context, const Message* request, Message* response) override;
  grpc::ServerBidiReactor<Message, Message>* ModelStreamInfer(Context* context) override;

 private:
  /// Ends the call with what `fill(request, response)` returns and has filled. It is noted.
  template <typename Request, typename Response, typename Fill>
  Reactor* answer(Context& context, const char* method, const Message& request, Message& response,
                  const Fill& fill) const;
  Reactor* finished(Context& context, const char* method, grpc::Status status) const;
  /// Fills `response` with the JSON that HTTP sends for `endpoint`, between `before` and `after`.
  grpc::Status describe(Context& context, Endpoint endpoint, google::protobuf::Message& response,
                        const char* before = "", const char* after = "") const;
  /// As describe(), of the model that the request names.
  template <typename Request>
  grpc::Status describe_model(Context& context, Endpoint endpoint, const Request& request,
                              google::protobuf::Message& response) const;
  grpc::Status refuse_load(Context& context, const std::string& model) const;

  const InferCallOptions options_;
};

}  // namespace flow
