// A kernel as a script defines it, the compiler's input, and the conversion of the compiler's
// messages to the script's lines.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "kernels/jit/signature.hpp"

namespace flow::jit {

constexpr size_t kSourceMax = size_t{4} << 20;  // bytes
constexpr size_t kOptionsMax = 64;

struct KernelSource {
  std::string name;  // of the `__global__` function
  std::string text;
  KernelSignature signature;
  std::vector<std::string> options;  // for the compiler, as check_option allows
  // Start of the text, for messages; "kernel saxpy" from line 1 if it is unknown.
  std::string file;
  uint32_t line = 1;
};

/// An Error for an option that kernels may not have: files that it reads would not be part of a
/// key.
Status check_option(const std::string& option);
/// The same for includes: the compiler's own headers, <…>, and no other file.
Status check_includes(std::string_view text);

/// The source with the script's line numbers, followed by checks that the function's parameters
/// match the signature: a wrong one would read another parameter's bytes.
std::string compiler_text(const KernelSource& source);

/// The part of the compiler's log for the author of the source: errors only, those in the script
/// first.
std::string error_text(const KernelSource& source, const std::string& log);

}  // namespace flow::jit
