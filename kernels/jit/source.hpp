// What a script says of a kernel, the text that the compiler gets for it, and the compiler's words
// turned back into the script's.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "kernels/jit/signature.hpp"

namespace flow::jit {

constexpr size_t kSourceMax = size_t{4} << 20;  // bytes
constexpr size_t kOptionsMax = 64;

struct Source {
  std::string name;  // of the `__global__` function
  std::string text;
  Signature signature;
  std::vector<std::string> options;  // for the compiler, as check_option allows
  // Where the text begins, for messages; "kernel saxpy" from line 1 where that is not known.
  std::string file;
  uint32_t line = 1;
};

/// An Error for an option that no kernel may have: what it reads would not be part of a key.
Status check_option(const std::string& option);
/// The same for what a source includes: the compiler's own headers, <…>, and no other file.
Status check_includes(std::string_view text);

/// The source, numbered as the script is, and after it the checks that the function's parameters
/// are those of the signature: a wrong one would be read from another's bytes.
std::string compiler_text(const Source& source);

/// What a person who wrote the source can use of the compiler's log: errors alone, the script's
/// first.
std::string error_text(const Source& source, const std::string& log);

}  // namespace flow::jit
