#include "engine/client/blob_frames.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/files.hpp"
#include "engine/blobs/blob_file.hpp"
#include "engine/client/messages.hpp"

namespace flow {

namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr int64_t kChunkTimeoutMs = 60'000;

}  // namespace

template <typename Message>
Status send_blob(EngineConnection& connection, const Digest& digest,
                 const Result<cluster::BlobReader>& source) {
  auto reject = [&](const Error& why) -> Status {
    Message message;
    put_error(why, *message.mutable_error());
    connection.send(message);
    return why;
  };
  if (!source.ok()) return reject(source.error());
  uint64_t size = source->size(), at = 0;
  do {
    Message message;
    client_protocol::BlobChunk& chunk = *message.mutable_blob_chunk();
    std::string& data = *chunk.mutable_data();
    data.resize(static_cast<size_t>(std::min<uint64_t>(kChunkBytes, size - at)));
    Status read = source->read(at, data.data(), data.size());
    if (!read.ok()) return reject(read.error());
    at += data.size();
    chunk.set_digest(std::string(digest.view()));
    chunk.set_is_last(at == size);
    if (!connection.send(message)) return environment_error("the other side is gone");
  } while (at < size);
  return {};
}

template <typename Message>
Status receive_blob(EngineConnection& connection, const Digest& digest, const std::string& dir,
                    const std::function<Status()>& before_chunk) {
  NewBlobFile file(dir);
  auto write_error = [&] {
    return environment_error(
        fmt::format("cannot write `{}`: {}", file.path(), std::strerror(errno)));
  };
  if (file.descriptor() < 0) return write_error();
  Sha256 hash;
  bool is_last = false;
  while (!is_last) {
    if (before_chunk) FLOW_TRY(before_chunk());
    auto message = connection.receive<Message>(kChunkTimeoutMs);
    FLOW_TRY(message);
    if (message->has_error()) return get_error(message->error());
    const client_protocol::BlobChunk& chunk = message->blob_chunk();
    if (!message->has_blob_chunk() || chunk.digest() != digest.view())
      return environment_error("the received bytes are not the requested blob");
    hash.update(chunk.data());
    if (!write_all(file.descriptor(), chunk.data())) return write_error();
    is_last = chunk.is_last();
  }
  if (hash.finish() != digest)
    return user_error("input changed: a file was changed after the graph was built");
  return file.publish_as(digest);
}

template Status send_blob<ClientRequest>(EngineConnection&, const Digest&,
                                         const Result<cluster::BlobReader>&);
template Status send_blob<ServerReply>(EngineConnection&, const Digest&,
                                       const Result<cluster::BlobReader>&);
template Status receive_blob<ClientRequest>(EngineConnection&, const Digest&, const std::string&,
                                            const std::function<Status()>&);
template Status receive_blob<ServerReply>(EngineConnection&, const Digest&, const std::string&,
                                          const std::function<Status()>&);

}  // namespace flow
