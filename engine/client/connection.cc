#include "engine/client/connection.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <type_traits>
#include <utility>

#include "engine/client/messages.hpp"
#include "engine/client/preface.hpp"
#include "engine/protocol/frames.hpp"

namespace flow {

namespace {

/// The address of `path`. A path that is too long goes through /proc/self/fd of its folder:
/// `folder` is the descriptor, for the caller to close; else -1.
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
  FLOW_CHECK(name.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, name.c_str(), name.size() + 1);
  return address;
}

Deadline in_ms(int64_t ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
}

/// Connects; the caller owns the descriptor. A stopped process with a full queue of connections
/// accepts no more: the send timeout ends the wait.
Result<int> connect_to(const std::string& path) {
  int folder = -1;
  auto address = address_of(path, folder);
  FLOW_TRY(address);
  int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int failed = descriptor < 0 ? errno : 0;
  timeval within{kStallMs / 1000, 0};
  ::setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &within, sizeof within);
  if (failed == 0 &&
      ::connect(descriptor, reinterpret_cast<sockaddr*>(&*address), sizeof *address) != 0)
    failed = errno;
  if (folder >= 0) ::close(folder);
  if (failed == 0) return descriptor;
  if (descriptor >= 0) ::close(descriptor);
  return environment_error(
      fmt::format("cannot reach the process that writes this state through `{}`: {}", path,
                  std::strerror(failed)));
}

/// Whether a process listens at `path` and does not answer a ping. False for one that is gone or
/// accepts no connection: its connections end by themselves.
bool is_stalled_at(const std::string& path) {
  auto descriptor = connect_to(path);
  if (!descriptor.ok()) return false;
  UnixConnection connection(*descriptor);
  ClientRequest request;
  request.mutable_ping();
  bool is_sent = connection.send(request);
  return is_sent && !wait_ready(*descriptor, POLLIN, in_ms(kStallMs));
}

void append_preface(std::string& out, std::string_view peer_preface) {
  std::string preface = encode_preface(peer_preface);
  uint32_t size = static_cast<uint32_t>(preface.size());
  out.append(reinterpret_cast<const char*>(&size), sizeof size);
  out += preface;
}

Result<ClientRequest> decode(std::string_view bytes, ClientRequest*) {
  return decode_request(bytes);
}
Result<ServerReply> decode(std::string_view bytes, ServerReply*) { return decode_reply(bytes); }

}  // namespace

// The preface goes in one write with the first message: it costs no round trip.
template <typename Message>
bool EngineConnection::send_message(const Message& message) {
  if (message.ByteSizeLong() > kClientFrameMax) return false;
  std::string bytes;
  std::lock_guard lock(send_mutex_);
  if (!std::exchange(has_sent_preface_, true)) append_preface(bytes, {});
  append_frame(bytes, message);
  return write(bytes);
}

bool EngineConnection::send(const ClientRequest& request) { return send_message(request); }
bool EngineConnection::send(const ServerReply& reply) { return send_message(reply); }

void EngineConnection::send_rejection(std::string_view peer_preface) {
  std::string bytes;
  append_preface(bytes, peer_preface);
  std::lock_guard lock(send_mutex_);
  if (!std::exchange(has_sent_preface_, true)) (void)write(bytes);
}

Result<std::string> EngineConnection::receive_frame(const std::optional<Deadline>& until) {
  constexpr size_t kStep = size_t{1} << 20;  // memory grows with what was sent, not with the length
  auto receive_error = [&] {
    bool is_late = is_stalled() || (until && std::chrono::steady_clock::now() >= *until);
    return environment_error(is_late ? "the other side sent no whole message in time"
                                     : "the other side is gone");
  };
  uint32_t size = 0;
  if (!read(reinterpret_cast<char*>(&size), sizeof size, until)) return receive_error();
  if (size > kClientFrameMax)
    return environment_error(
        fmt::format("a frame of {} bytes is over the limit of {}", size, kClientFrameMax));
  std::string bytes;
  while (bytes.size() < size) {
    size_t begin = bytes.size();
    bytes.resize(std::min<size_t>(size, begin + kStep));
    if (!read(bytes.data() + begin, bytes.size() - begin, until)) return receive_error();
  }
  return bytes;
}

template <typename Message>
Result<Message> EngineConnection::receive(int64_t within_ms) {
  std::optional<Deadline> until;
  if (within_ms >= 0) until = in_ms(within_ms);
  if (!has_received_preface_) {
    auto first = receive_frame(until);
    FLOW_TRY(first);
    Status version = check_preface(*first);
    is_other_version_ = !version.ok();
    if constexpr (std::is_same_v<Message, ServerReply>) {
      if (is_other_version_) return error_reply(version.error());
    } else {
      if (is_other_version_) send_rejection(*first);
      FLOW_TRY(version);
    }
    has_received_preface_ = true;
  }
  auto frame = receive_frame(until);
  FLOW_TRY(frame);
  return decode(*frame, static_cast<Message*>(nullptr));
}

template Result<ClientRequest> EngineConnection::receive(int64_t);
template Result<ServerReply> EngineConnection::receive(int64_t);

UnixConnection::~UnixConnection() { ::close(descriptor_); }

bool UnixConnection::write(std::string_view bytes) {
  const int flags = path_.empty() ? 0 : MSG_DONTWAIT;
  while (!bytes.empty()) {
    if (!wait(POLLOUT, std::nullopt)) return false;
    ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL | flags);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool UnixConnection::read(char* to, size_t size, const std::optional<Deadline>& until) {
  while (size > 0) {
    if (!wait(POLLIN, until)) return false;
    ssize_t got = ::recv(descriptor_, to, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool UnixConnection::wait(short events, const std::optional<Deadline>& until) {
  if (until) return wait_ready(descriptor_, events, *until);
  if (path_.empty()) return true;  // the blocking call waits
  bool is_reported = false;
  while (!wait_ready(descriptor_, events, in_ms(kStallMs))) {
    if (!is_stalled_at(path_)) {
      is_reported = false;
      continue;
    }
    stalled_ = !on_stalled_;
    if (stalled_) return false;
    if (!std::exchange(is_reported, true)) on_stalled_();
  }
  return true;
}

int64_t SessionConnection::reconnect_window_ms() const {
  auto end = channel_->end();
  if (!end) return 0;
  switch (end->first) {
    case cluster::EndKind::lost:
      return kReconnectAfterTimeoutMs;
    case cluster::EndKind::cut:
    case cluster::EndKind::damaged:
      return kReconnectAfterCloseMs;
    default:
      return 0;
  }
}

std::string UnixConnection::requester(std::string_view said) const {
  std::string clean = clean_requester(said);
  return clean.empty() ? own_requester() : clean;
}

void UnixConnection::shut_down() { ::shutdown(descriptor_, SHUT_RDWR); }

std::string socket_path(const std::string& state_dir) { return state_dir + "/socket"; }

Result<std::unique_ptr<UnixConnection>> UnixConnection::connect(const std::string& path) {
  auto descriptor = connect_to(path);
  FLOW_TRY(descriptor);
  return std::make_unique<UnixConnection>(*descriptor, path);
}

Result<int> listen_at(const std::string& path) {
  constexpr int kBacklog = 64;
  int folder = -1;
  auto address = address_of(path, folder);
  FLOW_TRY(address);
  ::unlink(path.c_str());  // this process holds the lock: it was left by a writer that died
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

}  // namespace flow
