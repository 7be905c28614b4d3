// Links over UCX compared with UCX's own measurement on the same transport in the same run, by
// ucx_perftest if installed (FLOW_UCX_PERFTEST names another), else with a plain TCP socket; and
// with SHA-256 of the same bytes. The peers are separate processes. Usage: bench_transport [rounds]
// (default 20000)
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <future>
#include <sstream>
#include <thread>
#include <vector>

#include "engine/base/address.hpp"
#include "flow/digest.hpp"
#include "flow/transport.hpp"
#include "tests/bench/bench.hpp"
#include "tests/bench/floors.hpp"
#include "transports/ucx/ucx.hpp"

using namespace flow;
using namespace flow::bench;

extern "C" char** environ;

namespace {

constexpr size_t kFrameBytes = 64;
constexpr size_t kPutBytes = size_t{1} << 20;
constexpr int kPutsAtOnce = 4, kPuts = 2'000, kRepeats = 5;

/// µs of a round trip over a plain socket between two threads.
double socket_round_us(int rounds) {
  int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof own;
  ::bind(listener, reinterpret_cast<sockaddr*>(&own), size);
  ::listen(listener, 1);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&own), &size);
  int near = ::socket(AF_INET, SOCK_STREAM, 0), one = 1;
  if (::connect(near, reinterpret_cast<sockaddr*>(&own), size) != 0) return 0;
  int far = ::accept(listener, nullptr, nullptr);
  for (int socket : {near, far}) ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  char bytes[kFrameBytes] = {};
  auto pass = [&bytes](int from, int to, bool reads_first) {
    char buffer[kFrameBytes];
    if (reads_first && ::recv(from, buffer, sizeof buffer, MSG_WAITALL) <= 0) return false;
    return ::send(to, reads_first ? buffer : bytes, sizeof bytes, MSG_NOSIGNAL) > 0;
  };
  std::thread echo([&] {
    for (int i = 0; i < rounds; i++) pass(far, far, true);
  });
  double began = seconds();
  char buffer[kFrameBytes];
  for (int i = 0; i < rounds; i++) {
    pass(near, near, false);
    if (::recv(near, buffer, sizeof buffer, MSG_WAITALL) <= 0) break;
  }
  double took = seconds() - began;
  echo.join();
  for (int socket : {listener, near, far}) ::close(socket);
  return took / rounds * 1e6;
}

/// The other process: expects puts of every tag that a frame "expect N" names, echoes other frames.
class Far final : public LinkHandler {
 public:
  Far() : memory_(kPutBytes * kPutsAtOnce, '.') {}
  void on_frame(std::string_view frame) override {
    if (!frame.starts_with("expect ")) return link.load()->send(std::string(frame));
    for (int slot = 0; slot < kPutsAtOnce; slot++) expect(static_cast<uint64_t>(slot));
    link.load()->send("ready");
  }
  void on_down(const Error&) override { ::_exit(0); }
  std::atomic<Link*> link{nullptr};

 private:
  void expect(uint64_t slot) {
    Region to{memory_.data() + slot * kPutBytes, kPutBytes, false};
    link.load()->post_receive(slot, to, [this, slot](Result<size_t> came) {
      if (came.ok()) expect(slot);
    });
  }
  std::string memory_;
};

int be_far(const std::string& address) {
  auto transport = make_ucx_transport({}, true);
  if (!transport.ok()) return 4;
  auto handler = std::make_shared<Far>();
  auto link = (*transport)->connect(address, handler);
  if (!link.ok()) return 4;
  handler->link = link->get();
  for (;;) ::pause();
}

class Near final : public LinkHandler {
 public:
  void on_up() override { up.set_value(); }
  void on_frame(std::string_view frame) override {
    if (rounds_left > 0 && --rounds_left > 0) return link->send(std::string(frame));
    done->set_value();
  }
  void on_down(const Error& why) override { fmt::print(stderr, "down: {}\n", why.message); }
  std::promise<void> up;
  std::promise<void>* done = nullptr;
  int rounds_left = 0;
  std::shared_ptr<Link> link;
};

double round_us(Near& near, int rounds) {
  std::promise<void> done;
  near.done = &done;
  near.rounds_left = rounds;
  double began = seconds();
  near.link->send(std::string(kFrameBytes, 'x'));
  done.get_future().wait();
  return (seconds() - began) / rounds * 1e6;
}

/// Bytes per second.
double put_rate(Near& near) {
  std::promise<void> ready, finished;
  near.done = &ready;
  near.rounds_left = 0;
  near.link->send("expect puts");
  ready.get_future().wait();
  std::string bytes(kPutBytes * kPutsAtOnce, 'x');
  std::atomic<int> started{0}, left{kPuts};
  std::function<void(uint64_t)> put = [&](uint64_t slot) {
    if (started++ >= kPuts) return;
    Region from{bytes.data() + slot * kPutBytes, kPutBytes, false};
    near.link->put(slot, from, [&, slot](Status status) {
      if (!status.ok()) fmt::print(stderr, "put: {}\n", status.error().message);
      if (--left == 0) return finished.set_value();
      put(slot);
    });
  };
  double began = seconds();
  for (uint64_t slot = 0; slot < kPutsAtOnce; slot++) put(slot);
  finished.get_future().wait();
  return static_cast<double>(kPutBytes) * kPuts / (seconds() - began);
}

/// The best of several rounds of each, in turns, because other work on the machine slows both.
struct Best {
  double round = 1e9, perftest_round = 1e9, socket_round = 1e9;
  double put = 0, perftest_put = 0, digest = 0;

  void take(Near& near, int rounds) {
    round = std::min(round, round_us(near, rounds));
    put = std::max(put, put_rate(near) / 1e6);
    digest = std::max(digest, digest_rate(kPutBytes) / 1e6);
    socket_round = std::min(socket_round, socket_round_us(rounds));
    auto latency = perftest("ucp_am_lat", kFrameBytes, rounds);
    auto bandwidth = perftest("ucp_am_bw", kPutBytes, kPuts);
    if (latency.size() > kOverallMib)
      perftest_round = std::min(perftest_round, 2 * latency[kOverallUs]);
    if (bandwidth.size() > kOverallMib)
      perftest_put = std::max(perftest_put, bandwidth[kOverallMib] * kMib);
  }
  void print() const {
    bool has_perftest = perftest_put > 0;
    if (has_perftest) figure("round_trip_us", round, "ucx_perftest", perftest_round);
    figure("round_trip_us", round, "tcp_socket", socket_round);
    if (has_perftest) figure("put_mb_s", put, "ucx_perftest", perftest_put);
    figure("put_mb_s", put, "sha256", digest);
    if (!has_perftest) fmt::print("# ucx_perftest is not installed (ucx-utils)\n");
  }
};

int measure(const std::string& program, UcxPuts way, int rounds) {
  auto transport = make_ucx_transport({}, true, way);
  if (!transport.ok()) {
    fmt::print(stderr, "skipped: {}\n", transport.error().message);
    return 0;
  }
  auto near = std::make_shared<Near>();
  auto listener = (*transport)->listen("127.0.0.1:0", [&](std::shared_ptr<Link> link) {
    near->link = std::move(link);
    return near;
  });
  if (!listener.ok()) return 1;
  std::string self = program, mark = "--far", place = (*listener)->address();
  char* argv[] = {self.data(), mark.data(), place.data(), nullptr};
  pid_t pid = 0;
  if (::posix_spawn(&pid, self.c_str(), nullptr, nullptr, argv, environ) != 0) return 1;
  near->up.get_future().wait();
  fmt::print("# {}\n", near->link->description());
  Best best;
  for (int repeat = 0; repeat < kRepeats; repeat++) best.take(*near, rounds);
  best.print();
  near->link->close(0);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  near->link.reset();
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 3 && std::string(arguments[1]) == "--far") return be_far(arguments[2]);
  int rounds = count > 1 ? std::max(1, std::atoi(arguments[1])) : 20'000;
  return measure(arguments[0], UcxPuts::messages, rounds);
}
