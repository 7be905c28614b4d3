// Load on an HTTP server of this machine, for bench_serve.py.
//
// usage: http_load PORT CONNECTIONS SECONDS PATH [BODY_FILE]
//
// Prints "requests_per_s R p50_us P p99_us Q failed N"; without a file the requests are GET.
#include "tests/bench/http_load.hpp"

int main(int argc, char** argv) {
  using namespace flow::bench;
  if (argc < 5) {
    std::fputs("usage: http_load PORT CONNECTIONS SECONDS PATH [BODY_FILE]\n", stderr);
    return 2;
  }
  std::string request = get_request(argv[4]);
  if (argc > 5) {
    std::ifstream file(argv[5], std::ios::binary);
    std::string body{std::istreambuf_iterator<char>(file), {}};
    request = post_request(argv[4], body);
  }
  LoadClient client(static_cast<uint16_t>(std::stoi(argv[1])), std::stoul(argv[2]), request);
  Load load = client.run(std::stod(argv[3]));
  fmt::print("requests_per_s {:.0f} p50_us {:.0f} p99_us {:.0f} failed {}\n", load.per_second,
             load.p50_us, load.p99_us, load.failed);
  return 0;
}
