// The frames of frame_link.hpp.
#include "engine/driver/frame_link.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

namespace flow {

namespace {

bool send_all(int descriptor, const char* data, size_t size) {
  while (size > 0) {
    ssize_t sent = ::send(descriptor, data, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool read_all(int descriptor, char* data, size_t size, const std::optional<Deadline>& deadline) {
  while (size > 0) {
    if (deadline && !wait_ready(descriptor, POLLIN, *deadline)) return false;
    ssize_t got = ::recv(descriptor, data, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

/// The address of `path`; a long one goes through /proc/self/fd of its folder, whose descriptor is
/// returned in `folder`.
Result<sockaddr_un> address_of(const std::string& path, int& folder) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string name = path;
  folder = -1;
  if (name.size() >= sizeof address.sun_path) {
    std::filesystem::path whole(path);
    folder = ::open(whole.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
      return environment_error(
          fmt::format("cannot open `{}`: {}", whole.parent_path().string(), std::strerror(errno)));
    name = fmt::format("/proc/self/fd/{}/{}", folder, whole.filename().string());
  }
  std::memcpy(address.sun_path, name.c_str(), name.size() + 1);
  return address;
}

Error nothing_came(const std::optional<Deadline>& deadline) {
  bool is_late = deadline && std::chrono::steady_clock::now() >= *deadline;
  return environment_error(is_late ? "the other side sent no whole message in time"
                                   : "the other side is gone");
}

}  // namespace

bool FrameLink::send(const Value& frame) {
  std::string bytes = encode_value(frame);
  if (bytes.size() > kLinkFrameMax) return false;
  uint32_t size = static_cast<uint32_t>(bytes.size());
  bytes.insert(0, reinterpret_cast<const char*>(&size), sizeof size);
  std::lock_guard lock(sending_);
  return write(bytes);
}

Result<Value> FrameLink::receive(int64_t within_ms) {
  constexpr size_t kStep = size_t{1} << 20;  // who announces much sends it before we hold it
  std::optional<Deadline> deadline;
  if (within_ms >= 0)
    deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(within_ms);
  uint32_t size = 0;
  if (!read(reinterpret_cast<char*>(&size), sizeof size, deadline)) return nothing_came(deadline);
  if (size > kLinkFrameMax)
    return environment_error(
        fmt::format("a frame of {} bytes is over the limit of {}", size, kLinkFrameMax));
  std::string bytes;
  while (bytes.size() < size) {
    size_t begin = bytes.size();
    bytes.resize(std::min<size_t>(size, begin + kStep));
    if (!read(bytes.data() + begin, bytes.size() - begin, deadline)) return nothing_came(deadline);
  }
  return decode_value(bytes);
}

SocketLink::~SocketLink() { ::close(descriptor_); }

bool SocketLink::write(std::string_view bytes) {
  return send_all(descriptor_, bytes.data(), bytes.size());
}

bool SocketLink::read(char* to, size_t size, const std::optional<Deadline>& until) {
  return read_all(descriptor_, to, size, until);
}

int64_t ChannelLink::may_return_ms() const {
  auto end = channel_->end();
  if (!end) return 0;
  switch (end->first) {
    case cluster::EndKind::lost:
      return kBackAfterLostMs;
    case cluster::EndKind::cut:
    case cluster::EndKind::damaged:
      return kBackAfterCutMs;
    default:
      return 0;
  }
}

void SocketLink::shut_down() { ::shutdown(descriptor_, SHUT_RDWR); }

std::string socket_path(const std::string& state_dir) { return state_dir + "/socket"; }

Result<std::unique_ptr<SocketLink>> SocketLink::connect(const std::string& path) {
  int folder = -1;
  auto address = address_of(path, folder);
  FLOW_TRY(address);
  int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int failed = descriptor < 0 ? errno : 0;
  if (failed == 0 &&
      ::connect(descriptor, reinterpret_cast<sockaddr*>(&*address), sizeof *address) != 0)
    failed = errno;
  if (folder >= 0) ::close(folder);
  if (failed != 0) {
    if (descriptor >= 0) ::close(descriptor);
    return environment_error(
        fmt::format("cannot reach the process that writes this state through `{}`: {}", path,
                    std::strerror(failed)));
  }
  return std::make_unique<SocketLink>(descriptor);
}

Result<int> listen_at(const std::string& path) {
  constexpr int kBacklog = 64;
  int folder = -1;
  auto address = address_of(path, folder);
  FLOW_TRY(address);
  ::unlink(path.c_str());  // the lock is ours: whoever left it is gone
  int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool ok = descriptor >= 0 && ::fchmod(descriptor, 0600) == 0 &&
            ::bind(descriptor, reinterpret_cast<sockaddr*>(&*address), sizeof *address) == 0 &&
            ::chmod(path.c_str(), 0600) == 0 && ::listen(descriptor, kBacklog) == 0;
  int failed = errno;
  if (folder >= 0) ::close(folder);
  if (ok) return descriptor;
  if (descriptor >= 0) ::close(descriptor);
  return environment_error(fmt::format("cannot listen at `{}`: {}", path, std::strerror(failed)));
}

Result<Value> SocketLink::ask(const std::string& path, const Value& request) {
  auto link = connect(path);
  FLOW_TRY(link);
  if (!(*link)->send(request)) return environment_error("the other side is gone");
  return (*link)->receive();
}

}  // namespace flow
