// Floors for transports and transfers: ucx_perftest if installed (FLOW_UCX_PERFTEST names another;
// over TCP, as links within a machine are, unless UCX_TLS says otherwise), and SHA-256.
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "flow/digest.hpp"
#include "tests/bench/bench.hpp"

namespace flow::bench {

// Of perftest's figures.
constexpr size_t kOverallUs = 3, kOverallMib = 5;
constexpr double kMib = 1.048576;

/// Runs a command to its end and returns its output.
inline std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = ::popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return text;
  char buffer[4096];
  while (size_t got = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, got);
  ::pclose(pipe);
  return text;
}

inline uint16_t free_port() {
  int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof own;
  ::bind(socket, reinterpret_cast<sockaddr*>(&own), size);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size);
  ::close(socket);
  return ntohs(own.sin_port);
}

/// The last line of ucx_perftest: a count, three times in us (the last one overall), and two rates
/// in MiB/s (the last one overall). Empty if the program is not installed.
inline std::vector<double> perftest(const std::string& test, size_t bytes, int rounds) {
  const char* named = ::getenv("FLOW_UCX_PERFTEST");
  std::string program = named != nullptr ? named : "ucx_perftest";
  if (output_of("command -v " + program).empty()) return {};
  const char* transports = ::getenv("UCX_TLS");
  std::string settings = fmt::format("UCX_NET_DEVICES=lo UCX_TLS={} UCX_LOG_LEVEL=fatal ",
                                     transports != nullptr ? transports : "tcp,self");
  uint16_t port = free_port();
  std::string common = fmt::format("{} -p {} -e -t {} -s {} -n {} -w {} -f", program, port, test,
                                   bytes, rounds, rounds / 10);
  std::thread server([&] { output_of(settings + common); });
  std::string text;
  for (int tries = 0; tries < 20 && text.find_first_of("0123456789") == std::string::npos;
       tries++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    text = output_of(settings + common + " 127.0.0.1");
  }
  server.join();
  std::vector<double> figures;
  size_t line = text.find_last_not_of(" \n");
  line = line == std::string::npos ? 0 : text.rfind('\n', line);
  std::istringstream words(text.substr(line == std::string::npos ? 0 : line));
  for (double figure; words >> figure;) figures.push_back(figure);
  return figures;
}

/// Bytes per second.
inline double digest_rate(size_t size) {
  std::string bytes(size, 'x');
  int rounds = 200;
  double began = seconds();
  for (int i = 0; i < rounds; i++) bytes[0] = sha256(bytes).hex()[0];
  return static_cast<double>(size) * rounds / (seconds() - began);
}

}  // namespace flow::bench
