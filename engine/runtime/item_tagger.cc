#include "engine/runtime/item_tagger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/engine_thread.hpp"
#include "engine/blobs/input_listing.hpp"

namespace flow {

namespace {

constexpr int64_t kMsPerItem = 1000;  // as the executor's limit
constexpr int64_t kTimeMaxMs = 600'000;

std::string bytes_of(const Value& items) { return encode_value(items); }

/// What the pattern matched when the run's graph was built.
Result<std::vector<std::string>> listed_before(const Plan& plan, const InputPattern& wanted) {
  for (const InputListing& listing : plan.listings)
    if (listing.folder == wanted.folder && listing.pattern == wanted.pattern) return listing.paths;
  return user_error(fmt::format("`{}` was not listed when the graph was built", wanted.pattern));
}

}  // namespace

ItemTagger::~ItemTagger() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ItemTagger::request(const core::RunId& run_id, core::UnitId unit) {
  const core::Run& run = state_.runs.at(run_id);
  Job job;
  job.run = run_id;
  job.unit = unit;
  auto items = resolver_.map_items(run, unit);
  if (!items.ok()) return fail(job, items.error().message);
  const RunContext* context = active_runs_.find(run_id);
  auto bundle = context == nullptr ? Result<Bundle>(internal_error("the run has no code"))
                                   : decode_bundle(*context->bundle);
  if (!bundle.ok()) return fail(job, bundle.error().message);
  job.list = sha256(bytes_of(*items));
  job.order.root = bundle->root;
  job.order.main = bundle->main;
  job.order.pinned = *context->bundle;
  job.order.params = context->record.params;
  job.order.working_directory = context->record.directory;
  if (!run.plan->listings.empty()) {
    // The folder on the machine that submitted, from which the paths in the listings start.
    job.order.root = run.plan->listings.front().folder;
    job.order.list_inputs = [plan = run.plan](const InputPattern& wanted) {
      return listed_before(*plan, wanted);
    };
  }
  BuildOrder::TagOrder& tags = job.order.tags.emplace();
  tags.node = run.units[unit].node;
  for (const Value& item : items->as_table().list) tags.items.push_back(encode_value(item));
  auto more_ms = static_cast<int64_t>(tags.items.size()) * kMsPerItem;
  job.order.time_limit_ms = std::min(job.order.time_limit_ms + more_ms, kTimeMaxMs);
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  if (!thread_.joinable()) thread_ = engine_thread([this] { work(); });
  wake_.notify_one();
}

void ItemTagger::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return quit_ || !jobs_.empty(); });
    if (quit_) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    auto reply = builder_.build(job.order);
    Result<std::vector<std::string>> tags = std::vector<std::string>();
    if (!reply.ok()) {
      tags = reply.error();
    } else if (!reply->errors.empty()) {
      tags = user_error(reply->errors.front());
    } else {
      tags = std::move(reply->tags);
    }
    TurnInput input;
    input.what = StateCallback{
        [this, job, tags = std::move(tags)](Batch&, core::State&) { answer(job, tags); }};
    inbox_.post(std::move(input));
    lock.lock();
  }
}

void ItemTagger::answer(const Job& job, const Result<std::vector<std::string>>& tags) {
  auto found = state_.runs.find(job.run);
  if (found == state_.runs.end()) return;
  bool is_asked = job.unit < found->second.units.size() &&
                  found->second.units[job.unit].phase == core::Phase::resolving;
  if (!is_asked) return;  // the run was cancelled
  auto items = resolver_.map_items(found->second, job.unit);
  // After a retry of its producer the list may be another one, and a request for that follows.
  if (!items.ok() || sha256(bytes_of(*items)) != job.list) return;
  if (!tags.ok()) return fail(job, tags.error().message);
  core::MapExpanded event{job.run, job.unit, static_cast<uint32_t>(items->as_table().list.size()),
                          *tags};
  if (!recorder_.record_if_admitted(std::move(event), recorder_.turn_time()))
    fail(job, "its tag function gave other tags than were asked for");
}

void ItemTagger::fail(const Job& job, const std::string& why) {
  core::Failure failure;
  failure.cause = core::Cause::user_error;
  failure.message = fmt::format("the items of `{}` got no tags: {}",
                                core::unit_name(state_.runs.at(job.run), job.unit), why);
  recorder_.record_if_admitted(core::InputsFailed{job.run, job.unit, std::move(failure)},
                               recorder_.turn_time());
}

}  // namespace flow
