// A result out of the state into a folder: files as files, tensors as .npy, the whole as JSON.
#pragma once
#include <string>
#include <vector>

#include "engine/store/store.hpp"
#include "flow/value.hpp"

namespace flow {

/// A new name for a temporary file or folder in the target folder. Other copies do not remove it
/// while it is locked (hold_file()).
std::string temporary_name();
/// Makes the folder, or throws Failed.
void make_target(const std::string& directory);
/// Copies what is in `value`, which is called `name` ("" where it is the whole result), into
/// `directory`; the paths it wrote. Throws Failed.
std::vector<std::string> export_result(const Blobs& blobs, const Value& value,
                                       const std::string& name, const std::string& directory);

}  // namespace flow
