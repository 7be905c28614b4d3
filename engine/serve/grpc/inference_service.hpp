// The methods of the protocol, for one model.
#pragma once
#include <functional>

#include "engine/serve/grpc/infer_call.hpp"
#include "engine/serve/grpc/inference.grpc.pb.h"

namespace flow {

/// Calls get bytes, so that tensors are not copied, and so that what clients compress is
/// decompressed with a limit.
class InferenceService final : public inference::GRPCInferenceService::Service {
 public:
  explicit InferenceService(InferCallOptions options);

 private:
  using Context = grpc::CallbackServerContext;
  using Message = google::protobuf::Message;

  void add_health();
  void add_descriptions();
  void add_repository();
  void add_inference();
  /// From now on `start` gets the calls of the method, before their messages arrive.
  void set_method(int index, std::function<CallReactor*(Context*)> start);
  /// The same for calls that are answered with what `fill(context, request, response)` returns and
  /// has filled. They are noted.
  template <typename Request, typename Response, typename Fill>
  void set_answer(int index, const char* method, bool needs_key, Fill fill);
  /// Fills `response` with the JSON that HTTP sends for `endpoint`, between `before` and `after`.
  grpc::Status describe(Endpoint endpoint, Message& response, const char* before = "",
                        const char* after = "") const;
  /// As describe(), of the model that the request names.
  template <typename Request>
  grpc::Status describe_model(Endpoint endpoint, const Request& request, Message& response) const;
  grpc::Status refuse_load(const std::string& model) const;

  const InferCallOptions options_;
};

}  // namespace flow
