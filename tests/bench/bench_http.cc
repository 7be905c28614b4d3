// The HTTP server of services, and a whole front, beside a bare server of Boost.Beast's: requests
// of one kind over 1 to 1,000 connections, all answered with the same constant, in turns. The front
// decodes each request, has a replica in this process answer it at once, and encodes the outputs;
// the other two look at no body. The memory of a connection is printed first. A ratio above 1 is
// faster than Beast.
//
// usage: bench_http [ROUNDS [SECONDS]]     (5 rounds of 1 s)
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <memory>
#include <optional>
#include <thread>

#include "engine/front/front.hpp"
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

/// Answers each batch of requests with one number a request.
class ConstantReplica final : public FrontReplica {
 public:
  ConstantReplica(EventLoop& loop, Front& front) : loop_(loop), front_(front) {
    output_.shape = {1};
    output_.data = std::make_shared<const std::string>(std::string("\0\0\0\x41", sizeof(float)));
  }
  void joined(const std::string& url) override {
    port_ = static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
  }
  void start(uint64_t batch, const std::vector<const Tensors*>&,
             const std::vector<BatchedRequest>&) override {
    loop_.post([this, batch] { front_.finish(*this, batch, Tensors{{"y", output_}}, {}); });
  }
  void release() override {}
  void log(const std::string&) override {}
  uint16_t port() const { return port_; }

 private:
  EventLoop& loop_;
  Front& front_;
  Tensor output_;
  uint16_t port_ = 0;
};

class FrontServer {
 public:
  FrontServer() {
    auto front = Front::start(loop_, {});
    FLOW_CHECK(front.ok());
    front_ = std::move(*front);
    replica_.emplace(loop_, *front_);
    loop_.run([&] {
      ServiceOptions options;
      options.name = "constant";
      FLOW_CHECK(front_->join(*replica_, {"r1", {"constant", 1, ""}, options}).ok());
    });
  }
  ~FrontServer() {
    loop_.run([&] { front_->remove(*replica_); });
    loop_.stop();
  }
  uint16_t port() const { return replica_->port(); }

 private:
  EventLoop loop_{"flow-http", {}};
  std::optional<ConstantReplica> replica_;
  std::unique_ptr<Front> front_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// One of the servers, and what its rounds have shown.
struct Contestant {
  Contestant(uint16_t port, size_t connections, const std::string& request)
      : load(port, connections, request) {}
  void run(double duration_s) {
    Load round = load.run(duration_s);
    rate.push_back(round.per_second);
    p99.push_back(round.p99_us);
    failed = round.failed;  // of all rounds
  }

  LoadClient load;
  std::vector<double> rate = {}, p99 = {};
  size_t failed = 0;
};

void compare(size_t connections, int rounds, double round_s) {
  BeastServer floor_server;
  auto http_server = own_server();
  FrontServer front_server;
  const std::string body = R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[7]}]})";
  Contestant own(http_server->port(), connections, post_request("/infer", body));
  Contestant front(front_server.port(), connections,
                   post_request("/v2/models/constant/infer", body));
  Contestant floor(floor_server.port(), connections, post_request("/infer", body));
  for (int round = 0; round < rounds; round++)
    for (Contestant* each : {&own, &floor, &front}) each->run(round_s);
  auto compare_with_floor = [&](const char* name, const Contestant& of) {
    figure(fmt::format("{}_requests_per_s_{}", name, connections), median(of.rate), "beast",
           median(floor.rate));
    figure(fmt::format("{}_p99_us_{}", name, connections), median(of.p99), "beast",
           median(floor.p99));
  };
  compare_with_floor("http", own);
  compare_with_floor("front", front);
  if (size_t failed = own.failed + front.failed + floor.failed; failed > 0)
    fmt::print("http_failed_{} {}\n", connections, failed);
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

int main(int argc, char** argv) {
  int rounds = argc > 1 ? std::stoi(argv[1]) : 5;
  double round_s = argc > 2 ? std::stod(argv[2]) : 1;
  flow::bench::idle_connections();  // first: memory that others have freed would be used again
  for (size_t connections : flow::bench::kConnections)
    flow::bench::compare(connections, rounds, round_s);
}
