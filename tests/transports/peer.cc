// A process at the other end of a link, for tests that end or stop it. Usage:
//   transport_peer ADDRESS          sends "hello", then nothing on its own; echoes what arrives
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "transports/ucx/ucx.hpp"

using namespace flow;

namespace {

class Echo final : public LinkHandler {
 public:
  void on_up() override {
    link.wait(nullptr);
    link.load()->send("hello");
  }
  void on_frame(std::string_view frame) override { link.load()->send(std::string(frame)); }
  void on_down(const Error& why) override {
    std::fprintf(stderr, "down: %s\n", why.message.c_str());
    ::_exit(0);
  }
  std::atomic<Link*> link{nullptr};
};

std::vector<sighandler_t> fault_handlers() {
  std::vector<sighandler_t> found;
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    struct sigaction now {};
    ::sigaction(fault, nullptr, &now);
    found.push_back(now.sa_handler);
  }
  return found;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  std::vector<sighandler_t> before = fault_handlers();
  auto transport = make_ucx_transport({}, true);
  if (!transport.ok()) return 4;
  if (fault_handlers() != before) return 5;             // the program itself reports crashes
  if (::getenv("UCX_MEM_EVENTS") != nullptr) return 6;  // children would inherit it
  auto handler = std::make_shared<Echo>();
  auto link = (*transport)->connect(arguments[1], handler);
  if (!link.ok()) return 7;
  handler->link = link->get();
  handler->link.notify_all();
  for (;;) ::pause();
}
