// NVRTC, loaded when the first kernel is compiled: it needs no GPU.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "flow/result.hpp"

namespace flow::jit {

/// Names a library instead of the libnvrtc.so that is found; `off`: no kernel is compiled.
constexpr const char* kNvrtcVariable = "FLOW_NVRTC_LIB";

/// Code for one architecture.
struct KernelImage {
  bool is_ptx = false;  // text that the driver compiles for a GPU newer than the compiler
  std::string entry;    // the function's name in it
  std::string bytes;
};

/// Input of a compilation.
struct CompileRequest {
  std::string name;  // a `__global__` function of the text
  std::string text;
  std::vector<std::string> options;
  int arch = 0;  // 90: sm_90
  /// Headers by the names in #include. If there are any, the text includes only these.
  std::vector<std::pair<std::string, std::string>> headers = {};
};

struct CompileResult {
  bool ok = false;
  KernelImage image;
  std::string log;  // the compiler's log if it failed
};

class Compiler {
 public:
  /// The instance of this process. If NVRTC is missing, the Error names the searched folders and
  /// the remedy.
  static Result<const Compiler*> get();

  /// The loaded file.
  const std::string& path() const { return path_; }
  /// "13.0 /usr/local/cuda/include": equal versions produce equal code.
  const std::string& version() const { return version_; }
  /// The compiler options for an order, with the architecture; an Error if the compiler supports no
  /// suitable one.
  Result<std::vector<std::string>> options_of(const CompileRequest& order) const;
  /// An Error if the compiler itself failed.
  Result<CompileResult> compile(const CompileRequest& order) const;

 private:
  Compiler() = default;
  static Result<Compiler> load();
  Status find_calls(void* library);
  void find_headers();

  std::string path_, version_;
  std::vector<std::string> includes_;
  std::vector<int> archs_;  // ascending
  int major_ = 0, minor_ = 0;
};

}  // namespace flow::jit
