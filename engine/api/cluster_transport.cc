#include "engine/api/cluster_transport.hpp"

#include "engine/base/address.hpp"
#include "engine/cluster/session/session_link.hpp"
#include "transports/ucx/ucx.hpp"

namespace flow {

namespace {

/// The address family for a process that listens at this address or connects to it. For a wildcard
/// address it is the family of the address that is printed for other machines.
UcxFamily family_of(const std::string& address) {
  auto reached = address_for_others(address);
  if (!reached.ok()) return UcxFamily::ipv4;
  auto there = parse_address(*reached);
  auto own = there.ok() ? local_host_for(*there) : Result<std::string>(there.error());
  bool is_ipv6 = own.ok() && own->find(':') != std::string::npos;
  return is_ipv6 ? UcxFamily::ipv6 : UcxFamily::ipv4;
}

}  // namespace

Result<std::unique_ptr<Transport>> cluster_transport(const std::string& address,
                                                     const cluster::SessionOptions& session) {
  auto parsed = parse_address(address);
  FLOW_TRY(parsed);
  TransportOptions options;
  options.deadline_ms = session.lost_after_ms + cluster::kLinkAfterSessionMs;
  if (session.secret) options.key = keyed_hash(*session.secret, {"flow door key, 1"}).view();
  return make_ucx_transport(options, is_loopback(parsed->host), UcxPuts::messages,
                            family_of(address));
}

}  // namespace flow
