// The versions of a service in its front, and the share of the requests that each gets.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/serve/api_keys.hpp"
#include "engine/serve/service_version.hpp"

namespace flow {

/// Percent of the requests by version; a version that is not named gets none.
using TrafficWeights = std::map<std::string, uint32_t>;

/// Only the loop's thread uses it.
class VersionSet {
 public:
  static constexpr size_t kVersionsMax = 8;

  struct Entry {
    std::shared_ptr<ServiceVersion> version;
    ApiKeys keys;
    uint32_t percent = 0;
    int64_t credit = 0;  // of the smooth weighted round robin
  };

  /// The first version gets all requests, and a later one none before set_traffic(). With weights
  /// of an earlier front each gets what they say.
  ServiceVersion& add(std::shared_ptr<ServiceVersion> version);
  /// If replicas still have requests of it, these end as they would otherwise, and those that are
  /// to run again go to the versions that stay.
  void remove(const ServiceVersion& version);
  /// Null if there is none of this id.
  ServiceVersion* find(const std::string& id) const;
  /// Null if the replica is of none.
  ServiceVersion* find(const FrontReplica& replica) const;
  const std::vector<Entry>& all() const { return entries_; }
  /// The run of the version was resumed with these options. From now on callers need one of their
  /// keys.
  void set_options(ServiceVersion& version, ServiceOptions options);

  void set_traffic(TrafficWeights weights);
  /// Before the first version: those of an earlier front. If none of its versions that had requests
  /// has joined by `until`, and others have, the weights are dropped, and the oldest gets all
  /// requests.
  void restore_traffic(TrafficWeights weights, ServiceVersion::Clock::time_point until);
  /// The version of a new request: by weight among those with replicas that stay, if there are any.
  /// If none of them has a weight it is the oldest. Null without versions.
  std::shared_ptr<ServiceVersion> choose();
  /// The one with the highest weight, which speaks for the service; null without versions.
  const Entry* primary() const;
  /// Hands the waiting requests of a version without replicas to others that have some.
  void relieve(ServiceVersion& version);

  /// Error (user) unless a path's model and version, which may be "", are those of the service.
  static Status check_model(const std::string& name, const std::string& model,
                            const std::string& version);

  bool has_replicas() const;
  /// Whether callers of any version need a key.
  bool has_keys() const;
  /// Whether another version than this one has replicas that stay.
  bool has_staying_besides(const ServiceVersion& version) const;
  bool is_ready() const;
  ServiceVersion::Clock::time_point next_event() const;
  void run_due(ServiceVersion::Clock::time_point now);

  /// For Prometheus, each version apart. A front that drains is not ready.
  std::string metrics_text(bool is_draining) const;
  /// Of all versions, also of those that have ended.
  ServiceMetrics total() const;

 private:
  void drop_retired();
  void drop_restored();

  std::vector<Entry> entries_;  // up to kVersionsMax, in the order of add()
  TrafficWeights traffic_;      // the caller bounds it
  bool is_traffic_set_ = false;
  // While traffic_ is of an earlier front, and no version has joined to which it gives requests.
  std::optional<ServiceVersion::Clock::time_point> restored_until_;
  // Removed ones whose requests have not ended: the ends of the replicas' processes end them.
  std::vector<std::shared_ptr<ServiceVersion>> retired_;
  ServiceMetrics ended_;  // of versions that were removed, but for retired_
};

}  // namespace flow
