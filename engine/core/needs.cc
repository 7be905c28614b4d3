// What an attempt takes, and whether it fits into what is free. The scheduler and admit share this.
#include <algorithm>
#include <cmath>

#include "engine/core/gpus.hpp"
#include "engine/core/room.hpp"

namespace flow::core {

namespace {

/// A unit whose attempts took less than this may be assigned beyond the free slots, so that a slot
/// never waits for a disk sync.
constexpr uint32_t kShortUs = 5'000;
constexpr uint32_t kBacklogMax = 256;
constexpr uint64_t kBacklogUsPerSlot = 20'000;

int64_t grown_memory(const TaskDef& def, const Unit& unit, int64_t total) {
  int64_t memory = def.resources.memory_bytes;
  uint32_t ooms = unit.extra ? unit.extra->ooms : 0;
  for (uint32_t i = 0; i < ooms && memory < total; i++) {
    double grown = static_cast<double>(memory) * std::max(1.0, def.retry.oom_memory_factor);
    memory = grown >= static_cast<double>(total) ? total : static_cast<int64_t>(grown);
  }
  return std::clamp<int64_t>(memory, 0, total);
}

/// A run whose own slots are as many as the machine's is bounded by the machine alone.
bool is_bounded(const State& state, const Run& run) {
  return run.jobs > 0 && int64_t{run.jobs} * 1000 < state.cpus_milli;
}

}  // namespace

ReadyClass needs_of(const State& state, const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  const Node& node = run.node(u.node);
  const TaskDef& def = run.plan->defs[node.def];
  ReadyClass needs;
  needs.priority = def.priority;
  if (def.kind != TaskKind::service) {
    needs.cpus_milli = std::clamp(def.resources.cpus_milli, 0, state.cpus_milli);
    if (is_bounded(state, run)) needs.cpus_milli = std::min(needs.cpus_milli, run.jobs * 1000);
  }
  needs.memory_bytes = grown_memory(def, u, state.memory_bytes);
  if (def.resources.gpus_milli > 0) needs.gpu = gpu_needs_of(def.resources);
  if (u.instance >= 0 && node.limit > 0) needs.limited_map = run.unit_of(u.node);
  return needs;
}

uint32_t expected_short_us(const Run& run, UnitId unit) {
  const Node& node = run.node(run.units[unit].node);
  const TaskDef& def = run.plan->defs[node.def];
  const Resources& asked = def.resources;
  bool plain = def.kind != TaskKind::service && asked.cpus_milli == 1000 &&
               asked.memory_bytes == 0 && asked.gpus_milli == 0 && asked.ranks == 1;
  if (!plain || node.def >= run.durations_us.size()) return 0;
  uint32_t usual = run.durations_us[node.def];
  return usual < kShortUs ? usual : 0;
}

bool fits(const State& state, const Room& room, const Run& run, UnitId unit,
          const ReadyClass& needs, int32_t run_cpus_used_milli, uint32_t map_running) {
  if (needs.memory_bytes > room.memory_free_bytes) return false;
  if (needs.limited_map != kNoNode) {
    uint32_t limit = run.node(run.units[needs.limited_map].node).limit;
    if (map_running >= limit) return false;
  }
  if (needs.gpu.milli > 0 && choose_gpus(state, room, needs.gpu).empty()) return false;
  if (needs.cpus_milli == 0) return true;
  int64_t run_cpus_milli = int64_t{run_cpus_used_milli} + needs.cpus_milli;
  if (is_bounded(state, run) && run_cpus_milli > int64_t{run.jobs} * 1000) return false;
  if (needs.cpus_milli <= room.cpus_free_milli) return true;

  uint32_t expected_us = expected_short_us(run, unit);
  if (expected_us == 0) return false;
  int32_t slots = (state.cpus_milli - room.long_milli) / 1000;
  if (slots <= 0) return false;
  if (room.short_units >= static_cast<uint32_t>(slots) + kBacklogMax) return false;
  return room.short_us + expected_us <= kBacklogUsPerSlot * static_cast<uint64_t>(slots);
}

void take(Room& room, const ReadyClass& needs, uint32_t expected_us) {
  room.cpus_free_milli -= needs.cpus_milli;
  room.memory_free_bytes -= needs.memory_bytes;
  if (expected_us == 0) {
    room.long_milli += needs.cpus_milli;
  } else {
    room.short_units++;
    room.short_us += expected_us;
  }
}

void give_back(Room& room, const ReadyClass& needs, uint32_t expected_us) {
  room.cpus_free_milli += needs.cpus_milli;
  room.memory_free_bytes += needs.memory_bytes;
  if (expected_us == 0) {
    room.long_milli -= needs.cpus_milli;
  } else {
    room.short_units--;
    room.short_us -= expected_us;
  }
}

}  // namespace flow::core
