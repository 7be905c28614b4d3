// Which refusals of peers are told: from each host one at once, and then one a minute with how many
// there were. Whoever knocks all the time fills no log, and hides nobody else. Pure.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace flow::cluster {

constexpr int64_t kRejectionPeriodUs = 60'000'000;
constexpr size_t kRejectionHostsMax = 256;  // told apart at a time; those beyond count as one

class RejectionLog {
 public:
  /// What to tell of this one, or nothing. `address` is the peer's: "10.0.0.7:41231 (tcp)".
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
