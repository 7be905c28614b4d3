// What a head, its workers and its clients have in common: how their sessions are, and over what
// they run.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "engine/cluster/session/session.hpp"
#include "flow/transport.hpp"

namespace flow {

/// This machine's name, as one that a node can have.
std::string machine_name();
/// Of this process as a node of that name. With the secret of the file, which is made where there
/// is none and `makes_secret`.
Result<cluster::SessionOptions> session_options(cluster::Role role, const std::string& name,
                                                const std::string& secret_file, bool makes_secret);
/// An address of this machine at which others may reach it. `v4_only`: what listens at 0.0.0.0 is
/// reached by IPv4 alone.
Result<std::string> own_address(bool v4_only = false);
/// "HOST:PORT" with the number of a host's name.
Result<std::string> numeric_address(const std::string& text);
/// Of one that listens everywhere, where others reach it.
Result<std::string> address_for_others(const std::string& listens);
/// The same, or a loopback address if this machine has no other: then only processes of this
/// machine can connect.
std::string address_for_users(const std::string& listens);
/// Makes the transport for a process that listens at this address or connects to it. The engine's
/// entry points pass it in: cluster_transport() of engine/api.
using TransportFactory = std::function<Result<std::unique_ptr<Transport>>(
    const std::string& address, const cluster::SessionOptions& session)>;

}  // namespace flow
