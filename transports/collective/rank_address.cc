#include "transports/collective/rank_address.hpp"

#include <fmt/format.h>

#include <charconv>
#include <sstream>
#include <vector>

namespace flow::collective {
namespace {

constexpr const char* kFormat = "flow-gang 1";
constexpr size_t kLines = 8;

bool read_number(const std::string& text, int& out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && out >= 0;
}

}  // namespace

std::string text_of(const RankAddress& rank_address) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n", kFormat, rank_address.rank,
                     rank_address.ranks, rank_address.pid, rank_address.descriptor,
                     rank_address.started, rank_address.node, rank_address.link);
}

bool parse_rank_address(const std::string& text, RankAddress& out) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  if (lines.size() != kLines || lines[0] != kFormat) return false;
  out.started = lines[5];
  out.node = lines[6];
  out.link = lines[7];
  return read_number(lines[1], out.rank) && read_number(lines[2], out.ranks) &&
         read_number(lines[3], out.pid) && read_number(lines[4], out.descriptor);
}

}  // namespace flow::collective
