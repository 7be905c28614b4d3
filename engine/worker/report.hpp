// What a worker reports of its attempts: one type per kind of report.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/core/types.hpp"

namespace flow {

/// What one executor runs: one rank of an attempt.
struct RankId {
  core::AttemptId attempt;
  uint32_t rank = 0;
  auto operator<=>(const RankId&) const = default;
};

/// A rank that a worker offers to a head when it joins.
struct RankOffer {
  RankId rank;
  bool has_ended = false;  // its end was reported, or the report follows; otherwise it runs
  auto operator<=>(const RankOffer&) const = default;
};

/// Lines that an attempt logged or printed.
struct LogLines {
  uint32_t stream = 0;  // 0 ctx:log, 1 stdout, 2 stderr
  std::string text;
  size_t cost = 0;  // for Worker::ack_logs
};

struct ProgressReported {
  double fraction = 0;
  std::string metrics;  // canonical bytes, or ""
};

struct MetricReported {
  std::string name;
  double value = 0;
  int64_t step = 0;
  size_t cost = 0;  // for Worker::ack_logs
};

/// `ctx:checkpoint`. The head commits `value` and `blobs` with the event.
struct CheckpointReported {
  std::string value;  // canonical bytes
  std::vector<std::pair<Digest, std::string>> blobs;
};

/// `ctx:step`. The head commits `value` and `blobs` with the event.
struct StepReported {
  std::string name;   // not empty
  std::string value;  // canonical bytes
  std::vector<std::pair<Digest, std::string>> blobs;
};

/// The end of a rank. The head commits `value`, `fragment` and `blobs` with the event.
struct TaskFinished {
  enum class Outcome : uint8_t { succeeded, failed, waiting, stopped } outcome = Outcome::succeeded;
  std::string value;  // canonical bytes
  std::vector<std::pair<Digest, std::string>> blobs;
  std::string fragment;  // of a dynamic task: its calls, encoded
  bool waited = false;   // ctx:wait was called
  core::Failure failure;
  bool of_gang = false;           // all ranks failed together, for the reason in the message
  std::string signal, wait_name;  // for `waiting`
  int64_t wait_timeout_ms = -1;   // for `waiting`; below 0: none
  int64_t duration_us = 0;
  int32_t pid = 0;
  core::AttemptUsage usage{};
  /// By this machine's monotonic clock, if it came from an executor of this machine; 0: unknown.
  /// The time from here to the record of the event is added to `usage.commit_us`.
  int64_t received_us = 0;
};

/// The rank has not begun and returns to the ready queue.
struct TaskRequeued {};

/// A service answers requests.
struct ServiceReported {
  std::string url;
};

/// How the other ranks of its gang reach a rank.
struct RankAddressReported {
  std::string address;
};

/// How this rank saw another rank end.
struct PeerFailureReported {
  std::string text;
};

/// The collective call that a rank is in.
struct RankProgressReported {
  std::string progress;  // an encoded RankProgress
};

struct Report {
  core::AttemptId id;
  uint32_t rank = 0;  // of a gang; else 0
  core::Time at = 0;  // wall clock, ms: of log lines, metrics and ends; 0 if unknown
  std::variant<LogLines, ProgressReported, MetricReported, CheckpointReported, StepReported,
               TaskFinished, TaskRequeued, ServiceReported, RankAddressReported,
               PeerFailureReported, RankProgressReported>
      body;

  RankId rank_id() const { return {id, rank}; }
  /// The body if it is of this kind; else null.
  template <typename Body>
  Body* as() {
    return std::get_if<Body>(&body);
  }
  template <typename Body>
  const Body* as() const {
    return std::get_if<Body>(&body);
  }
  template <typename Body>
  bool is() const {
    return std::holds_alternative<Body>(body);
  }
};

}  // namespace flow
