// Replicas of services, whose number follows the load.
#include "engine/core/transition.hpp"

namespace flow::core {

void Transition::on(const ReplicasScaled& event) { touch(run(event.run)); }

}  // namespace flow::core
