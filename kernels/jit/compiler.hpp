// NVRTC, loaded when the first kernel is compiled: it needs no GPU.
#pragma once
#include <string>
#include <vector>

#include "flow/result.hpp"

namespace flow::jit {

/// Code for one architecture.
struct Image {
  bool is_ptx = false;  // text that the driver compiles for a GPU younger than the compiler
  std::string entry;    // the function's name in it
  std::string bytes;
};

/// What a compilation is asked for.
struct Order {
  std::string name;  // a `__global__` function of the text
  std::string text;
  std::vector<std::string> options;
  int arch = 0;  // 90: sm_90
};

struct Output {
  bool ok = false;
  Image image;
  std::string log;  // the compiler's, where it is not ok
};

class Compiler {
 public:
  /// This process's. An Error where there is no NVRTC: what was looked for, and what to do.
  static Result<const Compiler*> get();

  /// "13.0 /usr/local/cuda/include": two of one name give the same code.
  const std::string& version() const { return version_; }
  /// The options that an order comes to, with the architecture; an Error where the compiler knows
  /// none that fits.
  Result<std::vector<std::string>> options_of(const Order& order) const;
  /// An Error where the compiler itself failed.
  Result<Output> compile(const Order& order) const;

 private:
  Compiler() = default;
  static Result<Compiler> load();
  Status find_calls(void* library);
  void find_headers();

  std::string version_;
  std::vector<std::string> includes_;
  std::vector<int> archs_;  // ascending
  int major_ = 0, minor_ = 0;
};

}  // namespace flow::jit
