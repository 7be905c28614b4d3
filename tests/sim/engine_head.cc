#include "tests/sim/engine_head.hpp"

#include <fmt/format.h>

#include <charconv>

#include "engine/store/row_keys.hpp"
#include "tests/sim/engine_plans.hpp"

namespace flow::sim {

namespace {

constexpr core::Time kLeaseMs = 300;
constexpr core::Time kGrowAfterMs = 20;
constexpr int64_t kMemoryBytes = int64_t{1} << 31;
constexpr uint32_t kCrashBetweenTurns = 120;

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
      ranks_.add(order);
      attempts_.stage(std::move(order), commit);
    }
  }
  void release(uint64_t commit) override { attempts_.release(commit); }
  void exchange_addresses(const core::AttemptId&, const std::vector<std::string>&) override {}
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
           HeadCapacity capacity)
    : world_(world),
      disk_(disk),
      durable_(durable),
      memory_(memory),
      capacity_(std::move(capacity)) {}

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
  for (const std::string& name : disconnected_workers(*loop_)) {
    workers_[name].serial = ++last_serial_;
    start_lease(name, "it did not come back", false);
  }
}

void Head::end() {
  starts_++;
  for (auto& [name, worker] : workers_)
    if (worker.connection) worker.connection->cut("the head ended");
  workers_.clear();
  loop_ = nullptr;
}

bool Head::act() {
  if (loop_->stopped_by()) throw HeadStopped();
  world_.may_crash(kCrashBetweenTurns);
  bool writes_first = world_.random.one_in(3);
  if (writes_first && loop_->write_deferred()) return true;
  if (loop_->run_turn()) return true;
  return !writes_first && world_.random.one_in(2) && loop_->write_deferred();
}

Head::Workers::iterator Head::find(const SimConnection& connection) {
  auto found = workers_.begin();
  while (found != workers_.end() && found->second.connection.get() != &connection) ++found;
  return found;
}

uint64_t Head::committed_of(const std::string& name, const std::string& spool) const {
  const Disk::Rows& rows = disk_.rows(Family::kv);
  auto row = rows.find(spool_key(name));
  if (row == rows.end() || !row->second.starts_with(spool + "\n")) return 0;
  std::string_view digits = std::string_view(row->second).substr(spool.size() + 1);
  uint64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

void Head::on_join(const std::shared_ptr<SimConnection>& connection, JoinOffer offer) {
  const std::string name = offer.info.name;
  uint64_t received = committed_of(name, offer.spool);
  ConnectedWorker& worker = workers_[name];
  if (worker.connection && worker.process != offer.process)
    return connection->disconnect("a worker of this name is here");
  auto former = std::exchange(worker.connection, connection);
  if (worker.spool == offer.spool) received = std::max(received, worker.received);
  bool is_restarted = !worker.process.empty() && worker.process != offer.process;
  worker.process = offer.process;
  worker.spool = offer.spool;
  worker.received = worker.durable = received;
  worker.is_acked = true;
  worker.serial = ++last_serial_;
  std::vector<core::AttemptId> offered;
  for (const RankOffer& each : offer.ranks)
    if (!each.has_ended) offered.push_back(each.rank.attempt);
  connection->ranks().offer(offered);
  loop_->parts().workers.attach(name, connection, "simulated");
  if (former) {
    loop_->parts().membership.disconnect(name, "it came by another connection");
    former->disconnect("it came by another connection");
  }
  loop_->parts().membership.join({std::move(offer.info), std::move(offer.ranks), is_restarted, {}},
                                 [connection, received](bool is_admitted) {
                                   if (is_admitted) return connection->accept_join(received);
                                   connection->disconnect("it is not accepted");
                                 });
}

void Head::on_report(SimConnection& connection, uint64_t number, Report report) {
  auto found = find(connection);
  if (found == workers_.end()) return;
  ConnectedWorker& worker = found->second;
  if (number <= worker.received) return;
  worker.received = number;
  // The same report again, after some time, as from a copy that went another way.
  if (world_.strikes(FaultKind::stray, 12)) {
    world_.after(world_.random.below(150), [this, start = starts_, name = found->first, report] {
      if (start != starts_) return;
      auto again = workers_.find(name);
      if (again == workers_.end()) return;
      world_.note("a report comes again, of " + text_of(report.id));
      this->report(name, again->second, again->second.received, report);
    });
  }
  this->report(found->first, worker, number, std::move(report));
}

void Head::report(const std::string& name, ConnectedWorker& worker, uint64_t number,
                  Report report) {
  std::string row = fmt::format("{}\n{}", worker.spool, number);
  EngineComponents& parts = loop_->parts();
  parts.inbox.post(parts.reports.inputs_of(
      std::move(report), name, {spool_key(name), std::move(row)}, [](bool) {},
      [this, name, serial = worker.serial, number] { on_durable(name, serial, number); }));
}

void Head::on_durable(const std::string& name, uint64_t serial, uint64_t number) {
  auto found = workers_.find(name);
  if (found == workers_.end() || found->second.serial != serial) return;
  found->second.durable = number;
  if (!std::exchange(found->second.is_acked, false)) return;
  loop_->parts().group_commit.after_effects([this, name, serial] {
    auto worker = workers_.find(name);
    if (worker == workers_.end() || worker->second.serial != serial) return;
    worker->second.is_acked = true;
    if (worker->second.connection) worker->second.connection->ack_reports(worker->second.durable);
  });
}

void Head::on_draining(SimConnection& connection) {
  auto found = find(connection);
  if (found != workers_.end()) loop_->parts().membership.drain(found->first, "it leaves");
}

void Head::on_disconnected(SimConnection& connection, bool is_for_good, const std::string& why) {
  auto found = find(connection);
  if (found == workers_.end()) return;
  found->second.connection = nullptr;
  loop_->parts().workers.detach(found->first, connection);
  if (is_for_good) return loop_->parts().membership.lose(found->first, why);
  loop_->parts().membership.disconnect(found->first, why);
  start_lease(found->first, why, true);
}

void Head::start_lease(const std::string& name, const std::string& why, bool has_died) {
  uint64_t serial = workers_.at(name).serial;
  world_.after(kLeaseMs, [this, start = starts_, name, serial, why, has_died] {
    if (start != starts_) return;
    auto found = workers_.find(name);
    bool is_gone =
        found != workers_.end() && !found->second.connection && found->second.serial == serial;
    if (is_gone) loop_->parts().membership.lose(name, why, has_died);
  });
}

void Head::check_ranks() const {
  own_ranks_.check(durable_);
  for (const auto& [name, worker] : workers_)
    if (worker.connection) worker.connection->ranks().check(durable_);
}

void Head::fail_gpu(const std::string& worker, const std::string& uuid, bool is_dead) {
  const std::string fault = "fell off the bus";
  if (!worker.empty()) return loop_->parts().membership.fail_gpu(worker, uuid, fault, is_dead);
  loop_->parts().inbox.post({PostedEvent{core::GpuFailed{0, uuid, fault, is_dead}}});
}

}  // namespace flow::sim
