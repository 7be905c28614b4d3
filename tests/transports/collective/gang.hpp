// A gang whose ranks are threads of this process, on one simulated node or on several.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transports/collective/collective.hpp"
#include "transports/inproc/inproc.hpp"
#include "transports/ucx/ucx.hpp"

namespace flow {

using MakeTransport = std::function<std::unique_ptr<Transport>()>;

inline std::unique_ptr<Transport> inproc() { return make_inproc_transport(); }
inline std::unique_ptr<Transport> ucx() {
  auto made = make_ucx_transport({}, true);
  return made.ok() ? std::move(*made) : nullptr;
}

/// "aab": the first two ranks share a node, the third is on another one.
struct GangSpec {
  std::string nodes;
  MakeTransport transport = inproc;
  int64_t deadline_ms = 60'000;  // a test that waits this long has failed
  std::string key = "the key of the tests";
  std::vector<bool> encrypts = {false};  // by rank; the last value holds for the remaining ranks
};

inline std::string one_node(int ranks) { return std::string(static_cast<size_t>(ranks), 'a'); }
inline std::string own_nodes(int ranks) {
  std::string nodes;
  for (int rank = 0; rank < ranks; rank++) nodes += static_cast<char>('a' + rank);
  return nodes;
}

inline GangOptions options_of(const GangSpec& spec, int rank) {
  static int gangs = 0;
  if (rank == 0) gangs++;
  GangOptions options;
  options.gang = "gang " + std::to_string(gangs);
  options.rank = rank;
  options.ranks = static_cast<int>(spec.nodes.size());
  options.key = spec.key;
  options.node = spec.nodes.substr(static_cast<size_t>(rank), 1);
  options.deadline_ms = spec.deadline_ms;
  options.encrypts = spec.encrypts[std::min(static_cast<size_t>(rank), spec.encrypts.size() - 1)];
  return options;
}

/// Starts one thread per rank and joins them.
inline void on_each(int ranks, const std::function<void(int)>& run) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; rank++) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
}

class Gang {
 public:
  explicit Gang(const GangSpec& spec) : ranks_(static_cast<int>(spec.nodes.size())) {
    std::vector<std::unique_ptr<Rendezvous>> rendezvous_all;
    std::vector<std::string> addresses;
    bool is_one_node = spec.nodes.find_first_not_of(spec.nodes[0]) == std::string::npos;
    for (int rank = 0; rank < ranks_; rank++) {
      GangOptions options = options_of(spec, rank);
      if (!is_one_node) {
        transports_.push_back(spec.transport());
        REQUIRE(transports_.back() != nullptr);
        options.transport = transports_.back().get();
      }
      auto rendezvous = make_rendezvous(options);
      INFO((rendezvous.ok() ? "" : rendezvous.error().message));
      REQUIRE(rendezvous.ok());
      addresses.push_back((*rendezvous)->address());
      rendezvous_all.push_back(std::move(*rendezvous));
    }
    communicators_.resize(static_cast<size_t>(ranks_));
    std::vector<std::string> problems(static_cast<size_t>(ranks_));
    on_each(ranks_, [&](int rank) {
      auto joined = rendezvous_all[static_cast<size_t>(rank)]->join(addresses);
      if (joined.ok())
        communicators_[static_cast<size_t>(rank)] = std::move(*joined);
      else
        problems[static_cast<size_t>(rank)] = joined.error().message;
    });
    for (const std::string& problem : problems) {
      INFO(problem);
      REQUIRE(problem.empty());
    }
  }
  ~Gang() {
    on_each(ranks_, [&](int rank) { communicators_[static_cast<size_t>(rank)].reset(); });
  }

  int ranks() const { return ranks_; }
  Communicator& operator[](int rank) { return *communicators_[static_cast<size_t>(rank)]; }
  void drop(int rank) { communicators_[static_cast<size_t>(rank)].reset(); }

  /// The error of each rank, "" on success.
  std::vector<std::string> run(const std::function<std::string(Communicator&)>& each) {
    std::vector<std::string> said(static_cast<size_t>(ranks_));
    on_each(ranks_, [&](int rank) {
      auto& communicator = communicators_[static_cast<size_t>(rank)];
      if (communicator) said[static_cast<size_t>(rank)] = each(*communicator);
    });
    return said;
  }
  void check(const std::function<std::string(Communicator&)>& each) {
    for (const std::string& said : run(each)) CHECK(said == "");
  }

 private:
  const int ranks_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

inline std::string text_of(const Status& status) {
  return status.ok() ? "" : status.error().message;
}

}  // namespace flow
