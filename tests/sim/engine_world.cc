#include "tests/sim/engine_world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace flow::sim {

namespace {

constexpr size_t kTraceMax = 3000;
constexpr uint32_t kCalm = 12;  // one in so many seeds has no fault

}  // namespace

World::World(uint64_t seed, bool is_calm) : random(seed) {
  if (random.one_in(kCalm) || is_calm) return;
  faults_left_[FaultKind::crash] = 1 + random.below(4);
  faults_left_[FaultKind::disk] = 1 + random.below(3);
  faults_left_[FaultKind::stall] = 1 + random.below(4);
  faults_left_[FaultKind::partition] = 1 + random.below(5);
  faults_left_[FaultKind::worker_death] = random.below(3);
  faults_left_[FaultKind::spool] = random.below(4);
  faults_left_[FaultKind::drain] = random.below(2);
  faults_left_[FaultKind::gpu] = random.below(3);
  faults_left_[FaultKind::blob] = random.below(2);
  faults_left_[FaultKind::task] = random.below(4);
  faults_left_[FaultKind::stray] = random.below(6);
  faults_left_[FaultKind::service] =
      Random(seed).below(8);  // `random` stays as it is without services
}

void World::after(core::Time delay, std::function<void()> what) {
  due_.emplace(std::pair(now_ + delay, serial_++), std::move(what));
}

bool World::run_due() {
  if (due_.empty() || due_.begin()->first.first > now_) return false;
  auto what = std::move(due_.begin()->second);
  due_.erase(due_.begin());
  what();
  return true;
}

void World::pass(core::Time most) {
  core::Time next = due_.empty() ? INT64_MAX : due_.begin()->first.first;
  now_ = std::min(std::max(next, now_), now_ + most);
}

bool World::strikes(FaultKind kind, uint32_t odds) {
  auto left = faults_left_.find(kind);
  if (left == faults_left_.end() || left->second == 0 || !random.one_in(odds)) return false;
  left->second--;
  faults_struck_[kind]++;
  return true;
}

void World::add_faults(FaultKind kind, uint32_t count) {
  if (!faults_left_.empty()) faults_left_[kind] += count;
}

uint32_t World::struck(FaultKind kind) const {
  auto found = faults_struck_.find(kind);
  return found == faults_struck_.end() ? 0 : found->second;
}

void World::may_crash(uint32_t odds) {
  if (!strikes(FaultKind::crash, odds)) return;
  note("the head crashes");
  throw HeadCrash();
}

void World::note(std::string line) {
  if (!has_trace_) return;
  trace_.push_back(fmt::format("step {} at {}: {}", step, now_ % 10'000'000, line));
  if (trace_.size() > kTraceMax) trace_.pop_front();
}

void GangEnds::reach(const core::AttemptId& id, uint32_t rank, uint32_t ranks,
                     std::function<void()> go_on) {
  waiting_[id][rank] = std::move(go_on);
  if (waiting_[id].size() < ranks) return;
  auto all = std::move(waiting_[id]);
  waiting_.erase(id);
  for (auto& [at, go] : all) go();
}

std::string text_of(const core::AttemptId& id) {
  return fmt::format("{}/{}#{}e{}", id.run, id.unit, id.attempt, id.epoch);
}

}  // namespace flow::sim
