// The files of a folder as values of their own.
#pragma once
#include <vector>

#include "flow/value.hpp"

namespace flow {

/// The files of a folder at all depths, sorted bytewise by path; each is named by its path. A step
/// of a path whose key is flow.null stands for this list (flow.list).
std::vector<File> files_of(const File& folder);

}  // namespace flow
