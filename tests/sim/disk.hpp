// A disk of the simulation: an ordered log of bytes, one record per commit. What was synced stays;
// the rest of the log may be cut at any byte when the machine loses power.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "engine/store/store.hpp"
#include "tests/sim/random.hpp"

namespace flow::sim {

/// Thrown where the head's process ends in the middle of what it does.
struct HeadCrash {};

/// What happens to one commit.
enum class DiskFault : uint8_t { none, fails, crash_before, crash_within, crash_after };

class Disk {
 public:
  using Rows = std::map<std::string, std::string, std::less<>>;
  /// `fault` decides about each commit. `on_durable` gets each batch, in order, when no crash can
  /// take it back any more.
  Disk(Random& random, std::function<DiskFault()> fault,
       std::function<void(const Batch&)> on_durable);

  /// Throws HeadCrash where the fault is a crash.
  Status commit(const Batch& batch, bool sync);
  /// As a process of the running machine reads them.
  const Rows& rows(Family family) const { return rows_[static_cast<size_t>(family)]; }
  /// After the head's process has ended: keeps the whole records of the log. If the power was cut,
  /// what was not synced ends at any byte.
  void restart(bool is_power_cut);
  /// Removes a row for good, as if somebody had deleted it. After restart().
  void lose(Family family, std::string key);

 private:
  void apply(const Batch& batch);
  void report_durable(size_t end);

  static constexpr size_t kFamilies = 8;
  Random& random_;
  const std::function<DiskFault()> fault_;
  const std::function<void(const Batch&)> on_durable_;
  std::string log_;
  size_t synced_ = 0;  // bytes of log_ that no crash takes
  Rows rows_[kFamilies];
  std::deque<std::pair<size_t, Batch>> undurable_;  // with the end of each in log_
};

/// A store over `disk`, which outlives it.
std::unique_ptr<Store> make_disk_store(Disk& disk);

}  // namespace flow::sim
