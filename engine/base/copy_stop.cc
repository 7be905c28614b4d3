// A process-wide flag.
#include "engine/base/copy_stop.hpp"

#include <fmt/format.h>

#include <atomic>

#include "flow/process.hpp"

namespace flow {

namespace {

std::atomic<bool> is_stopped = false;

}  // namespace

void stop_copies() { is_stopped = true; }

Status check_copies_running(const std::string& target) {
  if (!is_stopped) return {};
  return Error{
      ErrorKind::interrupted,
      fmt::format("the copy to `{}` was interrupted; the result is still in the state, and "
                  "`flow get -o DIR` copies it again",
                  target)};
}

}  // namespace flow
