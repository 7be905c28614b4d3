// all_reduce of f32 on 2 and 4 processes of this machine, in shared memory and over UCX on
// loopback, compared with Open MPI's and Gloo's if installed. Processes take turns; the best of
// several rounds counts. Usage: bench_collectives [rounds]   (default 3)
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/bench/bench.hpp"
#include "tests/bench/collectives_loop.hpp"
#include "tests/bench/floors.hpp"
#include "tests/transports/collective/swap_addresses.hpp"
#include "transports/collective/collective.hpp"
#include "transports/ucx/ucx.hpp"

using namespace flow;
using namespace flow::bench;

extern "C" char** environ;

namespace {

using Times = std::map<size_t, double>;  // us, by bytes

/// --rank RANK RANKS FOLDER shm|ucx
int be_rank(char** arguments) {
  GangOptions options;
  options.rank = std::atoi(arguments[2]);
  options.ranks = std::atoi(arguments[3]);
  std::string folder = arguments[4];
  options.gang = folder;
  options.key = "bench";
  options.deadline_ms = 60'000;
  std::unique_ptr<Transport> transport;
  if (std::string(arguments[5]) == "ucx") {
    auto made = make_ucx_transport({}, true);
    if (!made.ok()) return 3;
    transport = std::move(*made);
    options.transport = transport.get();
    options.node = std::to_string(options.rank);
  }
  auto rendezvous = make_rendezvous(options);
  if (!rendezvous.ok()) return 4;
  auto addresses = swap_addresses(folder, options.rank, options.ranks, (*rendezvous)->address());
  auto joined = (*rendezvous)->join(addresses);
  if (!joined.ok()) {
    fmt::print(stderr, "{}\n", joined.error().message);
    return 4;
  }
  Communicator& communicator = **joined;
  auto run = [&](const CollectiveCall& call) {
    Status status = communicator.run(call);
    if (status.ok()) return;
    fmt::print(stderr, "{}\n", status.error().message);
    ::_exit(5);
  };
  auto reduce = [&](float* data, size_t count) {
    run(all_reduce(data, data, static_cast<int64_t>(count), DType::f32, ReduceOp::sum));
  };
  auto last = [&](double seconds) {
    run(all_reduce(&seconds, &seconds, 1, DType::f64, ReduceOp::max));
    return seconds;
  };
  time_all_reduce(options.rank, reduce, last);
  return 0;
}

void keep_best(const std::string& output, Times& best) {
  std::istringstream lines(output);
  size_t bytes = 0;
  double us = 0;
  while (lines >> bytes >> us) {
    auto found = best.try_emplace(bytes, us).first;
    found->second = std::min(found->second, us);
  }
}

/// Runs `command` for each rank; the output of the first rank counts.
std::string output_of_ranks(int ranks, const std::function<std::string(int)>& command) {
  std::vector<std::thread> others;
  for (int rank = 1; rank < ranks; rank++)
    others.emplace_back([&command, rank] { output_of(command(rank)); });
  std::string output = output_of(command(0));
  for (std::thread& other : others) other.join();
  return output;
}

struct Contender {
  std::string name;
  std::function<std::string(int ranks)> run;
  Times best;
};

void measure(const std::string& program, const std::string& way, int ranks, int rounds) {
  Contender own{"flow",
                [&](int count) {
                  Folder folder;
                  return output_of_ranks(count, [&](int rank) {
                    return fmt::format("{} --rank {} {} {} {}", program, rank, count, folder.path(),
                                       way);
                  });
                },
                {}};
  std::vector<Contender> others;
  std::string beside = std::filesystem::path(program).parent_path().string();
  std::string mpi = beside + "/collectives_mpi", gloo = beside + "/collectives_gloo";
  if (std::filesystem::exists(mpi)) {
    std::string links = way == "ucx" ? "--mca pml ob1 --mca btl tcp,self" : "";
    others.push_back({"openmpi",
                      [=](int count) {
                        return output_of(
                            fmt::format("OMPI_ALLOW_RUN_AS_ROOT=1 "
                                        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun "
                                        "--oversubscribe {} -n {} {}",
                                        links, count, mpi));
                      },
                      {}});
  }
  if (std::filesystem::exists(gloo)) {
    for (std::string algorithm : {"ring", "halving_doubling"})
      others.push_back({"gloo_" + algorithm,
                        [=](int count) {
                          Folder folder;
                          return output_of_ranks(count, [&](int rank) {
                            return fmt::format("{} {} {} {} {}", gloo, rank, count, folder.path(),
                                               algorithm);
                          });
                        },
                        {}});
  }
  for (int round = 0; round < rounds; round++) {
    keep_best(own.run(ranks), own.best);
    for (Contender& other : others) keep_best(other.run(ranks), other.best);
  }
  for (auto [bytes, us] : own.best) {
    std::string name = fmt::format("all_reduce_{}_{}_ranks_{}_KiB_us", way, ranks, bytes >> 10);
    if (others.empty()) figure(name, us, "none", 0);
    for (Contender& other : others) figure(name, us, other.name, other.best[bytes]);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 6 && std::string(arguments[1]) == "--rank") return be_rank(arguments);
  int rounds = count > 1 ? std::max(1, std::atoi(arguments[1])) : 3;
  std::string program = std::filesystem::absolute(arguments[0]).string();
  for (const char* way : {"shm", "ucx"})
    for (int ranks : {2, 4}) measure(program, way, ranks, rounds);
}
