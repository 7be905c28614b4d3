// Finds the rank that holds up a gang that hangs.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <tuple>

#include "flow/collective.hpp"

namespace flow {
namespace {

constexpr size_t kNamedMax = 8;

bool is_waiting(const std::optional<RankProgress>& rank_progress) {
  return rank_progress && (rank_progress->is_inside || rank_progress->message);
}

std::string collective_text(const RankProgress& rank_progress) {
  return fmt::format("{} #{}", collective_name(rank_progress.what), rank_progress.number);
}

/// Where a waiting rank waits.
std::string wait_text(const RankProgress& rank_progress) {
  if (rank_progress.message)
    return fmt::format("{} {} rank {}", collective_name(*rank_progress.message),
                       *rank_progress.message == Collective::send ? "to" : "from",
                       rank_progress.peer);
  return collective_text(rank_progress);
}

/// A rank's task ends with the collective leave.
std::string reached_text(const RankProgress& rank_progress) {
  bool is_end = !rank_progress.message && rank_progress.what == Collective::leave;
  return is_end ? "its end, for which" : fmt::format("{}, in which", wait_text(rank_progress));
}

std::string last_text(const std::optional<RankProgress>& rank_progress) {
  if (!rank_progress) return "it does not answer";
  if (rank_progress->number == 0) return "it has called no collective";
  return "its last was " + collective_text(*rank_progress);
}

bool is_behind(const std::optional<RankProgress>& rank, const RankProgress& place) {
  return !rank || rank->number < place.number;
}

}  // namespace

std::string encode_rank_progress(const RankProgress& rank_progress) {
  return fmt::format("{} {} {} {} {}", rank_progress.number, static_cast<int>(rank_progress.what),
                     rank_progress.is_inside ? 1 : 0,
                     rank_progress.message ? static_cast<int>(*rank_progress.message) : -1,
                     rank_progress.peer);
}

std::optional<RankProgress> decode_rank_progress(std::string_view bytes) {
  constexpr size_t kBytesMax = 64;
  unsigned long long number = 0;
  int what = 0, is_inside = 0, message = 0, peer = 0, end = 0;
  std::string text(bytes.substr(0, kBytesMax));
  bool is_read = std::sscanf(text.c_str(), "%llu %d %d %d %d%n", &number, &what, &is_inside,
                             &message, &peer, &end) == 5 &&
                 static_cast<size_t>(end) == bytes.size();
  if (!is_read || what < 0 || what >= kCollectives || message >= kCollectives || peer < 0 ||
      peer >= kRanksMax)
    return std::nullopt;
  RankProgress rank_progress{number, static_cast<Collective>(what), is_inside != 0, std::nullopt,
                             peer};
  if (message >= 0) rank_progress.message = static_cast<Collective>(message);
  return rank_progress;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  size_t named = ranks.size() <= kNamedMax + 1 ? ranks.size() : kNamedMax;
  for (size_t i = 0; i < named; i++) {
    const char* before = i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ";
    text += before + std::to_string(ranks[i]);
  }
  if (named < ranks.size()) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
}

std::string hang_text(const std::vector<std::optional<RankProgress>>& ranks) {
  std::map<std::string, std::vector<int>> places;  // calls in which ranks wait
  std::vector<int> others;
  for (size_t i = 0; i < ranks.size(); i++) {
    int rank = static_cast<int>(i);
    if (is_waiting(ranks[i]))
      places[wait_text(*ranks[i])].push_back(rank);
    else
      others.push_back(rank);
  }
  bool has_no_progress =
      std::none_of(ranks.begin(), ranks.end(), [](const auto& rank) { return !!rank; });
  if (has_no_progress) return "";
  if (places.empty()) return "no rank waits for another: each runs its own code";
  if (others.empty()) {
    std::string text;
    for (const auto& [place, there] : places)
      text += fmt::format("{}{} wait{} in {}", text.empty() ? "" : ", ", ranks_text(there),
                          there.size() == 1 ? "s" : "", place);
    return places.size() == 1 ? text + ", which does not return"
                              : "the ranks wait for each other: " + text;
  }
  auto late_for = [&](const std::vector<int>& there) {
    const RankProgress& place = *ranks[static_cast<size_t>(there.front())];
    std::vector<int> late;
    std::copy_if(others.begin(), others.end(), std::back_inserter(late), [&](int rank) {
      return place.message ? rank == place.peer
                           : is_behind(ranks[static_cast<size_t>(rank)], place);
    });
    return late;
  };
  auto weight = [&](const std::vector<int>& there) {
    return std::tuple(!late_for(there).empty(), there.size(), -there.front());
  };
  const std::vector<int>* most = &places.begin()->second;
  for (const auto& [place, there] : places)
    if (weight(there) > weight(*most)) most = &there;
  const RankProgress& place = *ranks[static_cast<size_t>(most->front())];
  std::vector<int> late = late_for(*most);
  if (late.empty()) late = others;
  bool is_one = late.size() == 1;
  std::string text =
      fmt::format("{} hang{}: {} not reached {} {} wait{}", ranks_text(late), is_one ? "s" : "",
                  is_one ? "it has" : "they have", reached_text(place), ranks_text(*most),
                  most->size() == 1 ? "s" : "");
  for (size_t i = 0; i < std::min(late.size(), kNamedMax); i++) {
    std::string last = last_text(ranks[static_cast<size_t>(late[i])]);
    text += is_one ? "; " + last : fmt::format("; rank {}: {}", late[i], last);
  }
  return text;
}

}  // namespace flow
