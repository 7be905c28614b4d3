// The secret of a cluster: who holds it is a member. A file of 64 hexadecimal digits and a newline,
// which nobody but its owner may read.
#pragma once
#include <string>

#include "engine/crypto/seal.hpp"
#include "flow/result.hpp"

namespace flow::cluster {

using Secret = Key;

Result<Secret> read_secret(const std::string& path);

/// The same, of a new random one where there is no file yet. Two that make it at once get one.
Result<Secret> read_or_make_secret(const std::string& path);

}  // namespace flow::cluster
