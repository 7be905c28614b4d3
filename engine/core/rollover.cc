// The takeover of a name's traffic by a new version.
#include "engine/core/transition.hpp"

namespace flow::core {

void Transition::on(const TrafficShifted& event) { touch(run(event.run)); }

void Transition::on(const TrafficMeasured& event) { touch(run(event.run)); }

}  // namespace flow::core
