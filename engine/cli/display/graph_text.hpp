// A plan's graph as text: dot, mermaid, JSON. Pure.
#pragma once
#include <string>

#include "flow/flow.hpp"

namespace flow::cli {

std::string graph_dot(const PlanInfo& plan);
std::string graph_mermaid(const PlanInfo& plan);
std::string graph_json(const PlanInfo& plan);  // one line

}  // namespace flow::cli
