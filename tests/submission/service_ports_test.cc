// Services of one graph must not listen at the same port.
#include "engine/submission/service_ports.hpp"

#include <catch2/catch.hpp>
#include <string>

using namespace flow;
using Catch::Contains;

namespace {

TaskDef service_at(const std::string& name, uint16_t port, int32_t grpc = -1,
                   const std::string& address = "") {
  TaskDef def;
  def.name = name;
  def.kind = TaskKind::service;
  def.file = "p.lua";
  def.line = 3;
  def.service.port = port;
  def.service.grpc_port = grpc;
  def.service.address = address;
  return def;
}

/// A graph that calls each service once.
Plan graph_of(std::vector<TaskDef> defs) {
  Plan plan;
  plan.defs = std::move(defs);
  for (uint32_t def = 0; def < plan.defs.size(); def++) {
    TaskNode& node = plan.nodes.emplace_back();
    node.name = plan.defs[def].name;
    node.def = def;
  }
  return plan;
}

std::string port_problem(const Plan& plan) {
  std::vector<Error> errors;
  check_service_ports(plan, errors);
  std::string text;
  for (const Error& error : errors) text += error.message + "\n";
  return text;
}

}  // namespace

TEST_CASE("two services at one port are an error that names both") {
  CHECK(port_problem(graph_of({service_at("a", 8080), service_at("b", 8080)})) ==
        "p.lua:3: the service `b` has port 8080 (`listen`), at which the service `a` listens too "
        "(`listen`): give one of them another port, or 0 for a free one\n");
  CHECK_THAT(port_problem(graph_of({service_at("a", 8080), service_at("b", 0, 8080)})),
             Contains("`b` has port 8080 (`grpc`)"));
  CHECK_THAT(port_problem(graph_of(
                 {service_at("a", 8080, -1, "127.0.0.2"), service_at("b", 8080, -1, "0.0.0.0")})),
             Contains("`b` has port 8080"));
  Plan twice = graph_of({service_at("a", 8080)});
  twice.nodes.push_back(twice.nodes[0]);
  twice.nodes[1].name = "a#2";
  CHECK_THAT(port_problem(twice), Contains("the service `a#2` has port 8080"));
}

TEST_CASE("services at different ports, addresses or branches can listen together") {
  CHECK(port_problem(graph_of({service_at("a", 8080, 8081), service_at("b", 8082, 8083)})) == "");
  CHECK(port_problem(graph_of({service_at("a", 0, 0), service_at("b", 0, 0)})) == "");
  CHECK(port_problem(graph_of({service_at("a", 8080, -1, "127.0.0.2"), service_at("b", 8080)})) ==
        "");
  Plan plan = graph_of({service_at("a", 8080), service_at("b", 8080)});
  TaskNode& when = plan.nodes.emplace_back();
  when.kind = NodeKind::when;
  plan.nodes[0].guard = {2, true};
  plan.nodes[1].guard = {2, true};
  CHECK_THAT(port_problem(plan), Contains("port 8080"));
  plan.nodes[1].guard.then_branch = false;
  CHECK(port_problem(plan) == "");
}
