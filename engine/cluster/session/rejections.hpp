// Rate limit for log lines about rejected peers: per host one line immediately, then one per minute
// with the number of rejections. A peer that retries all the time neither floods the log nor hides
// others. Pure.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace flow::cluster {

constexpr int64_t kRejectionPeriodUs = 60'000'000;
// Hosts that are counted separately; further ones count as one.
constexpr size_t kRejectionHostsMax = 256;

class RejectionLog {
 public:
  /// The line to log for this rejection, or nothing. `address` is the peer's: "10.0.0.7:41231
  /// (tcp)".
  std::optional<std::string> add(const std::string& address, const std::string& why,
                                 int64_t now_us);

 private:
  struct HostRecord {
    int64_t at_us = 0;
    uint64_t suppressed = 0;
  };
  std::map<std::string, HostRecord> hosts_;  // up to kRejectionHostsMax
};

}  // namespace flow::cluster
