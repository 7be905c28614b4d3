// The server of a build without gRPC.
#include "engine/serve/grpc/grpc_server.hpp"

namespace flow {

Result<std::unique_ptr<GrpcServer>> GrpcServer::open(const GrpcOptions& options,
                                                     InferenceBackend&) {
  return user_error(
      "the service `" + options.name +
      "` cannot listen for gRPC: this flow was built without it. Install libgrpc++-dev and "
      "protobuf-compiler-grpc and build it again with -DFLOW_GRPC=ON, or remove the option `grpc`");
}

}  // namespace flow
