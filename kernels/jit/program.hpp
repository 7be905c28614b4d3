// A kernel of a script: compiled when a GPU first needs it, then kept for the process.
#pragma once
#include <map>
#include <string>

#include "kernels/jit/cache.hpp"
#include "kernels/jit/driver.hpp"
#include "kernels/jit/source.hpp"

namespace flow::jit {

/// Used by one thread.
class ScriptKernel {
 public:
  explicit ScriptKernel(KernelSource source) : source_(std::move(source)) {}
  const KernelSource& source() const { return source_; }

  /// Code for sm_`arch`, from the cache, or compiled and stored there. An Error has the compiler's
  /// messages with the script's lines.
  Result<KernelImage> image(int arch, const Cache& cache) const;

  /// The function on the GPU `device`, or null if it is not loaded there.
  LoadedFunction* loaded(int device) const;
  /// Loads it there, once per process. The device's context is current.
  Result<LoadedFunction*> load(const Driver& driver, int device, int arch, const Cache& cache);

 private:
  KernelSource source_;
  std::map<int, LoadedFunction*> functions_;  // by device; owned by the process
};

/// "90", "sm_90" as 90; 0 if it is invalid.
int parse_arch(std::string_view text);

}  // namespace flow::jit
