// What a rank's address says.
#pragma once
#include <string>

namespace flow::collective {

struct RankAddress {
  int rank = 0, ranks = 0, pid = 0, descriptor = -1;
  std::string started;  // of the process: a number is given again
  std::string node;
  std::string link;  // empty: it can be reached on its node alone
};

/// A line each.
std::string text_of(const RankAddress& rank_address);
/// False where it is none.
bool parse_rank_address(const std::string& text, RankAddress& out);

}  // namespace flow::collective
