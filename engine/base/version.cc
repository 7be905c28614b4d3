#include "flow/flow.hpp"

namespace flow {

const char* version() { return FLOW_VERSION; }

}  // namespace flow
