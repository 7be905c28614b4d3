// The origin of an input file that is fetched from a URL before the run starts.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "flow/digest.hpp"
#include "flow/result.hpp"
#include "flow/value.hpp"

namespace flow {

struct RemoteOrigin {
  std::string url;
  std::optional<Digest> sha256;  // of the content that the script expects
  bool offline = false;          // use the copy of the state, without asking the server

  /// As File::origin of a file without a digest. It has the URL's secrets: such a file is never
  /// stored.
  std::string text() const;
  /// The same with a digest instead of the secrets.
  std::string stored_text() const;
};

/// Whether `origin` is a RemoteOrigin and not a path.
bool is_remote_origin(std::string_view origin);
Result<RemoteOrigin> parse_remote_origin(std::string_view origin);

/// The file at a URL, without its content. Error if the URL is not valid.
Result<File> remote_file(const RemoteOrigin& origin);

/// The first file in `value` that has no content yet and is at a URL, or null.
const File* find_unfetched(const Value& value);

/// The value with each such file's stored_text() as origin.
Value without_url_secrets(const Value& value);

}  // namespace flow
