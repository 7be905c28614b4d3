#include "engine/cluster/session/rejections.hpp"

#include <fmt/format.h>

namespace flow::cluster {

std::optional<std::string> RejectionLog::add(const std::string& address, const std::string& why,
                                             int64_t now_us) {
  std::erase_if(hosts_, [&](const auto& host) {
    return host.second.suppressed == 0 && now_us - host.second.at_us >= kRejectionPeriodUs;
  });
  std::string host = address.substr(0, address.rfind(':'));
  if (!hosts_.contains(host) && hosts_.size() >= kRejectionHostsMax) host = "other hosts";
  auto [found, is_new] = hosts_.try_emplace(host);
  HostRecord& record = found->second;
  if (!is_new && now_us - record.at_us < kRejectionPeriodUs) {
    record.suppressed++;
    return std::nullopt;
  }
  std::string text = why;
  if (record.suppressed > 0)
    text += fmt::format(" ({} more of {} were rejected since the last report)", record.suppressed,
                        host);
  record = {now_us, 0};
  return text;
}

}  // namespace flow::cluster
