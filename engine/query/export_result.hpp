// Copies a result from the state to a folder: files as files, tensors as .npy, the whole as JSON.
#pragma once
#include <string>
#include <vector>

#include "engine/store/store.hpp"
#include "flow/value.hpp"

namespace flow {

/// A new name for a temporary file or folder in the target folder. Other copies do not remove it
/// while it is locked (lock_file()).
std::string temporary_name();
/// Creates the folder, or throws Failed.
void make_target(const std::string& directory);
/// Copies the contents of `value`, which is called `name` ("" for the whole result), to
/// `directory`. `folders` names a folder below it for each file, in the order of export_folders();
/// the rest go to `directory` itself. Returns the paths that it wrote. Throws Failed.
std::vector<std::string> export_result(const Blobs& blobs, const Value& value,
                                       const std::string& name, const std::string& directory,
                                       const std::vector<std::string>& folders = {});

}  // namespace flow
