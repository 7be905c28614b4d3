// Fronts of a served name that outlive the head, and versions of it: the product's core and runtime
// divide the traffic between them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "engine/worker/service_fronts.hpp"
#include "tests/sim/engine_durable.hpp"
#include "tests/sim/engine_world.hpp"

namespace flow::sim {

constexpr const char* kServedName = "prod";

/// A task and a service, with a canary, without, or one that replaces the version before. Its
/// replicas may scale, and a gate may decide about the canary.
std::shared_ptr<const Plan> version_plan(Random& random);

/// How often the journal told of each.
struct SeenRollovers {
  uint64_t done = 0, reverted = 0;
  uint64_t interrupted = 0;          // by the end of the head, or of the new version
  uint64_t alone = 0;                // the version before ended first
  uint64_t passed = 0, refused = 0;  // steps, by the gate
  void add(const SeenRollovers& other);
};

class SimFronts final : public RecordObserver {
 public:
  /// Fronts that are not slow answer at once.
  SimFronts(World& world, bool are_slow) : world_(world), are_slow_(are_slow) {}

  /// The way of a head to the fronts. Its orders that are under way are lost when it ends.
  std::shared_ptr<FrontControl> control(ServiceFronts::Post post);

  void on_record(const core::State& before, const core::Record& record) override;
  /// Throws BrokenPromise where a version was stopped before the next one had all the traffic.
  void on_batch(const core::State& state) override;
  /// Of a live state: where nothing is under way, the version that serves has all the traffic.
  /// Throws BrokenPromise.
  void check(const core::State& state) const;
  const SeenRollovers& seen() const { return seen_; }

 private:
  class Control;
  friend class Control;
  core::Event obey(const FrontOrder& order);
  uint32_t percent_of(const core::RunId& run) const;

  World& world_;
  const bool are_slow_;
  std::map<core::RunId, uint32_t> weights_;       // empty: the first version has all
  size_t under_way_ = 0;                          // orders
  std::map<core::RunId, uint32_t> loads_;         // how often a run's load changed
  std::map<core::RunId, core::Rollover> before_;  // of the runs, before this batch
  std::set<core::RunId> at_work_;                 // of these, those that served
  // Runs of whose orders this batch has an answer, which it refuses, and whose end it requests.
  std::set<core::RunId> answered_, refused_, stopped_;
  SeenRollovers seen_;
};

}  // namespace flow::sim
