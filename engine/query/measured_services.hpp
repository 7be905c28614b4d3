// The services of active runs, with how long their requests took.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/query/active_services.hpp"
#include "engine/query/reader_impl.hpp"
#include "flow/flow.hpp"

namespace flow {

struct MeasuredService {
  struct Bucket {
    int64_t up_to_us = 0;  // and longer than that of the bucket before; 0: the last, without limit
    uint64_t requests = 0;
  };
  ServiceInfo info;
  /// All answered requests since the front has had this version, by their duration: the histogram
  /// of its /metrics. Empty: no front answered, or it is of a build that does not tell.
  std::vector<Bucket> durations;
};

/// The services of the state's active runs, as Reader::services.
std::vector<ServiceInfo> services_of_state(const OpenedState& state, const AskFront& ask);
/// The same. Each front is asked once, and may take up to 5 s. Throws Failed.
std::vector<MeasuredService> measured_services(const EngineOptions& options);
/// With the durations that the front of the service reported.
MeasuredService measured_service(ServiceInfo info, const front::Status* front);

}  // namespace flow
