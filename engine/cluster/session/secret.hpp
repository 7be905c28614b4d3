// The secret of a cluster: every process that holds it is a member. It is a file of 64 hexadecimal
// digits and a newline that only its owner may read.
#pragma once
#include <string>

#include "engine/crypto/seal.hpp"
#include "flow/result.hpp"

namespace flow::cluster {

using Secret = Key;

Result<Secret> read_secret(const std::string& path);

/// As read_secret, but creates the file with a random secret if it does not exist. Concurrent
/// callers get the same secret.
Result<Secret> read_or_make_secret(const std::string& path);

}  // namespace flow::cluster
