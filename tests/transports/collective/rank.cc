// A rank in a separate process, for tests that end or stop it. Usage:
//   collective_rank FOLDER RANK RANKS NODE KEY rounds|goes_on|dies|dies_amid|leaves [DEADLINE_MS]
// Writes its address to FOLDER, joins and runs 16 barriers. Then it dies, leaves, runs one
// all_reduce (`rounds`), or repeats all_reduce until it fails. Prints the outcome.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/transports/collective/swap_addresses.hpp"
#include "transports/collective/collective.hpp"
#include "transports/ucx/ucx.hpp"

using namespace flow;

namespace {

int say(const Status& status) {
  std::printf("%s\n", status.ok() ? "ok" : status.error().message.c_str());
  std::fflush(stdout);
  return status.ok() ? 0 : 1;
}

Status sum(Communicator& gang, int64_t count) {
  std::vector<float> data(static_cast<size_t>(count), 1.0f);
  Status status = gang.run(all_reduce(data.data(), data.data(), count, DType::f32, ReduceOp::sum));
  for (float number : data)
    if (status.ok() && number != static_cast<float>(gang.ranks()))
      return internal_error("a sum of " + std::to_string(number));
  return status;
}

int act(Communicator& gang, const std::string& act) {
  for (int i = 0; i < 16; i++) {
    Status status = gang.run(barrier());
    if (!status.ok()) return say(status);
  }
  if (act == "dies") ::kill(::getpid(), SIGKILL);
  if (act == "leaves") return 0;
  if (act == "rounds") return say(sum(gang, 1'000'000));
  // Until a rank dies.
  for (bool is_first = true;; is_first = false) {
    Status status = sum(gang, 300'000);
    if (!status.ok()) return say(status);
    if (is_first && act == "dies_amid") std::thread([] { ::kill(::getpid(), SIGKILL); }).detach();
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 7) return 2;
  GangOptions options;
  std::string folder = arguments[1], what = arguments[6];
  options.gang = folder;
  options.rank = std::atoi(arguments[2]);
  options.ranks = std::atoi(arguments[3]);
  options.node = arguments[4];
  options.key = arguments[5];
  if (count > 7) options.deadline_ms = std::atoi(arguments[7]);
  std::unique_ptr<Transport> transport;
  if (options.node != "one") {
    auto made = make_ucx_transport({}, true);
    if (!made.ok()) return say(made.error());
    transport = std::move(*made);
    options.transport = transport.get();
  }
  if (options.node == "one") options.node.clear();
  auto rendezvous = make_rendezvous(options);
  if (!rendezvous.ok()) return say(rendezvous.error());
  auto gang =
      (*rendezvous)
          ->join(swap_addresses(folder, options.rank, options.ranks, (*rendezvous)->address()));
  if (!gang.ok()) return say(gang.error());
  return act(**gang, what);
}
