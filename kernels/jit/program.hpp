// A kernel of a script: compiled when a GPU first needs it, and from then on at hand in its
// process.
#pragma once
#include <map>
#include <string>

#include "kernels/jit/cache.hpp"
#include "kernels/jit/driver.hpp"
#include "kernels/jit/source.hpp"

namespace flow::jit {

/// One thread uses a program.
class Program {
 public:
  explicit Program(Source source) : source_(std::move(source)) {}
  const Source& source() const { return source_; }

  /// Code for sm_`arch`: from the cache, or compiled and kept there. An Error has the compiler's
  /// words with the script's lines.
  Result<Image> image(int arch, const Cache& cache) const;

  /// On the GPU `device`, or null where it is not there yet.
  Function* loaded(int device) const;
  /// Puts it there, once a process. The device's context is current.
  Result<Function*> load(const Driver& driver, int device, int arch, const Cache& cache);

 private:
  Source source_;
  std::map<int, Function*> functions_;  // by device; owned by the process
};

/// "90", "sm_90" as 90; 0 where it is none.
int parse_arch(std::string_view text);

}  // namespace flow::jit
