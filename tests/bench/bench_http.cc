// The HTTP server of services beside a bare server of Boost.Beast's: requests of one kind over 1 to
// 1,000 connections, both answered with the same constant, in turns. The memory of a
// connection is printed first. A ratio above 1 is faster than Beast.
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <memory>
#include <thread>

#include "engine/serve/http/http_server.hpp"
#include "tests/bench/http_load.hpp"

namespace flow::bench {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;

constexpr size_t kConnections[] = {1, 8, 64, 1000};
constexpr size_t kIdleConnections = 9'000;  // each has two sockets in this process
constexpr int kRounds = 5;
constexpr double kRoundSeconds = 1;
const char* const kAnswer =
    R"({"outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":[8]}]})";

/// One connection of the floor: Beast's own example of an asynchronous server, without TLS.
class BeastSession : public std::enable_shared_from_this<BeastSession> {
 public:
  explicit BeastSession(Tcp::socket socket) : stream_(std::move(socket)) {}
  void read() {
    request_ = {};
    http::async_read(stream_, buffer_, request_,
                     [self = shared_from_this()](beast::error_code error, size_t) {
                       if (!error) self->answer();
                     });
  }

 private:
  void answer() {
    response_ = {http::status::ok, request_.version()};
    response_.set(http::field::content_type, "application/json");
    response_.keep_alive(request_.keep_alive());
    response_.body() = kAnswer;
    response_.prepare_payload();
    http::async_write(stream_, response_,
                      [self = shared_from_this()](beast::error_code error, size_t) {
                        if (!error) self->read();
                      });
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  http::request<http::string_body> request_;
  http::response<http::string_body> response_;
};

class BeastServer {
 public:
  BeastServer() : acceptor_(context_, {asio::ip::address_v4::loopback(), 0}) {
    accept();
    thread_ = std::thread([this] { context_.run(); });
  }
  ~BeastServer() {
    context_.stop();
    thread_.join();
  }
  uint16_t port() { return acceptor_.local_endpoint().port(); }

 private:
  void accept() {
    acceptor_.async_accept([this](beast::error_code error, Tcp::socket socket) {
      if (error) return;
      socket.set_option(Tcp::no_delay(true));
      std::make_shared<BeastSession>(std::move(socket))->read();
      accept();
    });
  }
  asio::io_context context_{1};
  Tcp::acceptor acceptor_;
  std::thread thread_;
};

std::string_view methods_of(std::string_view path) { return path == "/infer" ? "POST" : ""; }

std::unique_ptr<HttpServer> own_server() {
  auto server = HttpServer::open(
      {.name = "bench", .rules = {.methods = methods_of}, .limits = {.connections_max = 20'000}},
      [](HttpRequest, HttpReply reply) { reply.send({.body = kAnswer}); });
  FLOW_CHECK(server.ok());
  return std::move(*server);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(size_t connections) {
  BeastServer floor;
  auto own = own_server();
  std::string body = R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[7]}]})";
  LoadClient own_load(own->port(), connections, post_request("/infer", body));
  LoadClient floor_load(floor.port(), connections, post_request("/infer", body));
  std::vector<double> own_rate, floor_rate, own_p99, floor_p99;
  size_t failed = 0;
  for (int round = 0; round < kRounds; round++) {
    Load a = own_load.run(kRoundSeconds), b = floor_load.run(kRoundSeconds);
    own_rate.push_back(a.per_second), floor_rate.push_back(b.per_second);
    own_p99.push_back(a.p99_us), floor_p99.push_back(b.p99_us);
    failed = a.failed + b.failed;
  }
  figure(fmt::format("http_requests_per_s_{}", connections), median(own_rate), "beast",
         median(floor_rate));
  figure(fmt::format("http_p99_us_{}", connections), median(own_p99), "beast", median(floor_p99));
  if (failed > 0) fmt::print("http_failed_{} {}\n", connections, failed);
}

size_t resident_kib() {
  size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * 4;
}

void idle_connections() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  auto own = own_server();
  size_t before = resident_kib();
  LoadClient load(own->port(), kIdleConnections, post_request("/infer", "{}"));
  Load once = load.run(0);
  fmt::print("http_kib_per_connection {:.1f} failed {}\n",
             static_cast<double>(resident_kib() - before) / kIdleConnections, once.failed);
}

}  // namespace
}  // namespace flow::bench

int main() {
  flow::bench::idle_connections();  // first: memory that others have freed would be used again
  for (size_t connections : flow::bench::kConnections) flow::bench::compare(connections);
}
