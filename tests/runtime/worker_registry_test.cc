// The worker of the process, and what it gets to know that happened before it was there.
#include "engine/runtime/worker_registry.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

/// Keeps the fronts that it was last told to hold.
class HoldingWorker final : public Worker {
 public:
  explicit HoldingWorker(std::vector<std::vector<HeldFront>>& calls) : calls_(calls) {}
  void stage(std::vector<AttemptOrder>, uint64_t) override {}
  void release(uint64_t) override {}
  void exchange_addresses(const core::AttemptId&, const std::vector<std::string>&) override {}
  void stop(const core::AttemptId&, bool) override {}
  void interrupt(const core::AttemptId&) override {}
  void ack_saved(const core::AttemptId&, const std::string&, bool) override {}
  void ack_logs(size_t) override {}
  void hold_fronts(std::vector<HeldFront> fronts) override { calls_.push_back(std::move(fronts)); }

 private:
  std::vector<std::vector<HeldFront>>& calls_;
};

TEST_CASE("a worker that comes later holds the fronts that the start of the engine found") {
  std::vector<std::vector<HeldFront>> calls;
  WorkerRegistry workers;
  const std::vector<HeldFront> found{{"fronts/a", 60'000}};
  workers.hold_fronts(found);
  workers.set_own(std::make_unique<HoldingWorker>(calls));
  REQUIRE(calls.size() == 1);
  CHECK(calls.front() == found);
  workers.hold_fronts(found);
  CHECK(calls.size() == 1);
  workers.hold_fronts({});
  REQUIRE(calls.size() == 2);
  CHECK(calls.back().empty());
}

}  // namespace
