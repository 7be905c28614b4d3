// Limits of transfers, and how a caller stops them.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "engine/base/environment_variables.hpp"
#include "flow/result.hpp"

namespace flow::fetch {

struct FetchOptions {
  uint32_t retries = 5;      // failed attempts in sequence without progress, before giving up
  int64_t backoff_ms = 500;  // before the first retry; doubles after that, with jitter
  int64_t backoff_ms_max = 20'000;
  int64_t stall_s = 30;      // to connect, and without a byte, until an attempt has failed
  int64_t exchange_ms = 0;   // until an attempt has failed, even if bytes arrive; 0: no limit
  uint32_t connections = 4;  // parallel ranges of one object, and parts of one upload
  uint64_t range_bytes = 16 << 20;  // least size of a range or part
  std::string ca_file;              // certificates of authorities; "": the system's
  /// Called often, by any thread of a transfer; its error ends the transfer.
  std::function<Status()> check_running = [] { return Status(); };
};

/// The defaults, changed by FLOW_FETCH_RETRIES, FLOW_FETCH_STALL, FLOW_FETCH_CONNECTIONS
/// and SSL_CERT_FILE.
Result<FetchOptions> read_fetch_options(const EnvironmentVariables& environment);

}  // namespace flow::fetch
