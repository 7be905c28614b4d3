// The end of a violated invariant: prints it with its location and aborts.
#include "flow/result.hpp"

#include <cstdio>
#include <cstdlib>

namespace flow {

void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "flow: internal error: `%s` does not hold at %s:%d\n", condition, file,
               line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace flow
