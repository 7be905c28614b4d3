// Replicas of services, whose number follows the load: what others may know about it. A service
// whose replicas scale has ReplicaScaling::max units from the start. The first of them are in use,
// and the others are spare: they are parked, or their last attempt is being stopped.
#pragma once
#include "engine/core/core.hpp"

namespace flow::core {

/// Whether the unit is the own one of a service whose replicas scale.
bool is_scaled_set(const Run& run, UnitId unit);
/// How many replicas of the set are in use: all of them, unless they scale.
uint32_t replicas_in_use(const Run& run, UnitId set);
/// Whether the unit is a replica that is not in use.
bool is_spare(const Run& run, UnitId unit);
/// Whether the unit is a replica beyond the least number of its service, which has served: its
/// failures do not fail the run.
bool is_further_replica(const Run& run, UnitId unit);
/// Whether each service that has not ended is ready: of one whose replicas scale the least number.
bool are_services_up(const Run& run);
/// Whether the run's services have traffic, and nothing asks it to end.
bool is_serving(const Run& run);
/// Whether a version of the run's name is about to replace it: until that is done, the run keeps
/// all its replicas.
bool is_being_replaced(const State& state, const Run& run);
/// Whether the set may have this many replicas from now on.
bool may_scale(const State& state, const Run& run, UnitId set, uint32_t replicas);

}  // namespace flow::core
