// The ranks of a gang in one process: one thread and one VM each, connected through shared memory.
#pragma once
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "transports/collective/collective.hpp"
#include "vm.hpp"

namespace flow::test {

class GangHost : public FakeHost {
 public:
  std::shared_ptr<Communicator> joined;
  Result<std::shared_ptr<Communicator>> communicator() override { return joined; }
};

/// The rendezvous of the ranks, for one gang after another.
class Meeting {
 public:
  explicit Meeting(int ranks)
      : ranks_(ranks), addresses_(static_cast<size_t>(ranks)), all_(ranks) {}
  int ranks() const { return ranks_; }
  void wait() { all_.arrive_and_wait(); }

  /// Called on each rank's thread.
  std::shared_ptr<Communicator> join(int rank, const std::string& gang) {
    GangOptions options;
    options.gang = name_ + gang;
    options.rank = rank;
    options.ranks = ranks_;
    options.deadline_ms = 120'000;
    auto rendezvous = make_rendezvous(options);
    if (rendezvous.ok()) addresses_[static_cast<size_t>(rank)] = (*rendezvous)->address();
    wait();
    if (!rendezvous.ok()) return nullptr;
    auto made = (*rendezvous)->join(addresses_);
    return made.ok() ? std::move(*made) : nullptr;
  }

 private:
  static std::string fresh_name() {
    static std::atomic<int> count{0};
    return "test-" + std::to_string(getpid()) + "-" + std::to_string(count++) + "-";
  }

  int ranks_;
  std::string name_ = fresh_name();
  std::vector<std::string> addresses_;
  std::barrier<> all_;
};

/// Calls body(rank) on one thread per rank.
template <typename Body>
void on_ranks(int ranks, Body body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; rank++) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

/// The outcome of one rank of an attempt.
struct RankOutcome {
  std::vector<std::string> lines;
  AttemptOutcome ended;
};

/// Runs attempts one after another, each on all ranks; results by attempt, then by rank.
template <typename Prepare>
std::vector<std::vector<RankOutcome>> run_gang(const Bundle& bundle, int ranks, int attempts,
                                               const AttemptRequest& request, Prepare prepare) {
  auto count = static_cast<size_t>(ranks);
  std::vector<std::vector<RankOutcome>> all(static_cast<size_t>(attempts),
                                            std::vector<RankOutcome>(count));
  Meeting meeting(ranks);
  on_ranks(ranks, [&](int rank) {
    auto vm = make_script_vm();
    Status loaded = vm->load(bundle);
    for (size_t attempt = 0; attempt < all.size(); attempt++) {
      RankOutcome& out = all[attempt][static_cast<size_t>(rank)];
      GangHost host;
      host.joined = meeting.join(rank, std::to_string(attempt));
      AttemptRequest own = request;
      own.rank = static_cast<uint32_t>(rank);
      own.ranks = static_cast<uint32_t>(ranks);
      prepare(rank, host);
      if (loaded.ok()) {
        out.ended = vm->run(own, host);
      } else {
        out.ended.kind = AttemptOutcome::Kind::failed;
        out.ended.message = loaded.error().message;
      }
      out.lines = host.lines;
    }
  });
  return all;
}

}  // namespace flow::test
