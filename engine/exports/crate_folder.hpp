// The folder of a crate: files are copied from the state, never to a path outside of the folder.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "engine/exports/unique_names.hpp"
#include "engine/store/store.hpp"
#include "flow/value.hpp"

namespace flow {

class CrateFolder {
 public:
  /// Creates the folder. Throws Failed, as all other functions.
  CrateFolder(const Blobs& blobs, std::string directory);

  /// A path below the folder that no other entry has: `folder`/`group`/`name`, or without a group.
  /// Characters that could lead elsewhere are replaced.
  std::string place(const std::string& folder, const std::string& group, const std::string& name);
  void write(const std::string& path, std::string_view content);
  /// Copies the file, or the folder with all its files. The content is checked against its digest.
  void copy(const File& file, const std::string& path);

 private:
  /// Creates a folder below that of the crate. Fails if one of its parts is a link.
  void make_folder(const std::filesystem::path& relative) const;
  void copy_blob(const Digest& digest, const std::string& origin, bool executable,
                 const std::string& path);

  const Blobs& blobs_;
  std::string directory_;
  UniqueNames taken_;
};

/// One component of a path, from any text.
std::string safe_component(std::string text);
/// A path as a relative URI: percent-encoded.
std::string uri_of(std::string_view path);

}  // namespace flow
