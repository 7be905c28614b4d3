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

/// Whether the server still has this version. False also if it cannot be asked.
bool is_current(const RemoteObject& object, const ObjectVersion& known,
                const FetchOptions& options);

/// Removes what interrupted downloads left in `folder`. A file stays while a process downloads it,
/// and if it was written in the last `keep_s` seconds. Returns the number of bytes freed. Nothing
/// is an error: what cannot be removed stays.
uint64_t remove_unfinished_downloads(const std::string& folder, int64_t keep_s);

}  // namespace flow::fetch
