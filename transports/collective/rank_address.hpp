// Where the other ranks of a gang find a rank, and its text form.
#pragma once
#include <string>

namespace flow::collective {

struct RankAddress {
  int rank = 0, ranks = 0;  // `ranks`: size of the gang
  int pid = 0;
  int descriptor = -1;  // of the shared memory, in the rank's process; -1: none
  std::string started;  // start time of the process by /proc, because process ids are reused
  std::string node;     // ranks with the same text share a machine
  std::string link;     // address for ranks on other nodes; "": reachable on its node only
};

/// The text has one line per field.
std::string text_of(const RankAddress& rank_address);
/// Returns false if the text is not a valid address; the content of `out` is then unspecified.
bool parse_rank_address(const std::string& text, RankAddress& out);

}  // namespace flow::collective
