#include "engine/base/unix_socket.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/file_descriptor.hpp"

namespace flow {

namespace {

/// Calls `use` with the address of `path`. Returns the errno, or 0.
template <typename Use>
int with_address(const std::string& path, const Use& use) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::filesystem::path whole(path);
  bool is_long = path.size() >= sizeof address.sun_path;
  FileDescriptor folder(
      is_long ? ::open(whole.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC) : -1);
  if (is_long && folder.number < 0) return errno;
  std::string name =
      is_long ? fmt::format("/proc/self/fd/{}/{}", folder.number, whole.filename().string()) : path;
  if (name.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  std::memcpy(address.sun_path, name.c_str(), name.size() + 1);
  return use(reinterpret_cast<const sockaddr*>(&address), sizeof address) ? 0 : errno;
}

Result<int> opened(int descriptor, int failed, const char* what, const std::string& path) {
  if (failed == 0) return descriptor;
  if (descriptor >= 0) ::close(descriptor);
  return environment_error(fmt::format("cannot {} `{}`: {}", what, path, std::strerror(failed)));
}

}  // namespace

Result<int> connect_unix(const std::string& path) {
  int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int failed = descriptor < 0 ? errno : with_address(path, [&](const sockaddr* to, socklen_t size) {
    int result;
    do result = ::connect(descriptor, to, size);
    while (result != 0 && errno == EINTR);
    return result == 0;
  });
  return opened(descriptor, failed, "connect to", path);
}

Result<int> listen_unix(const std::string& path) {
  constexpr int kBacklog = 128;
  ::unlink(path.c_str());
  int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int failed = descriptor < 0 ? errno : with_address(path, [&](const sockaddr* at, socklen_t size) {
    return ::fchmod(descriptor, 0600) == 0 && ::bind(descriptor, at, size) == 0 &&
           ::chmod(path.c_str(), 0600) == 0 && ::listen(descriptor, kBacklog) == 0;
  });
  return opened(descriptor, failed, "listen at", path);
}

pid_t peer_of(int descriptor) {
  ucred peer{};
  socklen_t size = sizeof peer;
  bool ok = ::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
            peer.uid == ::geteuid();
  return ok ? peer.pid : 0;
}

}  // namespace flow
