#include "engine/runs/front_folder.hpp"

#include <fmt/format.h>

namespace flow {

std::string front_folder(std::string_view state_dir, std::string_view run_name_or_id,
                         std::string_view unit) {
  constexpr size_t kDigits = 16;
  Digest name = sha256(fmt::format("{}\n{}", run_name_or_id, unit));
  return fmt::format("{}/fronts/{}", state_dir, name.hex().substr(0, kDigits));
}

std::string front_folder(std::string_view state_dir, const core::Run& run, core::UnitId unit) {
  const TaskNode& node = run.node(run.units[unit].node);
  // The instances of a map are services of their own; those of a service are its replicas.
  bool is_own = node.kind == NodeKind::map;
  return front_folder(state_dir, run.name.empty() ? run.id : run.name,
                      is_own ? core::unit_name(run, unit) : node.name);
}

std::map<std::string, core::RunId> fronts_of_other_workers(std::string_view state_dir,
                                                           const core::State& state) {
  std::map<std::string, core::RunId> fronts;
  for (const auto& [id, run] : state.runs) {
    bool is_stopping = run.ending || run.cancelling || run.stop_requested;
    if (is_stopping || run.services.empty() || core::is_final(run.status)) continue;
    for (core::UnitId service : run.services) {
      const core::Unit& unit = run.units[service];
      bool runs_there = !unit.dropped && unit.phase == core::Phase::running && unit.worker != 0;
      if (runs_there) fronts.emplace(front_folder(state_dir, run, service), id);
    }
  }
  return fronts;
}

}  // namespace flow
