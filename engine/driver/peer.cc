#include "engine/driver/peer.hpp"

#include <unistd.h>

#include <climits>

#include "engine/base/address.hpp"
#include "engine/cluster/nodes/messages.hpp"
#include "engine/cluster/secret.hpp"
#include "engine/cluster/session_link.hpp"
#include "flow/flow.hpp"
#include "transports/ucx/ucx.hpp"

namespace flow {

std::string machine_name() {
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "node";
  std::string text(name);
  for (char& letter : text) {
    if (!cluster::is_node_name({&letter, 1})) letter = '-';
  }
  return cluster::is_node_name(text) ? text : "node";
}

Result<cluster::SessionOptions> session_options(cluster::Role role, const std::string& name,
                                                const std::string& secret_file, bool makes_secret) {
  cluster::SessionOptions options;
  options.role = role;
  options.node = name;
  options.version = version();
  options.schema = cluster::kMessagesSchema;
  auto secret =
      makes_secret ? cluster::read_or_make_secret(secret_file) : cluster::read_secret(secret_file);
  FLOW_TRY(secret);
  options.secret = std::make_shared<const cluster::Secret>(std::move(*secret));
  FLOW_TRY(cluster::check(options));
  return options;
}

Result<std::unique_ptr<Transport>> transport_for(const std::string& address,
                                                 const cluster::SessionOptions& session) {
  auto parsed = parse_address(address);
  FLOW_TRY(parsed);
  TransportOptions options;
  options.deadline_ms = session.lost_after_ms + cluster::kLinkAfterSessionMs;
  if (session.secret) options.key = keyed_hash(*session.secret, {"flow door key, 1"}).view();
  return make_ucx_transport(options, is_loopback(parsed->host));
}

}  // namespace flow
