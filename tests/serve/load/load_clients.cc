// Clients that load a service, for serving_load.py. Nothing but a right answer counts as answered.
//
// usage: load_clients PORT GRPC_PORT MODEL KIND=COUNT…
//        load_clients --kinds         prints the kinds that this build has
//
//   kept       requests over a connection that is kept open
//   new        a connection for each request
//   pipelined  four requests at once over a connection that is kept open
//   call       calls over gRPC
//   stream     requests of streams over gRPC
//   events     chunked responses of the path MODEL, whose chunks are answers
//
// Input: a line `wait SECONDS` is answered with `ok` after this time, once each client has a
// further answer. At the end of the input it prints its figures as JSON, and ends. A refused
// connection, and pipelined requests after an answer with `Connection: close`, are sent again and
// are no failures.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <iostream>
#include <map>
#include <string>

#include "blocking_client.hpp"
#include "flow/value.hpp"
#include "loading_client.hpp"

namespace flow::load {
namespace {

constexpr int kPipelined = 4;

std::string request_of(const std::string& model, int number, const char* fields = "") {
  std::string body = fmt::format(
      R"({{"inputs":[{{"name":"x","shape":[1,1],"datatype":"FP32","data":[{}]}}]}})", number);
  return fmt::format(
      "POST /v2/models/{}/infer HTTP/1.1\r\nHost: localhost\r\n{}"
      "Content-Length: {}\r\n\r\n{}",
      model, fields, body.size(), body);
}

/// The first number of the response.
double value_of(const std::string& body) {
  size_t at = body.find("\"data\":[");
  return at == std::string::npos ? 0 : std::strtod(body.c_str() + at + 8, nullptr);
}

class HttpLoad : public LoadingClient {
 public:
  using LoadingClient::LoadingClient;

 protected:
  bool connect() {
    int code = client_.connect(target().port);
    if (code == 0) return true;
    if (code == ECONNREFUSED)
      refuse();
    else
      fail(std::string("connect: ") + std::strerror(code));
    return false;
  }
  bool read(Answer& answer, int64_t began_us, int number) {
    std::string error = client_.read(answer);
    if (error.empty() && answer.status != 200)
      error = fmt::format("status {}: {}", answer.status, answer.body);
    if (!error.empty()) {
      fail(error);
      return false;
    }
    succeed(began_us, value_of(answer.body) / number);
    return true;
  }
  bool send(const std::string& text) {
    std::string error = client_.send(text);
    if (!error.empty()) fail(error);
    return error.empty();
  }
  BlockingClient& client() { return client_; }

 private:
  BlockingClient client_;
};

class KeptLoad final : public HttpLoad {
 public:
  using HttpLoad::HttpLoad;

 protected:
  void use_connection() override {
    if (!connect()) return;
    for (Answer answer; !answer.closes && !is_stopped();) {
      int number = next_number();
      int64_t began = now_us();
      if (!send(request_of(target().model, number)) || !read(answer, began, number)) return;
    }
  }
};

class NewLoad final : public HttpLoad {
 public:
  using HttpLoad::HttpLoad;

 protected:
  void use_connection() override {
    int64_t began = now_us();
    if (!connect()) return;
    int number = next_number();
    Answer answer;
    if (send(request_of(target().model, number, "Connection: close\r\n")))
      read(answer, began, number);
  }
};

class PipelinedLoad final : public HttpLoad {
 public:
  using HttpLoad::HttpLoad;

 protected:
  void use_connection() override {
    if (!connect()) return;
    for (Answer answer; !answer.closes && !is_stopped();) {
      std::string text;
      int numbers[kPipelined];
      for (int& number : numbers) text += request_of(target().model, number = next_number());
      int64_t began = now_us();
      if (!send(text)) return;
      for (int i = 0; i < kPipelined && !answer.closes; i++)
        if (!read(answer, began, numbers[i])) return;
    }
  }
};

/// Each chunk is an answer, and a response without its end marker a failure.
class EventsLoad final : public HttpLoad {
 public:
  using HttpLoad::HttpLoad;

 protected:
  void use_connection() override {
    int64_t began = now_us();
    if (!connect()) return;
    if (!send("GET " + target().model + " HTTP/1.1\r\nHost: localhost\r\n\r\n")) return;
    std::string head, error = client().read_until("\r\n\r\n", head);
    if (error.empty() && !head.starts_with("HTTP/1.1 200")) error = head;
    if (error.empty())
      error = client().read_chunks([&](std::string_view) {
        succeed(began, 1);
        began = now_us();
      });
    if (!error.empty()) fail(error);
  }
};

#ifdef FLOW_LOAD_GRPC
constexpr const char* kKinds = "kept new pipelined events call stream";
#else
constexpr const char* kKinds = "kept new pipelined events";
#endif

std::unique_ptr<LoadingClient> client_of(const std::string& kind, const Target& target) {
  if (kind == "kept") return std::make_unique<KeptLoad>(kind, target);
  if (kind == "new") return std::make_unique<NewLoad>(kind, target);
  if (kind == "pipelined") return std::make_unique<PipelinedLoad>(kind, target);
  if (kind == "events") return std::make_unique<EventsLoad>(kind, target);
#ifdef FLOW_LOAD_GRPC
  return grpc_client(kind, target);
#else
  return nullptr;
#endif
}

using Clients = std::vector<std::unique_ptr<LoadingClient>>;

void wait(const Clients& clients, double seconds) {
  std::vector<size_t> before;
  for (const auto& each : clients) before.push_back(each->answered());
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  for (size_t i = 0; i < clients.size(); i++)
    while (clients[i]->answered() == before[i])
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

double percentile_ms(const std::vector<int64_t>& sorted_us, double share) {
  if (sorted_us.empty()) return 0;
  auto at = static_cast<size_t>(share * static_cast<double>(sorted_us.size()));
  return static_cast<double>(sorted_us[std::min(at, sorted_us.size() - 1)]) / 1000;
}

/// The longest time without an answer to any of the clients.
double longest_gap_ms(std::vector<int64_t> ends_us) {
  std::sort(ends_us.begin(), ends_us.end());
  int64_t longest = 0;
  for (size_t i = 1; i < ends_us.size(); i++)
    longest = std::max(longest, ends_us[i] - ends_us[i - 1]);
  return static_cast<double>(longest) / 1000;
}

std::string figures_of(const std::vector<const LoadingClient*>& clients) {
  std::vector<int64_t> ends, times;
  std::set<double> factors;
  std::vector<std::string> failures;
  size_t failed = 0, refused = 0;
  for (const LoadingClient* each : clients) {
    for (const Sample& sample : each->samples()) {
      ends.push_back(sample.ended_us);
      times.push_back(sample.took_us);
    }
    factors.insert(each->factors().begin(), each->factors().end());
    for (const std::string& failure : each->failures())
      failures.push_back(to_json(Value(each->kind() + ": " + failure)));
    failed += each->failed();
    refused += each->refused();
  }
  std::sort(times.begin(), times.end());
  return fmt::format(
      R"({{"clients":{},"answered":{},"failed":{},"refused":{},"gap_ms":{:.1f},"p50_ms":{:.2f},)"
      R"("p99_ms":{:.2f},"longest_ms":{:.1f},"factors":[{}],"failures":[{}]}})",
      clients.size(), times.size(), failed, refused, longest_gap_ms(std::move(ends)),
      percentile_ms(times, 0.5), percentile_ms(times, 0.99), percentile_ms(times, 1),
      fmt::join(factors, ","), fmt::join(failures, ","));
}

void report(const Clients& clients) {
  std::map<std::string, std::vector<const LoadingClient*>> kinds;
  for (const auto& each : clients) {
    kinds[each->kind()].push_back(each.get());
    kinds["all"].push_back(each.get());
  }
  std::vector<std::string> lines;
  for (const auto& [kind, of] : kinds)
    lines.push_back(fmt::format("\"{}\":{}", kind, figures_of(of)));
  fmt::print("{{{}}}\n", fmt::join(lines, ","));
}

int run(int argc, char** argv) {
  Target target{std::atoi(argv[1]), std::atoi(argv[2]), argv[3]};
  Clients clients;
  for (int i = 4; i < argc; i++) {
    std::string word = argv[i], kind = word.substr(0, word.find('='));
    for (int count = std::atoi(word.c_str() + kind.size() + 1); count > 0; count--) {
      auto client = client_of(kind, target);
      if (client == nullptr) {
        fmt::print(stderr, "there are no clients of the kind `{}` here\n", kind);
        return 2;
      }
      clients.push_back(std::move(client));
    }
  }
  for (const auto& each : clients) each->start();
  for (std::string line; std::getline(std::cin, line);) {
    if (line.starts_with("wait ")) wait(clients, std::strtod(line.c_str() + 5, nullptr));
    size_t refused = 0;
    for (const auto& each : clients) refused += each->refused();
    fmt::print("{}\n", refused);
    std::fflush(stdout);
  }
  for (const auto& each : clients) each->stop();
  for (const auto& each : clients) each->join();
  report(clients);
  return 0;
}

}  // namespace
}  // namespace flow::load

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--kinds") {
    std::puts(flow::load::kKinds);
    return 0;
  }
  if (argc < 5) {
    std::fputs("usage: load_clients PORT GRPC_PORT MODEL KIND=COUNT...\n", stderr);
    return 2;
  }
  return flow::load::run(argc, argv);
}
