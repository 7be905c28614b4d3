// Links between processes over UCX: TCP, or InfiniBand between hosts.
#pragma once
#include <cstdint>
#include <memory>

#include "flow/transport.hpp"

namespace flow {

/// How host memory is put: in messages, which the other side copies, or by rendezvous. The former
/// is what UCX 1.13 does better; the latter is there to be tested and measured. A GPU's memory
/// always goes by rendezvous.
enum class UcxPuts : uint8_t { messages, rendezvous };

/// Which addresses UCX uses on a device that has both families, unless UCX_TCP_AF_PRIO is set. Both
/// ends of a link must use the same.
enum class UcxFamily : uint8_t { ipv4, ipv6 };

/// UCX is loaded at the first call. `loopback_only`: nothing listens beyond this machine, whatever
/// UCX_NET_DEVICES says.
Result<std::unique_ptr<Transport>> make_ucx_transport(const TransportOptions& options,
                                                      bool loopback_only,
                                                      UcxPuts puts = UcxPuts::messages,
                                                      UcxFamily family = UcxFamily::ipv4);

}  // namespace flow
