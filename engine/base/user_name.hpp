// The name of the user as whom this process runs.
#pragma once
#include <cstddef>
#include <string>

namespace flow {

/// Longer names are cut, and refused from others. Linux allows 32 bytes, directory services more.
constexpr size_t kUserNameMax = 256;

/// From the operating system's database of users, which is asked once. The user's number if it has
/// no name there.
const std::string& own_user_name();

}  // namespace flow
