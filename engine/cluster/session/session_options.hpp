// Options that a head, its workers and its clients share: those of their sessions and transports.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "engine/cluster/session/session.hpp"
#include "flow/transport.hpp"

namespace flow {

/// This machine's host name, reduced to the characters of a worker's name.
std::string machine_name();
/// Session options for this process under that name, with the secret from the file. A missing file
/// is created if `makes_secret`.
Result<cluster::SessionOptions> session_options(cluster::Role role, const std::string& name,
                                                const std::string& secret_file, bool makes_secret);
/// An address at which other machines can reach this one. `v4_only`: a listener at 0.0.0.0 accepts
/// IPv4 only.
Result<std::string> own_address(bool v4_only = false);
/// Resolves the host name in "HOST:PORT".
Result<std::string> numeric_address(const std::string& text);
/// For a listener on all interfaces: an address that other machines can use.
Result<std::string> address_for_others(const std::string& listens);
/// The same; a loopback address if this machine has no other, so that only its own processes can
/// connect.
std::string address_for_users(const std::string& listens);
/// Makes the transport for a process that listens at this address or connects to it. The engine's
/// entry points pass it in: cluster_transport() of engine/api.
using TransportFactory = std::function<Result<std::unique_ptr<Transport>>(
    const std::string& address, const cluster::SessionOptions& session)>;

}  // namespace flow
