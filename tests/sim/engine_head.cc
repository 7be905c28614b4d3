#include "tests/sim/engine_head.hpp"

#include <fmt/format.h>

#include <utility>

#include "tests/sim/engine_plans.hpp"

namespace flow::sim {

namespace {

constexpr int64_t kLostAfterMs = 4'000, kAdoptMs = 300;
constexpr core::Time kGrowAfterMs = 20;
constexpr int64_t kMemoryBytes = int64_t{1} << 31;
constexpr uint32_t kCrashBetweenTurns = 120, kCrashInEffect = 150;
constexpr uint32_t kStallBetweenTurns = 60, kStallMsMax = 500;

/// The worker of the head's own process: what it runs ends with the head.
class OwnWorker final : public Worker {
 public:
  OwnWorker(World& world, const DurableState& durable, TaskMemory& memory, EngineLoop& loop,
            GangRanks& ranks)
      : ranks_(ranks), attempts_(world, durable, memory, [this, &world, &loop](Report report) {
          world.after(world.random.below(4), [&loop, report, alive = is_alive_] {
            if (*alive) loop.parts().on_reports({report});
          });
        }) {}
  ~OwnWorker() override { *is_alive_ = false; }
  void stage(std::vector<AttemptOrder> orders, uint64_t commit) override {
    for (AttemptOrder& order : orders) {
      ranks_.add(order.id, order.ranks);
      attempts_.stage(std::move(order), commit);
    }
  }
  void release(uint64_t commit) override { attempts_.release(commit); }
  void exchange_addresses(const core::AttemptId& id,
                          const std::vector<std::string>& addresses) override {
    attempts_.exchange_addresses(id, addresses.size());
  }
  void stop(const core::AttemptId& id, bool) override {
    ranks_.stop(id);
    attempts_.stop(id);
  }
  void ack_saved(const core::AttemptId& id, const std::string& name, bool ok) override {
    attempts_.ack_saved(id, name, ok);
  }
  void ack_logs(size_t) override {}

 private:
  const std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);
  GangRanks& ranks_;
  Attempts attempts_;
};

}  // namespace

Head::Head(World& world, Disk& disk, const DurableState& durable, TaskMemory& memory,
           HeadCapacity capacity, SimFronts& fronts)
    : world_(world),
      disk_(disk),
      durable_(durable),
      memory_(memory),
      capacity_(std::move(capacity)),
      fronts_(fronts),
      network_(world, [this] { return durable_.batches(); }) {}

void Head::open() {
  starts_++;
  world_.note(fmt::format("head {} opens the disk", starts_));
  EngineLoopOptions options;
  options.state_dir = kStateDir;
  options.jobs = capacity_.jobs;
  options.custom_resources = {{kLicence, 1000}};
  options.grow_after_ms = kGrowAfterMs;
  options.leads_cluster = true;
  options.clock = [this] { return world_.now(); };
  options.memory_bytes = kMemoryBytes;
  options.fronts = [this](ServiceFronts::Post post) { return fronts_.control(std::move(post)); };
  static const auto builder = std::make_shared<Builder>("");
  options.builder = builder;
  auto opened = EngineLoop::open(options, make_disk_store(disk_));
  if (!opened.ok()) {
    world_.note("the head does not start: " + opened.error().message);
    throw HeadStopped();
  }
  loop_ = std::move(*opened);
  own_ranks_ = {};
  loop_->parts().workers.set_own(
      std::make_unique<OwnWorker>(world_, durable_, memory_, *loop_, own_ranks_));
  if (!capacity_.gpus.empty())
    loop_->parts().inbox.post({PostedEvent{core::GpusFound{capacity_.gpus}}});
  process_ = std::make_shared<SimProcess>();
  process_->host = "head";
  process_->on_send = [this] { world_.may_crash(kCrashInEffect); };
  ClusterOptions cluster;
  cluster.make_transport = [this](const std::string&, const cluster::SessionOptions&) {
    return Result<std::unique_ptr<Transport>>(network_.transport(process_));
  };
  cluster.listen = kHeadAddress;
  cluster.state_dir = kStateDir;
  cluster.lost_after_ms = kLostAfterMs;
  cluster.adopt_ms = kAdoptMs;
  cluster.on_note = [](const std::string&) {};
  auto membership = ClusterMembership::open(*loop_, cluster, session_options());
  if (!membership.ok()) throw BrokenPromise{"a head cannot listen: " + membership.error().message};
  membership_ = std::move(*membership);
  tick_later();
}

cluster::SessionOptions Head::session_options() const {
  cluster::SessionOptions options;
  options.role = cluster::Role::head;
  options.name = "head";
  options.version = "simulated";
  options.now_us = [this] { return world_.now() * 1000; };
  cluster::set_lost_after(options, kLostAfterMs);
  return options;
}

void Head::tick_later() {
  world_.after(kTickMs, [this, start = starts_] {
    if (start != starts_) return;
    tick_later();
    membership_->tick();
  });
}

void Head::end() {
  starts_++;
  if (process_) network_.kill(*process_, world_.random.one_in(3));
  membership_ = nullptr;
  loop_ = nullptr;
}

bool Head::act() {
  if (loop_->stopped_by()) throw HeadStopped();
  if (world_.now() < stalled_until_) return false;
  world_.may_crash(kCrashBetweenTurns);
  if (world_.strikes(FaultKind::stall, kStallBetweenTurns)) {
    world_.note("the head's disk is slow");
    stalled_until_ = world_.now() + world_.random.below(kStallMsMax);
    return false;
  }
  bool writes_first = world_.random.one_in(3);
  if (writes_first && loop_->write_deferred()) return true;
  if (loop_->run_turn()) return true;
  return !writes_first && world_.random.one_in(2) && loop_->write_deferred();
}

void Head::report_again(const std::string& worker, const Report& report) {
  world_.after(world_.random.below(150),
               [this, start = starts_, worker, report = report]() mutable {
                 if (start != starts_ || !is_up()) return;
                 world_.note("a report comes again, of " + text_of(report.id));
                 EngineComponents& parts = loop_->parts();
                 parts.inbox.post(parts.reports.input_of(std::move(report), worker));
               });
}

void Head::check_ranks() const {
  if (auto id = own_ranks_.stale(durable_))
    throw BrokenPromise{"ranks of a gang that has ended were not told to stop: " + text_of(*id)};
}

void Head::fail_gpu(const std::string& uuid, bool is_dead) {
  loop_->parts().inbox.post({PostedEvent{core::GpuFailed{0, uuid, kGpuFault, is_dead}}});
}

}  // namespace flow::sim
