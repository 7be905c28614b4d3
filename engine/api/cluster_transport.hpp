#pragma once
#include <memory>
#include <string>

#include "engine/cluster/session/session_options.hpp"
#include "flow/transport.hpp"

namespace flow {

/// The transport of a cluster's sessions, over UCX. If `address` is a loopback address, nothing
/// listens beyond this machine.
Result<std::unique_ptr<Transport>> cluster_transport(const std::string& address,
                                                     const cluster::SessionOptions& session);

}  // namespace flow
