// Links within a process, for tests.
#pragma once
#include <memory>

#include "flow/transport.hpp"

namespace flow {

/// Addresses are names that all of a process's transports of this kind share; a port of 0 is
/// chosen.
std::unique_ptr<Transport> make_inproc_transport(const TransportOptions& options = {});

}  // namespace flow
