// The node of each rank.
#pragma once
#include <string>
#include <vector>

namespace flow::collective {

struct Topology {
  std::vector<std::vector<int>> nodes;  // ranks in order; nodes in the order of their first rank
  std::vector<int> node_of;             // by rank

  explicit Topology(const std::vector<std::string>& names);
  bool is_one_node() const { return nodes.size() == 1; }
  bool is_one_rank_per_node() const { return nodes.size() == node_of.size(); }
  std::vector<int> leaders() const;
};

}  // namespace flow::collective
