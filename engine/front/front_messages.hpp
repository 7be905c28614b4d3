// Messages of a front's peers as its classes take them, and what the front says of itself.
#pragma once
#include "engine/front/front.hpp"
#include "engine/protocol/front.pb.h"
#include "flow/result.hpp"

namespace flow {

/// Error if the configuration cannot be served: without keys where some are asked for, for example.
Result<Front::JoinRequest> join_request_of(const front::Join& join);

front::Status status_of(const Front& front);

}  // namespace flow
