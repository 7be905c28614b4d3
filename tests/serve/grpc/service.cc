// A server for clients in other languages: prints its port, and ends at the end of its input.
#include <cstdio>
#include <string>

#include "engine/serve/grpc/grpc_server.hpp"
#include "tests/serve/grpc/fake_backend.hpp"

int main(int count, char** arguments) {
  std::vector<std::string> keys(arguments + 1, arguments + count);
  flow::FakeBackend backend(keys);
  auto server = flow::GrpcServer::open({.name = "adder"}, backend);
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.error().message.c_str());
    return 1;
  }
  std::printf("%d\n", (*server)->port());
  std::fflush(stdout);
  while (std::getchar() != EOF) continue;
  return 0;
}
