// A folder for files that only this process needs.
#pragma once
#include <memory>
#include <string>

#include "flow/result.hpp"

namespace flow {

/// Creates a folder with mode 0700 in $TMPDIR, or in /tmp. It is removed with all its files when
/// the last reference ends; a killed process leaves it. Returns an error of kind `environment` if
/// it cannot be created.
Result<std::shared_ptr<const std::string>> make_temporary_folder();

}  // namespace flow
