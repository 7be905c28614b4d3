#include "engine/submission/service_ports.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string>

namespace flow {

namespace {

/// A port at which a node of the graph listens.
struct ServicePort {
  const TaskNode& node;
  const TaskDef& def;
  uint16_t port;
  const char* option;
};

std::string address_of(const TaskDef& def) {
  return def.service.address.empty() ? "127.0.0.1" : def.service.address;
}

bool is_any(const std::string& address) { return address == "0.0.0.0" || address == "::"; }

bool overlap(const std::string& one, const std::string& other) {
  return one == other || is_any(one) || is_any(other);
}

std::vector<ServicePort> fixed_ports(const Plan& plan) {
  std::vector<ServicePort> ports;
  for (const TaskNode& node : plan.nodes) {
    if (node.kind == NodeKind::when) continue;
    const TaskDef& def = plan.defs[node.def];
    if (def.kind != TaskKind::service) continue;
    const ServiceSpec& service = def.service;
    if (service.port != 0) ports.push_back({node, def, service.port, "listen"});
    if (service.grpc_port > 0)
      ports.push_back({node, def, static_cast<uint16_t>(service.grpc_port), "grpc"});
  }
  return ports;
}

/// The branches that the node is in, by the node of their `flow.when`.
std::map<uint32_t, bool> branches_of(const Plan& plan, const TaskNode& node) {
  std::map<uint32_t, bool> branches;
  for (const Guard* guard = &node.guard; guard->when != kNoNode;
       guard = &plan.nodes[guard->when].guard)
    if (!branches.emplace(guard->when, guard->then_branch).second) break;
  return branches;
}

bool exclude_each_other(const Plan& plan, const TaskNode& one, const TaskNode& other) {
  auto branches = branches_of(plan, one);
  for (const auto& [when, then_branch] : branches_of(plan, other)) {
    auto same = branches.find(when);
    if (same != branches.end() && same->second != then_branch) return true;
  }
  return false;
}

}  // namespace

void check_service_ports(const Plan& plan, std::vector<Error>& errors) {
  std::vector<ServicePort> ports = fixed_ports(plan);
  for (size_t i = 0; i < ports.size(); i++) {
    for (size_t j = 0; j < i; j++) {
      const ServicePort &one = ports[j], &other = ports[i];
      bool collide = &one.node != &other.node && one.port == other.port &&
                     overlap(address_of(one.def), address_of(other.def)) &&
                     !exclude_each_other(plan, one.node, other.node);
      if (!collide) continue;
      errors.push_back(user_error(fmt::format(
          "{}:{}: the service `{}` has port {} (`{}`), at which the service `{}` listens too "
          "(`{}`): give one of them another port, or 0 for a free one",
          other.def.file, other.def.line, other.node.name, other.port, other.option, one.node.name,
          one.option)));
    }
  }
}

}  // namespace flow
