// Divides what GPUs measure among the attempts that hold them.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/attempt_usage.hpp"
#include "engine/worker/gpu_samples.hpp"
#include "engine/worker/report.hpp"

namespace flow {

/// A sample says how busy its GPU was since the sample before it. Each moment of that time is
/// divided among the attempts that held the GPU then, in proportion to the parts that they asked
/// for; one that is alone gets all of it. Energy is the difference of two readings of the GPU's
/// counter, or, where it has none, its power times the time.
///
/// Times are of the monotonic clock and do not decrease.
class GpuAccounts {
 public:
  /// `part` of each GPU, above 0.
  void begin(const RankId& id, const std::vector<std::string>& uuids, double part, int64_t now_us);
  void end(const RankId& id, int64_t now_us);
  /// The readings of a GPU at this time.
  void add(const GpuSample& sample, int64_t at_us);
  /// What a rank that has ended used, which is then forgotten. The time since the newest sample
  /// counts as that sample; what was never measured is unknown.
  core::AttemptUsage take(const RankId& id);

  bool has(const RankId& id) const { return accounts_.contains(id); }
  /// Whether a GPU of the rank has not been measured since this time.
  bool lacks_sample_since(const RankId& id, int64_t us) const;
  /// The GPUs that attempts hold, or have ended with and not been taken.
  std::vector<std::string> gpus() const;

 private:
  struct Account {
    std::vector<std::string> uuids;
    double part = 1;
    bool has_ended = false;
    // Microseconds and millijoules.
    double used_us = 0, measured_us = 0, energy_mj = 0;
    bool has_use = false, has_energy = false;
  };
  /// A time in which the same attempts hold a GPU.
  struct Span {
    int64_t from_us = 0, to_us = 0;
    std::vector<std::pair<RankId, double>> holders;
  };
  struct Device {
    int64_t since_us = 0;  // of what follows
    std::vector<std::pair<RankId, double>> holders;
    std::vector<Span> spans;  // since the newest sample
    std::optional<GpuSample> newest;
    int64_t newest_us = 0;
  };

  static void close_span(Device& device, int64_t now_us);
  /// Adds the spans to the accounts; to one account if `only` is not null.
  void divide(const Device& device, const GpuSample& sample, std::optional<double> energy_mj,
              const RankId* only = nullptr);
  /// Forgets GPUs that no account names any more.
  void release(const Account& account);

  std::map<RankId, Account> accounts_;
  std::map<std::string, Device> devices_;
};

}  // namespace flow
