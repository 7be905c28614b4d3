#include "tests/sim/engine_reports.hpp"

#include <utility>

namespace flow::sim {

namespace {

Report report_of(Report::Kind kind, const RankId& rank) {
  Report report{};
  report.kind = kind;
  report.id = rank.attempt;
  report.rank = rank.rank;
  return report;
}

Report end_of(const RankId& rank, Report::Outcome outcome) {
  Report report = report_of(Report::Kind::finished, rank);
  report.outcome = outcome;
  return report;
}

}  // namespace

Report success_report(const RankId& rank, std::string value, int64_t duration_us, bool waited) {
  Report report = end_of(rank, Report::Outcome::succeeded);
  report.value = std::move(value);
  report.duration_us = duration_us;
  report.waited = waited;
  return report;
}

Report failure_report(const RankId& rank, core::Cause cause, std::string message) {
  Report report = end_of(rank, Report::Outcome::failed);
  report.failure.cause = cause;
  report.failure.message = std::move(message);
  return report;
}

Report stopped_report(const RankId& rank) { return end_of(rank, Report::Outcome::stopped); }

Report waiting_report(const RankId& rank, std::string signal, int64_t timeout_ms) {
  Report report = end_of(rank, Report::Outcome::waiting);
  report.signal = std::move(signal);
  report.wait_name = "wait";
  report.wait_timeout_ms = timeout_ms;
  return report;
}

Report requeued_report(const RankId& rank) { return report_of(Report::Kind::requeued, rank); }

Report ready_report(const RankId& rank, std::string url) {
  Report report = report_of(Report::Kind::ready, rank);
  report.text = std::move(url);
  return report;
}

Report log_report(const RankId& rank, std::string text, core::Time at) {
  Report report = report_of(Report::Kind::log, rank);
  report.text = std::move(text);
  report.at = at;
  return report;
}

Report saved_report(const RankId& rank, std::string name, std::string value) {
  Report report = report_of(Report::Kind::saved, rank);
  report.text = std::move(name);
  report.value = std::move(value);
  return report;
}

std::optional<std::string> saved_name(const Report& report) {
  if (report.kind != Report::Kind::saved) return std::nullopt;
  return report.text;
}

bool is_end_report(const Report& report) {
  return report.kind == Report::Kind::finished || report.kind == Report::Kind::requeued;
}

bool ends_attempt(const Report& report) { return is_end_report(report) && report.rank == 0; }

}  // namespace flow::sim
