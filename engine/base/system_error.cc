#include "engine/base/system_error.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace flow {

bool is_transient(int code) {
  switch (code) {
    case E2BIG:
    case EACCES:
    case EEXIST:
    case EINVAL:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ENOEXEC:
    case ENOTDIR:
    case EPERM:
      return false;
    default:
      return true;
  }
}

Error system_error(const char* what, const std::string& path, int code) {
  return {is_transient(code) ? ErrorKind::environment : ErrorKind::user,
          fmt::format("cannot {} `{}`: {}", what, path, std::strerror(code))};
}

}  // namespace flow
