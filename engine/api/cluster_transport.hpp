#pragma once
#include <memory>
#include <string>

#include "engine/cluster/session/session_options.hpp"
#include "flow/transport.hpp"

namespace flow {

/// The transport of a cluster's sessions, over UCX. With a loopback address it listens only on this
/// machine.
Result<std::unique_ptr<Transport>> cluster_transport(const std::string& address,
                                                     const cluster::SessionOptions& session);

}  // namespace flow
