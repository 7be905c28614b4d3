// Who holds up a gang that hangs.
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

bool waits(const std::optional<Standing>& standing) {
  return standing && (standing->is_inside || standing->message);
}

std::string collective_text(const Standing& standing) {
  return fmt::format("{} #{}", collective_name(standing.what), standing.number);
}

/// Where a rank that waits does so.
std::string place_text(const Standing& standing) {
  if (standing.message)
    return fmt::format("{} {} rank {}", collective_name(*standing.message),
                       *standing.message == Collective::send ? "to" : "from", standing.peer);
  return collective_text(standing);
}

/// A rank's task ends in leave.
std::string coming_text(const Standing& standing) {
  bool is_end = !standing.message && standing.what == Collective::leave;
  return is_end ? "its end, for which" : fmt::format("{}, in which", place_text(standing));
}

std::string last_text(const std::optional<Standing>& standing) {
  if (!standing) return "it says nothing";
  if (standing->number == 0) return "it has called no collective";
  return "its last was " + collective_text(*standing);
}

bool is_behind(const std::optional<Standing>& rank, const Standing& place) {
  return !rank || rank->number < place.number;
}

}  // namespace

std::string encode_standing(const Standing& standing) {
  return fmt::format("{} {} {} {} {}", standing.number, static_cast<int>(standing.what),
                     standing.is_inside ? 1 : 0,
                     standing.message ? static_cast<int>(*standing.message) : -1, standing.peer);
}

std::optional<Standing> decode_standing(std::string_view bytes) {
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
  Standing standing{number, static_cast<Collective>(what), is_inside != 0, std::nullopt, peer};
  if (message >= 0) standing.message = static_cast<Collective>(message);
  return standing;
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

std::string hang_text(const std::vector<std::optional<Standing>>& ranks) {
  std::map<std::string, std::vector<int>> places;  // where ranks wait
  std::vector<int> others;
  for (size_t i = 0; i < ranks.size(); i++) {
    int rank = static_cast<int>(i);
    if (waits(ranks[i]))
      places[place_text(*ranks[i])].push_back(rank);
    else
      others.push_back(rank);
  }
  bool is_silent =
      std::none_of(ranks.begin(), ranks.end(), [](const auto& rank) { return !!rank; });
  if (is_silent) return "";
  if (places.empty()) return "no rank waits for another: each is in what its own code does";
  if (others.empty()) {
    std::string text;
    for (const auto& [place, there] : places)
      text += fmt::format("{}{} wait{} in {}", text.empty() ? "" : ", ", ranks_text(there),
                          there.size() == 1 ? "s" : "", place);
    return places.size() == 1 ? text + ", which does not end"
                              : "the ranks wait for each other: " + text;
  }
  auto late_for = [&](const std::vector<int>& there) {
    const Standing& place = *ranks[static_cast<size_t>(there.front())];
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
  const Standing& place = *ranks[static_cast<size_t>(most->front())];
  std::vector<int> late = late_for(*most);
  if (late.empty()) late = others;
  bool is_one = late.size() == 1;
  std::string text =
      fmt::format("{} hang{}: {} not come to {} {} wait{}", ranks_text(late), is_one ? "s" : "",
                  is_one ? "it has" : "they have", coming_text(place), ranks_text(*most),
                  most->size() == 1 ? "s" : "");
  for (size_t i = 0; i < std::min(late.size(), kNamedMax); i++) {
    std::string last = last_text(ranks[static_cast<size_t>(late[i])]);
    text += is_one ? "; " + last : fmt::format("; rank {}: {}", late[i], last);
  }
  return text;
}

}  // namespace flow
