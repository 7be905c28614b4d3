// Links within a process, for tests.
#pragma once
#include <memory>

#include "flow/transport.hpp"

namespace flow {

/// Addresses are names that all transports of this kind in a process share; port 0 selects a free
/// one.
std::unique_ptr<Transport> make_inproc_transport(const TransportOptions& options = {});

}  // namespace flow
