// Downloads an object into a file: ranges in parallel, resumed after an interruption.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "engine/fetch/object_version.hpp"
#include "engine/fetch/remote_object.hpp"
#include "flow/digest.hpp"

namespace flow::fetch {

struct DownloadedFile {
  std::string path;
  ObjectVersion version;
  Digest digest;
  uint64_t size = 0;
};

struct DownloadOrder {
  const RemoteObject& object;
  /// The file that receives the content. While a process downloads it, others wait. What an
  /// interrupted download left there, with the file `partial`.progress, is continued if the object
  /// has a strong ETag, that ETag is the same, and the machine was not restarted.
  std::string partial;
  std::optional<Digest> expected;  // digest that the content must have
  /// The version of the copy that the caller has; called when this process has the file.
  std::function<std::optional<ObjectVersion>()> known;
  /// Takes the complete file, before any other process may write to it.
  std::function<Status(const DownloadedFile&)> keep;
};

enum class DownloadOutcome : uint8_t {
  kept,
  unchanged
};  // unchanged: the known version is current

/// Errors of the server and the network are user errors, which name the URL without its secrets.
Result<DownloadOutcome> download(const DownloadOrder& order, const FetchOptions& options);

}  // namespace flow::fetch
