// Links between processes over UCX: shared memory within a host, TCP or InfiniBand between hosts.
#pragma once
#include <memory>

#include "flow/transport.hpp"

namespace flow {

/// UCX is loaded at the first call. `loopback_only`: nothing listens beyond this machine, whatever
/// UCX_NET_DEVICES says.
Result<std::unique_ptr<Transport>> make_ucx_transport(const TransportOptions& options,
                                                      bool loopback_only);

}  // namespace flow
