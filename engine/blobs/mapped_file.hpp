// Files as memory: nothing is read before it is touched, and nothing that is changed there comes to
// the file.
#pragma once
#include <string>

#include "flow/bytes.hpp"
#include "flow/result.hpp"

namespace flow {

/// The content of a regular file, mapped privately: pages that are written become copies. Each call
/// maps anew, so the bytes are the caller's own. Where somebody cuts the file short later, touching
/// what is gone ends the process (SIGBUS): map what is replaced whole, as flow's own files are.
Result<Bytes> map_file(const std::string& path);

}  // namespace flow
