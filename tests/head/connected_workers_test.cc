// A head's memory of connected and lost workers.
#include <catch2/catch.hpp>

#include "engine/head/membership.hpp"

using namespace flow;

namespace {

class Host final : public WorkerConnection {
 public:
  void stage(std::vector<AttemptOrder>, uint64_t) override {}
  void release(uint64_t) override {}
  void exchange_addresses(const core::AttemptId&, const std::vector<std::string>&) override {}
  void stop(const core::AttemptId&, bool) override {}
  void ack_saved(const core::AttemptId&, const std::string&, bool) override {}
  void ack_logs(size_t) override {}
  void replicate(const core::AttemptId&, const Digest&) override {}
  void forget(const core::RunId&) override {}
  void accept_join(uint64_t) override {}
  void ack_reports(uint64_t) override {}
  void disconnect(const std::string&) override {}
};

}  // namespace

TEST_CASE("lost workers without an open commit are forgotten above a bound") {
  ConnectedWorkers workers;
  workers["connected"].connection = std::make_shared<Host>();
  workers["awaited"];
  workers["reporting"].received = 7;
  workers["reporting"].durable = 6;
  workers["lost"].received = workers["lost"].durable = 7;
  workers["never came"];
  forget_lost(workers, {"awaited"}, 6);
  CHECK(workers.size() == 5);  // below the bound
  forget_lost(workers, {"awaited"}, 5);
  std::vector<std::string> names;
  for (const auto& [name, worker] : workers) names.push_back(name);
  CHECK(names == std::vector<std::string>{"awaited", "connected", "reporting"});
}
