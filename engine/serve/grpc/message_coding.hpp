// Messages that clients compress. gRPC itself would decompress them without a limit.
#pragma once
#include <grpcpp/support/byte_buffer.h>

#include "engine/serve/grpc/call_rules.hpp"

namespace flow {

/// The algorithm that the bytes of the message are compressed with, which gRPC keeps beside them.
/// The message is valid.
grpc_compression_algorithm& compression_of(grpc::ByteBuffer& message);

/// Makes a compressed message the plain one; others stay as they are. Status 413 if it has more
/// than `bytes_max`, 400 if it is damaged.
CallStatus decompress_message(grpc::ByteBuffer& message, size_t bytes_max);

}  // namespace flow
