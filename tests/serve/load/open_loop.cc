// Requests at a fixed rate, whether or not earlier ones are answered, for serving_overload.py. A
// request that finds no free connection opens one.
//
// usage: open_loop PORT PATH BODY_FILE RATE SECONDS
//
// Prints JSON: for each status the number of responses and percentiles of their times, which begin
// when the rate has the request due; how many responses with 429 or 503 had no Retry-After; how
// many connections ended without a response; and by how much the client itself was late at most.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <vector>

#include "blocking_client.hpp"

namespace flow::load {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLastResponses = std::chrono::seconds(60);

double ms_of(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

struct Connection {
  int socket = -1;
  std::string in;
  Clock::time_point due;
  bool is_waiting = false;
};

class OpenLoop {
 public:
  OpenLoop(int port, std::string request) : port_(port), request_(std::move(request)) {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  }

  void run(double rate, double seconds) {
    const auto count = static_cast<size_t>(rate * seconds);
    const auto began = Clock::now();
    auto due_of = [&](size_t number) {
      return began + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(static_cast<double>(number) / rate));
    };
    for (size_t sent = 0; sent < count;) {
      auto now = Clock::now();
      for (; sent < count && due_of(sent) <= now; sent++) {
        late_ = std::max(late_, now - due_of(sent));
        start(due_of(sent));
      }
      receive(sent < count ? due_of(sent) : now);
    }
    auto end = Clock::now() + kLastResponses;
    while (waiting_ > 0 && Clock::now() < end) receive(end);
    offered_ = count;
  }

  void report() {
    std::vector<std::string> statuses;
    for (auto& [status, times] : times_) {
      std::sort(times.begin(), times.end());
      statuses.push_back(fmt::format(
          R"("{}":{{"count":{},"p50_ms":{:.2f},"p99_ms":{:.2f},"longest_ms":{:.2f}}})", status,
          times.size(), times[times.size() / 2], times[times.size() * 99 / 100], times.back()));
    }
    fmt::print(
        R"({{"offered":{},"statuses":{{{}}},"without_retry_after":{},"ended":{},"unanswered":{},)"
        R"("connections":{},"late_ms":{:.1f}}})"
        "\n",
        offered_, fmt::join(statuses, ","), without_retry_after_, ended_, waiting_,
        connections_.size(), ms_of(late_));
  }

 private:
  void start(Clock::time_point due) {
    Connection* connection = free_connection();
    if (connection == nullptr) return;
    connection->due = due;
    connection->is_waiting = true;
    waiting_++;
    ssize_t sent = ::send(connection->socket, request_.data(), request_.size(), MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(request_.size())) end(*connection);
  }

  Connection* free_connection() {
    if (!free_.empty()) {
      Connection* connection = free_.back();
      free_.pop_back();
      return connection;
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto made = std::make_unique<Connection>();
    made->socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(made->socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      ended_++;
      ::close(made->socket);
      return nullptr;
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = made.get();
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, made->socket, &event);
    connections_.push_back(std::move(made));
    return connections_.back().get();
  }

  /// What arrives until then, or the first of it.
  void receive(Clock::time_point until) {
    epoll_event events[64];
    auto left = std::chrono::floor<std::chrono::milliseconds>(until - Clock::now()).count();
    int count = ::epoll_wait(epoll_, events, 64, static_cast<int>(std::max<int64_t>(left, 0)));
    for (int i = 0; i < count; i++) read(*static_cast<Connection*>(events[i].data.ptr));
  }

  void read(Connection& connection) {
    char chunk[16 * 1024];
    ssize_t got = ::recv(connection.socket, chunk, sizeof chunk, 0);
    if (got <= 0) return end(connection);
    connection.in.append(chunk, static_cast<size_t>(got));
    size_t head_end = connection.in.find("\r\n\r\n");
    if (head_end == std::string::npos) return;
    std::string_view head = std::string_view(connection.in).substr(0, head_end + 2);
    std::string length, field;
    find_field(head, "content-length:", length);
    if (connection.in.size() < head_end + 4 + std::strtoul(length.c_str(), nullptr, 10)) return;
    int status = std::atoi(connection.in.c_str() + 9);
    bool is_refusal = status == 429 || status == 503;
    if (is_refusal && !find_field(head, "retry-after:", field)) without_retry_after_++;
    bool closes = find_field(head, "connection:", field) && field == "close";
    times_[status].push_back(ms_of(Clock::now() - connection.due));
    connection.in.clear();
    connection.is_waiting = false;
    waiting_--;
    if (closes) return end(connection);
    free_.push_back(&connection);
  }

  void end(Connection& connection) {
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, connection.socket, nullptr);
    ::close(connection.socket);
    std::erase(free_, &connection);
    if (!std::exchange(connection.is_waiting, false)) return;
    waiting_--;
    ended_++;
  }

  const int port_;
  const std::string request_;
  int epoll_ = -1;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> free_;
  std::map<int, std::vector<double>> times_;  // by status
  size_t offered_ = 0, waiting_ = 0, ended_ = 0, without_retry_after_ = 0;
  Clock::duration late_{};
};

}  // namespace
}  // namespace flow::load

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs("usage: open_loop PORT PATH BODY_FILE RATE SECONDS\n", stderr);
    return 2;
  }
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  std::ifstream file(argv[3], std::ios::binary);
  std::string body{std::istreambuf_iterator<char>(file), {}};
  flow::load::OpenLoop loop(
      std::atoi(argv[1]),
      fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", argv[2],
                  body.size(), body));
  loop.run(std::strtod(argv[4], nullptr), std::strtod(argv[5], nullptr));
  loop.report();
}
