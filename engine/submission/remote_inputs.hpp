// Inputs at URLs: their content is stored in the state like that of any input.
#pragma once
#include <string>

#include "engine/base/environment_variables.hpp"
#include "engine/plan/remote_origin.hpp"
#include "engine/store/store.hpp"
#include "engine/submission/run_inputs.hpp"

namespace flow {

enum class RemoteUse : uint8_t {
  fetch,    // ask the server for a newer version
  offline,  // use the copy of the state
  preview,  // ask, but fetch nothing
};

/// Fetches the inputs of one submission. Blocks; do not use it within a turn.
class RemoteInputs {
 public:
  /// All are borrowed. Content is stored in `blobs`; unfinished downloads are in its folder
  /// `downloads`. `resumed` are the inputs of the run that is resumed, or null: its content is used
  /// without asking.
  RemoteInputs(Store& store, Blobs& blobs, const EnvironmentVariables& environment, RemoteUse use,
               const Inputs* resumed);

  /// The file with its content's digest and size. In a preview the file stays as it is if its
  /// content would have to be fetched. Errors name the URL without its secrets.
  Result<File> fetch(const File& file);

 private:
  Result<File> fetch_now(File file, const RemoteOrigin& origin);

  Store& store_;
  Blobs& blobs_;
  const EnvironmentVariables& environment_;
  const RemoteUse use_;
  const Inputs* resumed_;
};

/// For garbage collection: removes the unfinished downloads of the state that no process continues
/// and that were last written more than an hour ago. Returns the number of bytes freed.
uint64_t remove_unfinished_downloads(const Blobs& blobs);

/// Whether the server must be asked which objects the URL names.
bool is_url_pattern(const std::string& url);

/// The URLs that a pattern of flow.files names: those of objects that match an s3 pattern, or the
/// URL itself.
Result<std::vector<std::string>> list_remote(const std::string& pattern, bool allow_empty,
                                             const EnvironmentVariables& environment);

/// The same among the inputs of a run that is resumed, without the network.
Result<std::vector<std::string>> list_fetched(const std::string& pattern, bool allow_empty,
                                              const Inputs& inputs);

/// Downloads the content at a URL to a new file in `folder`, for a client that has no state.
Result<File> fetch_to_folder(const File& file, const EnvironmentVariables& environment,
                             const std::string& folder, std::string& path);

}  // namespace flow
