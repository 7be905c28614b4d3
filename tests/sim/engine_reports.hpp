// The reports of simulated attempts: the only file here that knows how a Report is made.
#pragma once
#include <string>

#include "engine/worker/report.hpp"

namespace flow::sim {

/// `calls`: of a dynamic task, as encode_fragment() has them.
Report success_report(const RankId& rank, std::string value, int64_t duration_us, bool waited,
                      std::string calls = "");
Report failure_report(const RankId& rank, core::Cause cause, std::string message);
Report stopped_report(const RankId& rank);
/// The attempt ended at ctx:wait. Below 0 it has no timeout.
Report waiting_report(const RankId& rank, std::string signal, int64_t timeout_ms);
Report requeued_report(const RankId& rank);
Report address_report(const RankId& rank, std::string address);
Report ready_report(const RankId& rank, std::string url);
Report log_report(const RankId& rank, std::string text, core::Time at);
/// A step, or where `name` is "" a checkpoint.
Report saved_report(const RankId& rank, std::string name, std::string value);

/// Whether its record ends the attempt as a whole.
bool ends_attempt(const Report& report);

/// For the trace.
std::string report_text(const Report& report);

}  // namespace flow::sim
