// Asks the kernel over netlink (sock_diag(7)): one question has one answer, however many
// connections this machine has.
#include "engine/process/listening_socket.hpp"

#include <arpa/inet.h>
#include <dirent.h>
#include <fmt/format.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "engine/base/file_descriptor.hpp"
#include "engine/process/process_stat.hpp"

namespace flow {

namespace {

constexpr uint32_t kMappedWord = 0x0000ffff;  // third word of ::ffff:a.b.c.d, in host order
constexpr uint32_t kLoopbackByte = 127;
constexpr size_t kAnswerMax = 4096;  // bytes; an answer without attributes has less than 200

bool is_loopback_v4(uint32_t address) { return ntohl(address) >> 24 == kLoopbackByte; }

bool is_on_loopback(const inet_diag_msg& found) {
  const auto& address = found.id.idiag_src;
  if (found.idiag_family == AF_INET) return is_loopback_v4(address[0]);
  bool has_prefix = address[0] == 0 && address[1] == 0;
  if (has_prefix && ntohl(address[2]) == kMappedWord) return is_loopback_v4(address[3]);
  return has_prefix && address[2] == 0 && ntohl(address[3]) == 1;  // ::1
}

/// The errno of the kernel, 0 if it has found one.
int ask_kernel(uint16_t port, inet_diag_msg& found) {
  FileDescriptor netlink(
      ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG));
  if (netlink.number < 0) return errno;
  struct {
    nlmsghdr header;
    inet_diag_req_v2 what;
  } question{};
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  question.what.sdiag_family = AF_INET;
  question.what.sdiag_protocol = IPPROTO_TCP;
  question.what.idiag_states = ~0u;
  question.what.id.idiag_sport = htons(port);
  question.what.id.idiag_src[0] = htonl(INADDR_LOOPBACK);
  std::fill_n(question.what.id.idiag_cookie, 2, INET_DIAG_NOCOOKIE);
  if (::send(netlink.number, &question, sizeof question, 0) < 0) return errno;
  // The kernel answers before send() returns.
  alignas(nlmsghdr) char answer[kAnswerMax];
  ssize_t got = ::recv(netlink.number, answer, sizeof answer, 0);
  if (got < 0) return errno;
  nlmsghdr header;
  if (static_cast<size_t>(got) < sizeof header) return EPROTO;
  std::memcpy(&header, answer, sizeof header);
  size_t size = static_cast<size_t>(got) - NLMSG_HDRLEN;
  if (header.nlmsg_type == NLMSG_ERROR && size >= sizeof(int)) {
    int code = 0;
    std::memcpy(&code, answer + NLMSG_HDRLEN, sizeof code);
    return code == 0 ? EPROTO : -code;
  }
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || size < sizeof found) return EPROTO;
  std::memcpy(&found, answer + NLMSG_HDRLEN, sizeof found);
  return 0;
}

/// Without the module of the kernel every question has the answer that there is no socket.
bool kernel_answers() {
  FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* name = reinterpret_cast<sockaddr*>(&address);
  inet_diag_msg found{};
  return listener.number >= 0 && ::bind(listener.number, name, size) == 0 &&
         ::listen(listener.number, 1) == 0 && ::getsockname(listener.number, name, &size) == 0 &&
         ask_kernel(ntohs(address.sin_port), found) == 0;
}

enum class Sight : uint8_t { has, has_not, hidden };

Sight look_for(pid_t pid, const std::string& target) {
  std::string folder = fmt::format("/proc/{}/fd", pid);
  DIR* open_files = ::opendir(folder.c_str());
  if (open_files == nullptr)
    return errno == EACCES || errno == EPERM ? Sight::hidden : Sight::has_not;
  bool is_hidden = false, has = false;
  while (dirent* entry = ::readdir(open_files)) {
    char link[64];
    ssize_t size = ::readlinkat(::dirfd(open_files), entry->d_name, link, sizeof link);
    if (size < 0 && errno == EACCES) is_hidden = true;
    has = has || (size > 0 && std::string_view(link, static_cast<size_t>(size)) == target);
  }
  ::closedir(open_files);
  return has ? Sight::has : is_hidden ? Sight::hidden : Sight::has_not;
}

/// Its effective user. /proc names root as the owner of a process that hides its descriptors.
std::optional<uid_t> user_of(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string word; status >> word;) {
    uid_t real = 0, effective = 0;
    if (word == "Uid:" && status >> real >> effective) return effective;
  }
  return std::nullopt;
}

}  // namespace

Result<std::optional<ListeningSocket>> listening_socket(uint16_t port) {
  inet_diag_msg found{};
  int code = ask_kernel(port, found);
  if (code == ENOENT) {
    static const bool is_sure = kernel_answers();
    if (is_sure) return std::optional<ListeningSocket>();
  }
  if (code != 0)
    return environment_error(fmt::format(
        "the kernel does not tell which socket listens at port {}: {}", port, std::strerror(code)));
  constexpr uint8_t kListens = TCP_LISTEN;
  if (found.idiag_state != kListens) return std::optional<ListeningSocket>();
  const auto& cookie = found.id.idiag_cookie;
  return std::optional(ListeningSocket{.cookie = uint64_t{cookie[1]} << 32 | cookie[0],
                                       .inode = found.idiag_inode,
                                       .user = found.idiag_uid,
                                       .is_on_loopback = is_on_loopback(found)});
}

bool is_open_in_descendant(pid_t ancestor, const ListeningSocket& socket) {
  std::string target = fmt::format("socket:[{}]", socket.inode);
  for (pid_t pid : living_descendants(ancestor)) {
    Sight sight = look_for(pid, target);
    if (sight == Sight::has) return true;
    if (sight == Sight::hidden && user_of(pid) == socket.user) return true;
  }
  return false;
}

}  // namespace flow
