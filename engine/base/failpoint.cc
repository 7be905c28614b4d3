#include "engine/base/failpoint.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

namespace flow {

namespace {

struct Failpoint {
  std::string name;
  long count = 0;
};

Failpoint from_environment() {
  const char* text = std::getenv("FLOW_FAILPOINT");
  if (text == nullptr) return {};
  const char* colon = std::strrchr(text, ':');
  if (colon == nullptr) return {text, 1};
  return {std::string(text, colon), std::strtol(colon + 1, nullptr, 10)};
}

}  // namespace

void failpoint(const char* name) {
  static Failpoint armed = from_environment();
  if (armed.count == 0 || armed.name != name) return;
  if (--armed.count == 0) ::kill(::getpid(), SIGKILL);
}

}  // namespace flow
