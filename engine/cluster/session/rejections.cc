#include "engine/cluster/session/rejections.hpp"

#include <fmt/format.h>

namespace flow::cluster {

std::optional<std::string> Refusals::add(const std::string& address, const std::string& why,
                                         int64_t now_us) {
  std::erase_if(hosts_, [&](const auto& host) {
    return host.second.held_back == 0 && now_us - host.second.at_us >= kRefusalPeriodUs;
  });
  std::string host = address.substr(0, address.rfind(':'));
  if (!hosts_.contains(host) && hosts_.size() >= kRefusalHostsMax) host = "other hosts";
  auto [found, is_new] = hosts_.try_emplace(host);
  Told& told = found->second;
  if (!is_new && now_us - told.at_us < kRefusalPeriodUs) {
    told.held_back++;
    return std::nullopt;
  }
  std::string text = why;
  if (told.held_back > 0)
    text +=
        fmt::format(" ({} more of {} were refused since the last report)", told.held_back, host);
  told = {now_us, 0};
  return text;
}

}  // namespace flow::cluster
