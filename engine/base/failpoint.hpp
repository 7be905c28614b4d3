// Named places where a test ends the process as a power cut would.
#pragma once

namespace flow {

/// FLOW_FAILPOINT="name:count" in the environment sends SIGKILL to self at the count-th passage.
/// Costs one load where the variable is unset.
void failpoint(const char* name);

}  // namespace flow
