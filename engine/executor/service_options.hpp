// The options of a service as its replica gives them to the front, with its keys.
#pragma once
#include <string>
#include <vector>

#include "engine/plan/service_spec.hpp"
#include "engine/protocol/executor.pb.h"
#include "engine/protocol/front.pb.h"
#include "flow/result.hpp"

namespace flow {

struct ServiceAccess {
  ServiceSpec spec;               // with the port and the batches of the order
  std::vector<std::string> keys;  // empty: callers need none
};

/// Reads the options of the order, and the file of keys if there is one. Error if a service that
/// asks for keys has none: it must not serve.
Result<ServiceAccess> read_service_access(const wire::Start& start);

/// The message with which the order's replica joins its front.
front::Join join_of(const wire::Start& start, const ServiceAccess& access);

}  // namespace flow
