// Where the front of a served name is.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "engine/core/core.hpp"

namespace flow {

/// The folder of the front of the service `unit` of a run with this name, or this id if the run has
/// no name. It holds the socket `front.sock`, on which the front answers replicas and engines.
std::string front_folder(std::string_view state_dir, std::string_view run_name_or_id,
                         std::string_view unit);
/// The folder of the front that the unit, a service, is a replica of.
std::string front_folder(std::string_view state_dir, const core::Run& run, core::UnitId unit);

/// The folders of the fronts that replicas on other machines need, each with a run that needs it:
/// those of services that run there and have not been asked to stop.
std::map<std::string, core::RunId> fronts_of_other_workers(std::string_view state_dir,
                                                           const core::State& state);

}  // namespace flow
