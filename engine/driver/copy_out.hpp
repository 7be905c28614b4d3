// A result out of the state into a folder: files as files, tensors as .npy, the whole as JSON.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/store/store.hpp"
#include "flow/value.hpp"

namespace flow {

/// With 6 random characters behind it, a folder for what is on its way into the one around it;
/// while it is held no other copy removes it.
constexpr std::string_view kTemporaryFolder = ".flow-part-";
/// Makes the folder, or throws Failed.
void make_target(const std::string& directory);
/// Copies what is in `value`, which is called `name` ("" where it is the whole result), into
/// `directory`; the paths it wrote. Throws Failed.
std::vector<std::string> copy_out(const Blobs& blobs, const Value& value, const std::string& name,
                                  const std::string& directory);

}  // namespace flow
