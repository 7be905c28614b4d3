#include "tests/sim/engine_worker.hpp"

#include <utility>

#include "tests/sim/engine_head.hpp"

namespace flow::sim {

namespace {

constexpr uint32_t kSkewMsMax = 5'000, kPartitionMsMax = 3'000;

}  // namespace

SimWorker::SimWorker(World& world, const DurableState& durable, TaskMemory& memory, Head& head,
                     core::WorkerInfo info)
    : world_(world),
      around_{world, durable, memory, head},
      info_(std::move(info)),
      clock_skew_(core::Time{world.random.below(2 * kSkewMsMax)} - kSkewMsMax) {
  empty_spool();
}

void SimWorker::empty_spool() { spool_ = std::make_shared<SimSpoolFolder>(world_); }

void SimWorker::start_process() {
  auto on_end = [this, number = ++processes_] {
    world_.after(0, [this, number] {
      if (number == processes_) start_later();
    });
  };
  process_ = std::make_unique<AgentProcess>(around_, info_, spool_, clock_skew_, on_end);
}

void SimWorker::start_later() {
  process_ = nullptr;
  processes_++;
  world_.after(20 + world_.random.below(500), [this] { start_process(); });
}

void SimWorker::die() {
  if (!process_) return;
  auto how = static_cast<HowItEnds>(world_.random.below(3));
  world_.note(info_.name + (how == HowItEnds::exits       ? " exits"
                            : how == HowItEnds::is_killed ? " is killed"
                                                          : " loses its power"));
  process_->end(how);
  if (how == HowItEnds::machine_is_gone) spool_->cut_power();
  if (world_.random.one_in(4)) empty_spool();
  start_later();
}

void SimWorker::drain() {
  if (!process_) return;
  world_.note(info_.name + " drains");
  process_->drain();
  world_.after(60 + world_.random.below(60), [this, number = processes_] {
    if (number == processes_) die();
  });
}

void SimWorker::fail_gpu(const std::string& uuid, bool is_dead) {
  if (process_) process_->fail_gpu(uuid, is_dead);
}

std::optional<core::AttemptId> SimWorker::stale_ranks() const {
  return process_ ? process_->monitor().stale_ranks() : std::nullopt;
}

void SimWorker::cut_connection() {
  SimNetwork& network = around_.head.network();
  Random& random = world_.random;
  auto fault = static_cast<FrameFault>(random.below(static_cast<uint32_t>(FrameFault::count)));
  if (fault != FrameFault::none) {
    world_.note(info_.name + " has a frame that is lost, repeated, swapped or changed");
    network.fault_next_frame(info_.name, fault);
  } else if (random.one_in(2)) {
    world_.note(info_.name + " is partitioned");
    network.partition(info_.name, random.below(random.one_in(4) ? kPartitionMsMax : 100));
  } else {
    world_.note(info_.name + " is cut off");
    network.cut(info_.name);
  }
}

}  // namespace flow::sim
