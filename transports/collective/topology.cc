#include "transports/collective/topology.hpp"

#include <algorithm>

namespace flow::collective {

Topology::Topology(const std::vector<std::string>& names) {
  std::vector<std::string> seen;
  for (size_t rank = 0; rank < names.size(); rank++) {
    auto found = std::find(seen.begin(), seen.end(), names[rank]);
    auto node = static_cast<size_t>(found - seen.begin());
    if (found == seen.end()) {
      seen.push_back(names[rank]);
      nodes.emplace_back();
    }
    nodes[node].push_back(static_cast<int>(rank));
    node_of.push_back(static_cast<int>(node));
  }
}

std::vector<int> Topology::leaders() const {
  std::vector<int> first;
  for (const auto& node : nodes) first.push_back(node.front());
  return first;
}

}  // namespace flow::collective
