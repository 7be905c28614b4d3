// Links between processes over UCX: TCP, or InfiniBand between machines.
#pragma once
#include <cstdint>
#include <memory>

#include "flow/transport.hpp"

namespace flow {

/// How host memory is put: in messages, which the peer copies, or by rendezvous. Messages work
/// better in UCX 1.13; rendezvous is for tests and measurements. GPU memory is always sent by
/// rendezvous.
enum class UcxPuts : uint8_t { messages, rendezvous };

/// The addresses that UCX uses on a device with both families, unless UCX_TCP_AF_PRIO is set. Both
/// ends of a link must use the same.
enum class UcxFamily : uint8_t { ipv4, ipv6 };

/// UCX is loaded at the first call. `loopback_only`: nothing listens beyond this machine,
/// regardless of UCX_NET_DEVICES.
Result<std::unique_ptr<Transport>> make_ucx_transport(const TransportOptions& options,
                                                      bool loopback_only,
                                                      UcxPuts puts = UcxPuts::messages,
                                                      UcxFamily family = UcxFamily::ipv4);

}  // namespace flow
