// The address of a rank, as text.
#pragma once
#include <string>

namespace flow::collective {

struct RankAddress {
  int rank = 0, ranks = 0, pid = 0, descriptor = -1;
  std::string started;  // start time of the process, because process ids are reused
  std::string node;
  std::string link;  // empty: reachable on its node only
};

/// One line per field.
std::string text_of(const RankAddress& rank_address);
/// False if the text is not a valid address.
bool parse_rank_address(const std::string& text, RankAddress& out);

}  // namespace flow::collective
