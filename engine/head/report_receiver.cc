#include "engine/head/report_receiver.hpp"

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
  auto waiting = std::make_shared<Waiting>();
  auto references = referenced_blobs(report);
  if (references.ok()) {
    waiting->references = std::move(*references);
  } else {
    waiting->problem = references.error().message;
  }
  waiting->received.report = std::move(report);
  waiting->received.number = number;
  waiting->missing = waiting->references.size();
  {
    std::lock_guard lock(mutex_);
    if (is_over_) return;
    for (const BlobReference& each : waiting->references)
      if (!each.file.empty()) store_->will_place(each.blob.digest);
    waiting_.push_back(waiting);
  }
  auto self = shared_from_this();
  for (const BlobReference& each : waiting->references)
    fetch_(each.blob, [self, waiting](const Status& status) { self->on_fetched(waiting, status); });
  if (waiting->references.empty()) deliver_ready();
}

void ReportReceiver::on_fetched(const std::shared_ptr<Waiting>& waiting, const Status& status) {
  {
    std::lock_guard lock(mutex_);
    if (!status.ok() && waiting->problem.empty()) waiting->problem = status.error().message;
    if (--waiting->missing > 0) return;
  }
  deliver_ready();
}

void ReportReceiver::deliver_ready() {
  std::unique_lock lock(mutex_);
  if (is_delivering_) return;
  is_delivering_ = true;
  while (!is_over_ && !waiting_.empty() && waiting_.front()->missing == 0) {
    std::shared_ptr<Waiting> first = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    finish(*first);
    lock.lock();
  }
  is_delivering_ = false;
}

void ReportReceiver::finish(Waiting& waiting) {
  ReceivedReport& received = waiting.received;
  for (const BlobReference& each : waiting.references) {
    if (each.file.empty()) continue;
    if (waiting.problem.empty()) {
      auto others = place_checkpoint(*store_, each);
      if (!others.ok()) {
        waiting.problem = others.error().message;
      } else {
        received.placed.push_back(store_->dir() + "/" + each.file);
        received.obsolete = std::move(*others);
      }
    }
    store_->was_placed(each.blob.digest);
  }
  received.is_replaced = !waiting.problem.empty();
  if (received.is_replaced) make_failure(received.report, waiting.problem);
  deliver_(std::move(received));
}

void ReportReceiver::end() {
  std::lock_guard lock(mutex_);
  is_over_ = true;
  for (const auto& waiting : waiting_)
    for (const BlobReference& each : waiting->references)
      if (!each.file.empty()) store_->was_placed(each.blob.digest);
  waiting_.clear();
}

}  // namespace flow::cluster
