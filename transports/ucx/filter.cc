#include "transports/ucx/filter.hpp"

#include <fmt/format.h>
#include <linux/filter.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

namespace flow::ucx {

namespace {

constexpr uint32_t kAll = 0xffffffff, kNothing = 0;  // bytes of a packet that a filter accepts
constexpr uint32_t kTcpFlags = 13;                   // offset in the TCP header
constexpr uint32_t kSyn = 0x02, kAck = 0x10;
constexpr uint32_t kSource4 = 12, kSource6 = 8;  // offset in the IP headers
constexpr size_t kV4At = 12;                     // offset in an Ip

/// A program of the kernel's packet filter (classic BPF), which sees a packet from its TCP header
/// on.
class BpfProgram {
 public:
  void load_byte(uint32_t at) { add(BPF_LD | BPF_B | BPF_ABS, at); }
  void load_word(uint32_t at) { add(BPF_LD | BPF_W | BPF_ABS, at); }
  void op(uint16_t what, uint32_t value) { add(static_cast<uint16_t>(BPF_ALU | what), value); }
  void permit(uint32_t bytes) { add(BPF_RET | BPF_K, bytes); }
  /// Skips the next `skip` instructions if the loaded value is `value`.
  void unless(uint32_t value, uint8_t skip) { add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip); }
  void skip_if(uint32_t value, uint8_t skip) { add(BPF_JMP | BPF_JEQ | BPF_K, value, skip, 0); }
  void jump(uint32_t skip) { add(BPF_JMP | BPF_JA, skip); }
  std::vector<sock_filter> take() { return std::move(code_); }

 private:
  void add(int code, uint32_t value, uint8_t yes = 0, uint8_t no = 0) {
    code_.push_back({static_cast<uint16_t>(code), yes, no, value});
  }
  std::vector<sock_filter> code_;
};

uint32_t word_of(const Ip& ip, size_t at) {
  return uint32_t{ip[at]} << 24 | uint32_t{ip[at + 1]} << 16 | uint32_t{ip[at + 2]} << 8 |
         ip[at + 3];
}

uint32_t in_ip(uint32_t at) { return static_cast<uint32_t>(SKF_NET_OFF) + at; }

void permit_v4(BpfProgram& program, const std::vector<Ip>& ips) {
  program.load_word(in_ip(kSource4));
  for (const Ip& ip : ips) {
    if (!is_v4(ip)) continue;
    program.unless(word_of(ip, kV4At), 1);
    program.permit(kAll);
  }
  program.permit(kNothing);
}

void permit_v6(BpfProgram& program, const std::vector<Ip>& ips) {
  constexpr uint32_t kWord = sizeof(uint32_t);
  constexpr uint32_t kWords = sizeof(Ip) / kWord;
  for (const Ip& ip : ips) {
    if (is_v4(ip)) continue;
    for (uint32_t i = 0; i < kWords; i++) {
      program.load_word(in_ip(kSource6 + i * kWord));
      program.unless(word_of(ip, i * kWord), static_cast<uint8_t>(2 * (kWords - i) - 1));
    }
    program.permit(kAll);
  }
  program.permit(kNothing);
}

/// Accepts connection requests from `ips` only, and all other packets.
std::vector<sock_filter> program_of(const std::vector<Ip>& ips) {
  constexpr uint32_t kVersion4 = 4;
  BpfProgram four, whole;
  permit_v4(four, ips);
  std::vector<sock_filter> of_four = four.take();
  whole.load_byte(kTcpFlags);
  whole.op(BPF_AND, kSyn | kAck);
  whole.skip_if(kSyn, 1);
  whole.permit(kAll);
  whole.load_byte(in_ip(0));
  whole.op(BPF_RSH, 4);
  whole.skip_if(kVersion4, 1);
  whole.jump(static_cast<uint32_t>(of_four.size()));
  std::vector<sock_filter> code = whole.take();
  code.insert(code.end(), of_four.begin(), of_four.end());
  BpfProgram six;
  permit_v6(six, ips);
  std::vector<sock_filter> of_six = six.take();
  code.insert(code.end(), of_six.begin(), of_six.end());
  return code;
}

Status attach(int socket, std::vector<sock_filter> code) {
  sock_fprog program{static_cast<uint16_t>(code.size()), code.data()};
  if (::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0) return {};
  return environment_error(fmt::format(
      "cannot restrict the peers of a UCX socket (SO_ATTACH_FILTER): {}", std::strerror(errno)));
}

}  // namespace

Status accept_only_from(int socket, const std::vector<Ip>& ips) {
  FLOW_CHECK(ips.size() <= kFilterIpsMax);
  return attach(socket, program_of(ips));
}

Status block_connections(int socket) {
  BpfProgram program;
  program.permit(kNothing);
  return attach(socket, program.take());
}

Status SocketFilter::watch(const std::vector<int>& sockets, std::string_view worker_address) {
  for (int socket : sockets) {
    uint16_t port = own_end(socket).port();
    const char bytes[] = {static_cast<char>(port >> 8), static_cast<char>(port & 0xff)};
    bool is_in = worker_address.find(std::string_view(bytes, sizeof bytes)) != std::string::npos;
    if (is_in) sockets_.push_back(socket);
  }
  return apply();
}

Status SocketFilter::allow(const std::vector<Ip>& ips) {
  for (const Ip& ip : ips) {
    std::erase(ips_, ip);
    ips_.push_back(ip);
  }
  while (ips_.size() > kFilterIpsMax) ips_.pop_front();
  Status applied = apply();
  while (!applied.ok() && ips_.size() > ips.size()) {  // net.core.optmem_max is small
    size_t others = ips_.size() - ips.size();
    ips_.erase(ips_.begin(), ips_.begin() + static_cast<std::ptrdiff_t>((others + 1) / 2));
    applied = apply();
  }
  return applied;
}

Status SocketFilter::apply() const {
  for (int socket : sockets_) FLOW_TRY(accept_only_from(socket, {ips_.begin(), ips_.end()}));
  return {};
}

}  // namespace flow::ucx
