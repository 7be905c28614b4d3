#include "engine/head/report_receiver.hpp"

#include <algorithm>
#include <utility>

#include "engine/cluster/transfer/blob_paths.hpp"

namespace flow::cluster {

namespace {

/// Replaces a report whose blobs cannot be fetched: it cannot be committed without them.
void make_failure(Report& report, const std::string& problem) {
  bool was_end = report.is<TaskFinished>();
  TaskFinished finished;
  finished.outcome = TaskFinished::Outcome::failed;
  finished.failure.cause = core::Cause::staging;
  finished.failure.message =
      (was_end ? "the result could not be fetched from its worker: "
               : "the checkpoint or step could not be fetched from its worker: ") +
      problem;
  report.at = 0;
  report.body = std::move(finished);
}

}  // namespace

void ReportReceiver::add(Report report, uint64_t number) {
  auto pending = std::make_shared<PendingReport>();
  auto references = referenced_blobs(report);
  if (references.ok()) {
    pending->references = std::move(*references);
  } else {
    pending->problem = references.error().message;
  }
  pending->received.report = std::move(report);
  pending->received.number = number;
  pending->missing = pending->references.size();
  {
    std::lock_guard lock(mutex_);
    if (is_over_) return;
    for (const BlobReference& each : pending->references)
      if (!each.file.empty()) store_->will_place(each.blob.digest);
    pending_.push_back(pending);
  }
  auto self = shared_from_this();
  for (const BlobReference& each : pending->references)
    fetch_(each.blob, [self, pending](const Status& status) { self->on_fetched(pending, status); });
  if (pending->references.empty()) deliver_ready();
}

void ReportReceiver::on_fetched(const std::shared_ptr<PendingReport>& pending,
                                const Status& status) {
  {
    std::lock_guard lock(mutex_);
    if (!status.ok() && pending->problem.empty()) pending->problem = status.error().message;
    if (--pending->missing > 0) return;
  }
  deliver_ready();
}

void ReportReceiver::deliver_ready() {
  std::unique_lock lock(mutex_);
  if (is_delivering_) return;
  is_delivering_ = true;
  while (!is_over_ && !pending_.empty() && pending_.front()->missing == 0) {
    std::shared_ptr<PendingReport> first = std::move(pending_.front());
    pending_.pop_front();
    lock.unlock();
    finish(*first);
    lock.lock();
  }
  is_delivering_ = false;
}

void ReportReceiver::finish(PendingReport& pending) {
  ReceivedReport& received = pending.received;
  int64_t bytes = arrived_->claim(pending.references);
  if (auto* finished = received.report.as<TaskFinished>(); finished != nullptr && bytes > 0)
    finished->usage.moved_bytes = std::max<int64_t>(finished->usage.moved_bytes, 0) + bytes;
  for (const BlobReference& each : pending.references) {
    if (each.file.empty()) continue;
    if (pending.problem.empty()) {
      auto others = place_checkpoint(*store_, each);
      if (!others.ok()) {
        pending.problem = others.error().message;
      } else {
        received.placed.push_back(store_->dir() + "/" + each.file);
        received.obsolete = std::move(*others);
      }
    }
    store_->was_placed(each.blob.digest);
  }
  received.is_replaced = !pending.problem.empty();
  if (received.is_replaced) make_failure(received.report, pending.problem);
  deliver_(std::move(received));
}

void ReportReceiver::end() {
  std::lock_guard lock(mutex_);
  is_over_ = true;
  for (const auto& pending : pending_)
    for (const BlobReference& each : pending->references)
      if (!each.file.empty()) store_->was_placed(each.blob.digest);
  pending_.clear();
}

}  // namespace flow::cluster
