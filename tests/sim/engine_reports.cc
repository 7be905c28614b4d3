#include "tests/sim/engine_reports.hpp"

#include <utility>

#include "engine/blobs/checkpoint.hpp"
#include "engine/value/cbor.hpp"

namespace flow::sim {

namespace {

template <typename Body>
Report report_of(const RankId& rank, Body body) {
  Report report;
  report.id = rank.attempt;
  report.rank = rank.rank;
  report.body = std::move(body);
  return report;
}

TaskFinished end_of(TaskFinished::Outcome outcome) {
  TaskFinished finished;
  finished.outcome = outcome;
  return finished;
}

}  // namespace

Report success_report(const RankId& rank, std::string value, int64_t duration_us, bool waited,
                      std::string calls) {
  TaskFinished finished = end_of(TaskFinished::Outcome::succeeded);
  finished.value = std::move(value);
  finished.duration_us = duration_us;
  finished.waited = waited;
  finished.fragment = std::move(calls);
  return report_of(rank, std::move(finished));
}

Report failure_report(const RankId& rank, core::Cause cause, std::string message) {
  TaskFinished finished = end_of(TaskFinished::Outcome::failed);
  finished.failure.cause = cause;
  finished.failure.message = std::move(message);
  return report_of(rank, std::move(finished));
}

Report stopped_report(const RankId& rank) {
  return report_of(rank, end_of(TaskFinished::Outcome::stopped));
}

Report waiting_report(const RankId& rank, std::string signal, int64_t timeout_ms) {
  TaskFinished finished = end_of(TaskFinished::Outcome::waiting);
  finished.signal = std::move(signal);
  finished.wait_name = "wait";
  finished.wait_timeout_ms = timeout_ms;
  return report_of(rank, std::move(finished));
}

Report requeued_report(const RankId& rank) { return report_of(rank, TaskRequeued()); }

Report address_report(const RankId& rank, std::string address) {
  return report_of(rank, RankAddressReported{std::move(address)});
}

Report ready_report(const RankId& rank, std::string url) {
  return report_of(rank, ServiceReported{std::move(url)});
}

Report log_report(const RankId& rank, std::string text, core::Time at) {
  LogLines lines;
  lines.text = std::move(text);
  Report report = report_of(rank, std::move(lines));
  report.at = at;
  return report;
}

Report saved_report(const RankId& rank, std::string name, std::string value) {
  if (name.empty()) {
    std::string row = encode_checkpoint_row({decode_value(value).value(), "", {}}, Value());
    return report_of(rank, CheckpointReported{std::move(row), {}});
  }
  return report_of(rank, StepReported{std::move(name), std::move(value), {}});
}

bool ends_attempt(const Report& report) {
  return report.rank == 0 && (report.is<TaskFinished>() || report.is<TaskRequeued>());
}

std::string report_text(const Report& report) {
  constexpr const char* kKinds[] = {"lines",      "progress", "a metric",     "a checkpoint",
                                    "a step",     "its end",  "its requeue",  "its url",
                                    "an address", "a peer",   "rank progress"};
  return kKinds[report.body.index()];
}

}  // namespace flow::sim
