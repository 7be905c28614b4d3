// Receives a worker's reports in order: each waits until the blobs to which it refers are in the
// head's state, and later reports wait behind it.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/cluster/transfer/arrived_blobs.hpp"
#include "engine/cluster/transfer/blob_references.hpp"
#include "engine/cluster/transfer/blob_transfer.hpp"

namespace flow::cluster {

/// A report whose blobs are available.
struct ReceivedReport {
  Report report;
  uint64_t number = 0;
  bool is_replaced = false;           // by a failure, because its blobs could not be fetched
  std::vector<std::string> placed;    // files to which only this report refers
  std::vector<std::string> obsolete;  // files without references once it is committed
};

/// Serves one session. Thread-safe.
class ReportReceiver : public std::enable_shared_from_this<ReportReceiver> {
 public:
  using Fetch = std::function<void(const BlobInfo&, OnFetched)>;
  using Deliver = std::function<void(ReceivedReport)>;
  /// `arrived`: the blobs that `fetch` has downloaded.
  ReportReceiver(std::shared_ptr<BlobCache> store, Fetch fetch,
                 std::shared_ptr<ArrivedBlobs> arrived, Deliver deliver)
      : store_(std::move(store)),
        fetch_(std::move(fetch)),
        arrived_(std::move(arrived)),
        deliver_(std::move(deliver)) {}

  void add(Report report, uint64_t number);
  /// Drops undelivered reports: the worker sends them again in its next session.
  void end();

 private:
  struct PendingReport {
    ReceivedReport received;
    std::vector<BlobReference> references;
    size_t missing = 0;
    std::string problem;
  };
  void on_fetched(const std::shared_ptr<PendingReport>& pending, const Status& status);
  void deliver_ready();
  void finish(PendingReport& pending);

  const std::shared_ptr<BlobCache> store_;
  const Fetch fetch_;
  const std::shared_ptr<ArrivedBlobs> arrived_;
  const Deliver deliver_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<PendingReport>>
      pending_;  // bounded by kInFlightBytesMax of the worker
  bool is_delivering_ = false, is_over_ = false;
};

}  // namespace flow::cluster
