#include "tests/sim/engine_worker.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tests/sim/engine_head.hpp"
#include "tests/sim/engine_reports.hpp"

namespace flow::sim {

namespace {

constexpr uint32_t kCrashInEffect = 150;  // one in so many effects

}  // namespace

SimConnection::SimConnection(World& world, const DurableState& durable, Head& head,
                             SimWorker& worker)
    : world_(world), durable_(durable), head_(head), head_start_(head.starts()), worker_(worker) {}

core::Time SimConnection::arrival(core::Time& last) {
  core::Time delay = 1 + world_.random.below(8);
  if (world_.random.one_in(12)) delay += world_.random.below(80);
  last = std::max(last, world_.now() + delay);
  return last - world_.now();
}

void SimConnection::send_to_worker(std::function<void(SimWorker&)> message) {
  if (!is_open_) return;
  world_.may_crash(kCrashInEffect);
  world_.after(arrival(last_to_worker_), [self = shared_from_this(), message] {
    if (self->is_open_) message(self->worker_);
  });
}

void SimConnection::send_to_head(std::function<void(Head&)> message) {
  if (!is_open_) return;
  world_.after(arrival(last_to_head_), [self = shared_from_this(), message] {
    if (self->head_.starts() != self->head_start_) self->cut("the head ended");
    if (self->is_open_) message(self->head_);
  });
}

void SimConnection::stage(std::vector<AttemptOrder> orders, uint64_t commit) {
  for (AttemptOrder& order : orders) {
    if (commit == 0) {
      durable_.check_start(order.id);
    } else {
      staged_.emplace_back(commit, order.id);
    }
    ranks_.add(order);
    world_.note(fmt::format("{} is ordered {} rank {} commit {}", worker_.name(), text_of(order.id),
                            order.rank, commit));
    send_to_worker([order, commit](SimWorker& worker) { worker.on_order(order, commit); });
  }
}

void SimConnection::release(uint64_t commit) {
  world_.note(fmt::format("{} is released up to commit {}", worker_.name(), commit));
  for (const auto& [number, id] : staged_)
    if (number <= commit) durable_.check_start(id);
  std::erase_if(staged_, [&](const auto& each) { return each.first <= commit; });
  send_to_worker([commit](SimWorker& worker) { worker.on_release(commit); });
}

void SimConnection::stop(const core::AttemptId& id, bool) {
  world_.note(worker_.name() + " is to stop " + text_of(id));
  ranks_.stop(id);
  send_to_worker([id](SimWorker& worker) { worker.on_stop(id); });
}

void SimConnection::ack_saved(const core::AttemptId& id, const std::string& name, bool ok) {
  if (ok && !durable_.has_saved(id, name))
    throw BrokenPromise{"a step was acknowledged that is not durable: " + text_of(id)};
  send_to_worker([id, name, ok](SimWorker& worker) { worker.on_saved(id, name, ok); });
}

void SimConnection::accept_join(uint64_t taken) {
  world_.note(fmt::format("{} is accepted, {} reports taken", worker_.name(), taken));
  ranks_.accept(durable_);
  send_to_worker([taken](SimWorker& worker) { worker.on_accepted(taken); });
}

void SimConnection::ack_reports(uint64_t number) {
  world_.note(fmt::format("{} has reports acknowledged up to {}", worker_.name(), number));
  send_to_worker([number](SimWorker& worker) { worker.on_ack(number); });
}

void SimConnection::disconnect(const std::string& why) { cut(why); }

void SimConnection::cut(const std::string& why, bool is_for_good) {
  if (!is_open_) return;
  is_open_ = false;
  world_.note(worker_.name() + " is cut off: " + why);
  auto self = shared_from_this();
  world_.after(1 + world_.random.below(60), [self] { self->worker_.on_disconnected(*self); });
  world_.after(1 + world_.random.below(60),
               [self, why, is_for_good] { self->head_.on_disconnected(*self, is_for_good, why); });
}

SimWorker::SimWorker(World& world, const DurableState& durable, TaskMemory& memory, Head& head,
                     core::WorkerInfo info)
    : world_(world), durable_(durable), memory_(memory), head_(head), info_(std::move(info)) {}

void SimWorker::start_process() {
  processes_++;
  is_draining_ = false;
  acked_ends_.clear();
  attempts_ = std::make_unique<Attempts>(world_, durable_, memory_,
                                         [this](Report report) { add_report(std::move(report)); });
  join();
}

void SimWorker::join_later(core::Time delay) {
  world_.after(delay, [this, process = processes_] {
    if (process == processes_ && attempts_ && !connection_) join();
  });
}

void SimWorker::join() {
  is_accepted_ = false;
  if (!head_.is_up()) return join_later(10 + world_.random.below(40));
  JoinOffer offer;
  offer.info = info_;
  offer.process = fmt::format("{}-{}", info_.name, processes_);
  offer.spool = fmt::format("{}-spool-{}", info_.name, spools_);
  for (const RankId& rank : attempts_->ranks()) offer.ranks.push_back({rank, false});
  for (const Spooled& entry : spool_)
    if (is_end_report(entry.report)) offer.ranks.push_back({entry.report.rank_id(), true});
  for (const RankId& rank : acked_ends_) offer.ranks.push_back({rank, true});
  session_base_ = commit_last_;
  held_release_ = 0;
  connection_ = std::make_shared<SimConnection>(world_, durable_, head_, *this);
  world_.note(fmt::format("{} joins with {} ranks", info_.name, offer.ranks.size()));
  auto self = connection_;
  connection_->send_to_head([self, offer](Head& head) { head.on_join(self, offer); });
  if (is_draining_) connection_->send_to_head([self](Head& head) { head.on_draining(*self); });
}

void SimWorker::on_order(AttemptOrder order, uint64_t commit) {
  RankId rank = order.rank_id();
  bool has_ended = std::any_of(spool_.begin(), spool_.end(), [&](const Spooled& entry) {
    return is_end_report(entry.report) && entry.report.rank_id() == rank;
  });
  if (has_ended) return;
  if (is_draining_) return add_report(requeued_report(rank));
  uint64_t local = commit == 0 ? 0 : session_base_ + commit;
  commit_last_ = std::max(commit_last_, local);
  attempts_->stage(std::move(order), local);
}

void SimWorker::on_release(uint64_t commit) {
  commit_last_ = std::max(commit_last_, session_base_ + commit);
  // As the product's agent: stops of stale attempts come before the join is accepted.
  if (!is_accepted_) {
    held_release_ = std::max(held_release_, commit);
    return;
  }
  attempts_->release(session_base_ + commit);
}

void SimWorker::on_saved(const core::AttemptId& id, const std::string& name, bool ok) {
  attempts_->ack_saved(id, name, ok);
}

void SimWorker::on_accepted(uint64_t taken) {
  is_accepted_ = true;
  // As the product's agent: the answers to these were lost with the former connection.
  for (const Spooled& entry : spool_)
    if (entry.number <= taken) attempts_->note_committed(entry.report);
  forget(taken);
  attempts_->release(session_base_ + held_release_);
  for (const Spooled& entry : spool_) send(entry);
}

void SimWorker::on_ack(uint64_t number) { forget(number); }

// What is acknowledged is never reported again: the state must have it.
void SimWorker::forget(uint64_t number) {
  while (!spool_.empty() && spool_.front().number <= number) {
    const Report& report = spool_.front().report;
    if (ends_attempt(report) && durable_.runs(report.id))
      throw BrokenPromise{"the end of an attempt was acknowledged and is not durable: " +
                          text_of(report.id)};
    // As the product's agent, for a head that started later.
    if (is_end_report(report) && report.rank > 0) acked_ends_.insert(report.rank_id());
    spool_.pop_front();
  }
}

void SimWorker::add_report(Report report) {
  world_.note(fmt::format("{} reports {} of {} as number {}", info_.name, report_text(report),
                          text_of(report.id), last_number_ + 1));
  spool_.push_back({++last_number_, std::move(report)});
  if (is_accepted_) send(spool_.back());
}

void SimWorker::send(const Spooled& entry) {
  if (!connection_) return;
  connection_->send_to_head([self = connection_, entry](Head& head) {
    head.on_report(*self, entry.number, entry.report);
  });
}

void SimWorker::on_disconnected(const SimConnection& connection) {
  if (connection_.get() != &connection) return;
  connection_ = nullptr;
  is_accepted_ = false;
  if (!attempts_) return;
  bool is_long = world_.random.one_in(4);
  join_later(world_.random.below(is_long ? 900 : 60));
}

void SimWorker::cut_connection() {
  if (connection_) connection_->cut("a partition");
}

void SimWorker::die() {
  if (!attempts_) return;
  world_.note(info_.name + " dies");
  attempts_ = nullptr;
  is_accepted_ = false;
  if (connection_) connection_->cut("its process ended", is_draining_);
  connection_ = nullptr;
  if (world_.random.one_in(4)) {
    spools_++;
    spool_.clear();
    last_number_ = 0;
  }
  world_.after(20 + world_.random.below(500), [this] { start_process(); });
}

void SimWorker::drain() {
  if (!attempts_ || !connection_ || is_draining_) return;
  world_.note(info_.name + " drains");
  is_draining_ = true;
  connection_->send_to_head([self = connection_](Head& head) { head.on_draining(*self); });
  attempts_->drain();
  world_.after(60 + world_.random.below(60), [this, process = processes_] {
    if (process == processes_) die();
  });
}

}  // namespace flow::sim
