#include "engine/serve/grpc/message_coding.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/serve/http/gzip.hpp"

namespace grpc::internal {

/// gRPC declares it as a friend and does not define it: ByteBuffer has no other way to the
/// algorithm.
class GrpcByteBufferPeer {
 public:
  static grpc_byte_buffer& core(ByteBuffer& bytes) { return *bytes.c_buffer(); }
};

}  // namespace grpc::internal

namespace flow {

namespace {

std::string joined(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  FLOW_CHECK(message.Dump(&slices).ok());
  std::string bytes;
  bytes.reserve(message.Length());
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

/// A message of these bytes, which are not copied.
grpc::ByteBuffer message_of(std::string bytes) {
  auto owner = std::make_unique<std::string>(std::move(bytes));
  grpc::Slice slice(
      owner->data(), owner->size(),
      [](void* text) { std::unique_ptr<std::string> last(static_cast<std::string*>(text)); },
      owner.get());
  owner.release();  // the slice's
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

grpc_compression_algorithm& compression_of(grpc::ByteBuffer& message) {
  return grpc::internal::GrpcByteBufferPeer::core(message).data.raw.compression;
}

CallStatus decompress_message(grpc::ByteBuffer& message, size_t bytes_max) {
  if (!message.Valid()) return {};
  const grpc_compression_algorithm algorithm = compression_of(message);
  if (algorithm == GRPC_COMPRESS_NONE) return {};
  const char* encoding = algorithm == GRPC_COMPRESS_GZIP ? "gzip" : "deflate";
  std::string packed = joined(message);
  message.Clear();
  PlainBody plain = decompress(encoding, packed, bytes_max);
  if (!plain.error) {
    message = message_of(std::move(plain.bytes));
    return {};
  }
  if (plain.error->status == 413)
    return {413, fmt::format("the message is larger than {} bytes after its grpc-encoding `{}` is "
                             "undone",
                             bytes_max, encoding)};
  return {plain.error->status,
          fmt::format("the message is damaged: its grpc-encoding `{}` cannot be undone", encoding)};
}

}  // namespace flow
