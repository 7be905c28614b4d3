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
constexpr int64_t kChunkTimeoutMs = 60'000;  // who has none for so long hangs

Error gone() { return environment_error("the other side is gone"); }

}  // namespace

Status send_blob(EngineConnection& connection, const Digest& digest,
                 const Result<cluster::BlobReader>& source) {
  auto reject = [&](const Error& why) -> Status {
    connection.send(error_to_value(why));
    return why;
  };
  if (!source.ok()) return reject(source.error());
  uint64_t size = source->size(), at = 0;
  do {
    std::string chunk(static_cast<size_t>(std::min<uint64_t>(kChunkBytes, size - at)), '\0');
    Status read = source->read(at, chunk.data(), chunk.size());
    if (!read.ok()) return reject(read.error());
    at += chunk.size();
    bool sent = connection.send(Value::map({{"frame", "content"},
                                            {"digest", digest.view()},
                                            {"bytes", std::move(chunk)},
                                            {"last", at == size}}));
    if (!sent) return gone();
  } while (at < size);
  return {};
}

Status receive_blob(EngineConnection& connection, const Digest& digest, const std::string& dir,
                    const std::function<Status()>& goes_on) {
  NewBlobFile object(dir);
  if (object.descriptor() < 0)
    return environment_error(
        fmt::format("cannot write `{}`: {}", object.path(), std::strerror(errno)));
  Sha256 hash;
  while (true) {
    if (goes_on) FLOW_TRY(goes_on());
    auto frame = connection.receive(kChunkTimeoutMs);
    FLOW_TRY(frame);
    if (text_field(*frame, "frame") == "error") return error_from_value(*frame);
    if (text_field(*frame, "frame") != "content" || text_field(*frame, "digest") != digest.view())
      return environment_error("what came is not the content that was asked for");
    const std::string bytes = text_field(*frame, "bytes");
    hash.update(bytes);
    if (!write_all(object.descriptor(), bytes))
      return environment_error(
          fmt::format("cannot write `{}`: {}", object.path(), std::strerror(errno)));
    if (flag_field(*frame, "last")) break;
  }
  if (hash.finish() != digest)
    return user_error("input changed: a file is not what it was when the graph was built");
  return object.publish_as(digest);
}

}  // namespace flow
