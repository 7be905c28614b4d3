// A long-lived program that embeds flow: RUNS runs, alternately as a client of the head at HEAD and
// of the process that writes STATE. After every EVERY runs it prints the number of finished runs
// and continues when it reads a line. soak_client HEAD SECRET STATE SCRIPT EXECUTOR TASKS RUNS
// EVERY
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "flow/flow.hpp"

namespace {

/// Each run has different code, as during development.
void write_script(const std::string& path, const std::string& text, int number) {
  std::ofstream(path) << "-- run " << number << "\n" << text;
}

void run_all(char** words) {
  const std::string head = words[1], secret = words[2], state = words[3], script = words[4];
  const int tasks = std::atoi(words[6]), runs = std::atoi(words[7]), every = std::atoi(words[8]);
  std::ifstream file(script);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  flow::EngineOptions far, near;
  far.head = head;
  far.secret_file = secret;
  near.state = state;
  far.executor = near.executor = words[5];
  flow::Engine over_network(far), over_socket(near);
  for (int number = 1; number <= runs; number++) {
    write_script(script, text, number);
    flow::Engine& engine = number % 2 == 0 ? over_network : over_socket;
    flow::Value result = engine.run(script, {{"n", tasks}, {"run", number}}).wait();
    if (!result.find("sum")) throw flow::Failed({flow::ErrorKind::task, "no sum in the result"});
    if (number % every != 0) continue;
    engine.gc(5);
    std::printf("%d\n", number);
    std::fflush(stdout);
    std::string line;
    std::getline(std::cin, line);
  }
}

}  // namespace

int main(int count, char** words) {
  if (count != 9) return 2;
  try {
    run_all(words);
  } catch (const flow::Failed& failed) {
    std::fprintf(stderr, "%s\n", failed.error.message.c_str());
    return 1;
  }
  return 0;
}
