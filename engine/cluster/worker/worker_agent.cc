#include "engine/cluster/worker/worker_agent.hpp"
#include "engine/base/clock.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>

#include "engine/base/ids.hpp"
#include "engine/cluster/transfer/blob_paths.hpp"
#include "engine/core/gpu_accounting.hpp"
#include "engine/core/gpu_faults.hpp"
#include "engine/core/mutants.hpp"
#include "engine/value/cbor.hpp"
#include "engine/worker/slot.hpp"

namespace flow::cluster {

namespace {

constexpr uint64_t kCommitsMax = uint64_t{1} << 48;  // per session

/// Whether the attempt ended by a signal that a batch system sends to all processes of a job.
bool was_terminated(const Report& report) {
  const auto* finished = report.as<TaskFinished>();
  if (finished == nullptr || finished->outcome != TaskFinished::Outcome::failed) return false;
  constexpr int kShell = 128;  // a shell adds it to the signal that ended its program
  core::Cause cause = finished->failure.cause;
  int code = finished->failure.code;
  auto is = [code](int base) { return code == base + SIGTERM || code == base + SIGUSR2; };
  return (cause == core::Cause::signal && is(0)) || (cause == core::Cause::exit_code && is(kShell));
}

// Replaces folders of the client that this machine lacks, or that this user may not access, by this
// machine's own.
void replace_folder(EnvironmentVariables& environment, const std::string& name, int needs) {
  auto found = std::find_if(environment.begin(), environment.end(),
                            [&](const auto& variable) { return variable.first == name; });
  if (found == environment.end() || ::access(found->second.c_str(), needs) == 0) return;
  const char* own = std::getenv(name.c_str());
  if (own != nullptr && ::access(own, needs) == 0) {
    found->second = own;
  } else {
    environment.erase(found);
  }
}

/// Whether Slurm sets the variable, for a job or for one of the job's nodes.
bool is_slurm_variable(std::string_view name) {
  return name.starts_with("SLURM_") || name == "SLURMD_NODENAME";
}

// On a Slurm node a task sees the variables of the node's own job.
void use_machine_variables(EnvironmentVariables& environment) {
  replace_folder(environment, "TMPDIR", W_OK | X_OK);
  replace_folder(environment, "HOME", R_OK | X_OK);
  if (std::getenv("SLURM_JOB_ID") == nullptr) return;
  std::erase_if(environment,
                [](const auto& variable) { return is_slurm_variable(variable.first); });
  for (char** each = environ; *each != nullptr; each++) {
    std::string_view text = *each;
    size_t equals = text.find('=');
    bool is_slurm = equals != std::string_view::npos && is_slurm_variable(text.substr(0, equals));
    if (is_slurm) environment.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
}

}  // namespace

WorkerAgent::WorkerAgent(Options options)
    : options_(std::move(options)),
      process_(random_name()),
      worker_info_(options_.worker),
      placed_(options_.store),
      thread_pool_(transfer_threads(options_.threads)) {}

WorkerAgent::~WorkerAgent() {
  options_.store->on_evicted(nullptr);
  disconnect(environment_error("this worker ends"));
  run_jobs();
  {
    std::unique_lock lock(mutex_);
    disk_freed_.wait(lock, [this] { return freeing_disk_ == 0; });
  }
  worker_.reset();
}

Result<std::unique_ptr<WorkerAgent>> WorkerAgent::start(Options options, const MakeWorker& make) {
  std::unique_ptr<WorkerAgent> agent(new WorkerAgent(std::move(options)));
  std::shared_ptr<SpoolFolder> folder = agent->options_.spool_folder;
  auto spool = ReportSpool::open(folder ? folder : open_spool_folder(agent->options_.spool_dir));
  FLOW_TRY(spool);
  agent->spool_ = std::move(*spool);
  agent->load_spool();
  agent->set_aside_runs();
  agent->trim_scratch_later({}, false);
  agent->options_.store->on_evicted(
      [self = agent.get()](const Digest& gone) { self->note_blob_removed(gone); });
  auto worker = make([self = agent.get()](std::vector<Report> reports) {
    self->handle_failures(reports);
    self->on_reports(std::move(reports));
  });
  FLOW_TRY(worker);
  agent->worker_ = std::move(*worker);
  return agent;
}

// Loads the unacknowledged reports of an earlier process of this worker.
void WorkerAgent::load_spool() {
  while (auto entry = spool_->next()) {
    worker_protocol::FromWorker message;
    Report report{};
    bool is_report = message.ParseFromString(entry->bytes) && message.has_report() &&
                     message.report().number() == entry->number &&
                     get_report(*message.mutable_report(), report);
    if (!is_report) continue;
    pin_reported_blobs(report);
    note_end(report, entry->number);
  }
}

void WorkerAgent::connect(Send send, std::shared_ptr<Link> link, const BulkSeal& seal,
                          const std::string& peer) {
  {
    std::lock_guard lock(mutex_);
    send_ = std::move(send);
    is_accepted_ = false;
    in_flight_.clear();
    in_flight_bytes_ = 0;
    priority_messages_.assign(1, join_message());
    if (!draining_.empty()) priority_messages_.push_back(draining_message());
    for (const auto& [id, meeting] : rank_addresses_) priority_messages_.push_back(meeting);
    inventory_delta_.added = options_.store->large(kInventoryDeltaMax);
    for (const BlobInfo& placed : placed_.large()) note_blob_added(placed);
    inventory_delta_.removed.clear();
    has_inventory_delta_ = true;
    TransferOptions transfer;
    transfer.store = options_.store;
    transfer.thread_pool = &thread_pool_;
    transfer.link = std::move(link);
    transfer.send = [this, session = ++sessions_](std::string_view message) {
      send_blob_message(session, message);
    };
    transfer.peer = peer;
    transfer.seal = seal;
    transfer.encrypts = [encrypts = options_.encrypts] { return encrypts->load(); };
    transfer.follow_redirect = options_.follow_redirect;
    transfer.on_transferred = [this](bool is_out, const BlobInfo& blob) {
      if (!is_out) note_transfer(&Traffic::from_head, blob);
    };
    transfer_ = std::make_shared<BlobTransfer>(transfer);
    for (auto& [id, staged] : staged_) {
      auto fresh = std::make_shared<StagedOrder>(*staged);
      fresh->missing = 0;
      fresh->problem.reset();
      staged = fresh;
    }
  }
  assembler_ = {};
  commit_numbers_.base = commit_numbers_.last;
  held_release_ = 0;
  bundle_users_ = {};
  bundles_.clear();
  environments_.clear();
  progress();
}

// Drops messages of an earlier session.
void WorkerAgent::send_blob_message(uint64_t session, std::string_view bytes) {
  worker_protocol::FromWorker message;
  message.set_blob_message(std::string(bytes));
  {
    std::lock_guard lock(mutex_);
    if (!send_ || session != sessions_) return;
    priority_messages_.push_back(message.SerializeAsString());
  }
  progress();
}

std::string WorkerAgent::join_message() {
  JoinRequest request;
  request.worker = worker_info_;
  request.process = process_;
  request.spool = spool_->id();
  request.blob_address = options_.blob_address();
  request.now = options_.clock();
  request.machine = options_.machine;
  for (const auto& [rank, end] : attempts_) request.ranks.push_back({rank, end != 0});
  for (const RankId& rank : acked_ends_) request.ranks.push_back({rank, true});
  if (core::has_mutant(core::Mutant::joins_without_attempts)) request.ranks.clear();
  worker_protocol::FromWorker message;
  put_join_request(request, *message.mutable_join());
  return message.SerializeAsString();
}

std::string WorkerAgent::draining_message() const {
  worker_protocol::FromWorker message;
  message.set_draining(draining_);
  return message.SerializeAsString();
}

// Sent after the join of this session, which may have reported the fault already; a duplicate has
// no effect.
void WorkerAgent::gpu_failed(const std::string& uuid, const std::string& fault, bool is_dead) {
  {
    std::lock_guard lock(mutex_);
    auto at = core::find_gpu(worker_info_.gpus, uuid);
    if (!at) return;
    Gpu& gpu = worker_info_.gpus[*at];
    if (!core::is_new_fault(gpu, is_dead)) return;
    gpu.fault = fault;
    gpu.is_dead = gpu.is_dead || is_dead;
    worker_protocol::FromWorker message;
    message.mutable_gpu_failed()->set_uuid(uuid);
    message.mutable_gpu_failed()->set_fault(fault);
    message.mutable_gpu_failed()->set_is_dead(is_dead);
    if (send_) priority_messages_.push_back(message.SerializeAsString());
  }
  progress();
}

void WorkerAgent::note_gpu_sample(const GpuSample& sample) {
  {
    std::lock_guard lock(mutex_);
    if (!send_ || sample.index >= kSampledGpusMax) return;
    gpu_samples_[sample.index] = sample;
  }
  progress();
}

// Notify the head first, so that requeued attempts are not assigned to this worker again.
void WorkerAgent::drain(int64_t grace_ms, const std::string& why) {
  std::vector<RankId> unstarted;
  std::vector<StagedOrderPtr> unplaced;
  {
    std::lock_guard lock(mutex_);
    draining_ = why;
    drains_.notify_all();
    if (send_) priority_messages_.push_back(draining_message());
    for (const auto& [id, staged] : staged_) {
      unstarted.push_back(id);
      unplaced.push_back(staged);
    }
    staged_.clear();
  }
  unplace(unplaced);
  progress();
  for (const RankId& id : unstarted) requeue(id);
  worker_->drain(grace_ms);
}

void WorkerAgent::await_drain(const std::vector<Report>& reports) {
  constexpr auto kDrainWait = std::chrono::milliseconds(200);
  if (std::none_of(reports.begin(), reports.end(), was_terminated)) return;
  std::unique_lock lock(mutex_);
  drains_.wait_for(lock, kDrainWait, [this] { return !draining_.empty(); });
}

void WorkerAgent::requeue(const RankId& id) {
  on_reports({{id.attempt, id.rank, 0, TaskRequeued{}}});
}

void WorkerAgent::mark_preempted(Report& report) const {
  auto* finished = report.as<TaskFinished>();
  bool is_cut_short =
      !draining_.empty() && finished != nullptr &&
      (finished->outcome == TaskFinished::Outcome::stopped || was_terminated(report));
  if (!is_cut_short) return;
  finished->failure = {};
  // Rank 0 of a gang saves, and its end counts.
  if (report.rank > 0 || saved_.contains(report.rank_id())) {
    finished->outcome = TaskFinished::Outcome::stopped;
    return;
  }
  finished->outcome = TaskFinished::Outcome::failed;
  finished->failure.cause = core::Cause::preempted;
  finished->failure.message = fmt::format(
      "its worker `{}` had to leave ({}) before it ended, and it had saved nothing: "
      "`ctx:checkpoint` and `ctx:step` keep finished work",
      options_.worker.name, draining_);
}

// Orders whose blobs were being downloaded wait for the next session.
void WorkerAgent::disconnect(const Error& why) {
  std::shared_ptr<BlobTransfer> transfer;
  {
    std::lock_guard lock(mutex_);
    send_ = nullptr;
    priority_messages_.clear();
    transfer = std::exchange(transfer_, nullptr);
  }
  if (transfer) transfer->end(why);
}

bool WorkerAgent::was_accepted() const {
  std::lock_guard lock(mutex_);
  return is_accepted_;
}

size_t WorkerAgent::attempts() const {
  std::lock_guard lock(mutex_);
  return attempts_.size();
}

bool WorkerAgent::on_message(std::string_view chunk) {
  std::string bytes;
  MessageAssembler::Outcome assembled = assembler_.add(chunk, bytes);
  if (assembled != MessageAssembler::Outcome::whole)
    return assembled == MessageAssembler::Outcome::more;
  worker_protocol::ToWorker message;
  return message.ParseFromString(bytes) && dispatch(message);
}

bool WorkerAgent::dispatch(worker_protocol::ToWorker& message) {
  switch (message.kind_case()) {
    case worker_protocol::ToWorker::kBundle:
      return on_bundle(message.bundle());
    case worker_protocol::ToWorker::kEnvironment:
      return on_environment(message.environment());
    case worker_protocol::ToWorker::kOrder:
      return on_order(*message.mutable_order());
    case worker_protocol::ToWorker::kRelease:
      return on_release(message.release().commit());
    case worker_protocol::ToWorker::kStop: {
      core::AttemptId id = attempt_id(message.stop().id());
      if (stop_staged(id)) return true;
      bool gentle = message.stop().gentle(), kill = message.stop().kill();
      if (gentle && kill) {
        worker_->kill_after_flush(id);
      } else if (gentle) {
        worker_->interrupt(id);
      } else {
        worker_->stop(id, kill);
      }
      return true;
    }
    case worker_protocol::ToWorker::kSaved:
      note_answer(attempt_id(message.saved().id()), message.saved().name());
      worker_->ack_saved(attempt_id(message.saved().id()), message.saved().name(),
                         message.saved().ok());
      return true;
    case worker_protocol::ToWorker::kPeers: {
      const auto& peers = message.peers().rank_addresses();
      worker_->exchange_addresses(attempt_id(message.peers().id()), {peers.begin(), peers.end()});
      return true;
    }
    case worker_protocol::ToWorker::kReplica:
      return on_replica(message.replica());
    case worker_protocol::ToWorker::kFrontPort:
      return on_front_port(message.front_port());
    case worker_protocol::ToWorker::kForget:
      return on_forget(message.forget());
    case worker_protocol::ToWorker::kReportAck:
      on_report_ack(message.report_ack());
      return true;
    case worker_protocol::ToWorker::kJoinAccepted:
      return on_join_accepted(message.join_accepted());
    case worker_protocol::ToWorker::kBlobMessage: {
      std::shared_ptr<BlobTransfer> transfer;
      {
        std::lock_guard lock(mutex_);
        transfer = transfer_;
      }
      return transfer && transfer->on_message(message.blob_message());
    }
    default:
      return false;
  }
}

bool WorkerAgent::on_front_port(const worker_protocol::FrontPort& at) {
  bool is_name = at.front().size() == 16 &&
                 at.front().find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_name || at.port() > UINT16_MAX) return false;
  if (options_.on_front_port) options_.on_front_port(at.front(), static_cast<uint16_t>(at.port()));
  return true;
}

bool WorkerAgent::on_bundle(const wire::LoadBundle& load) {
  Digest digest;
  if (!Digest::from_bytes(load.digest(), digest) || sha256(load.bundle()) != digest) return false;
  bundles_[digest] = std::make_shared<const std::string>(load.bundle());
  return true;
}

bool WorkerAgent::on_environment(const wire::Environment& sent) {
  EnvironmentVariables environment;
  for (const wire::EnvVar& variable : sent.vars())
    environment.emplace_back(variable.name(), variable.value());
  use_machine_variables(environment);
  environments_[sent.run()] = std::make_shared<const EnvironmentVariables>(std::move(environment));
  return true;
}

bool WorkerAgent::on_order(worker_protocol::Order& in) {
  AttemptOrder order;
  if (!get_order(in, order) || in.start().commit() > kCommitsMax) return false;
  auto bundle = bundles_.find(order.bundle);
  auto environment = environments_.find(order.id.run);
  if (bundle == bundles_.end() || environment == environments_.end()) return false;
  bundle_users_.add(order.id.run, order.bundle);
  order.bundle_bytes = bundle->second;
  order.environment = environment->second;
  if (order.is_spread) order.remote_address = options_.head;
  if (holds_tag(order.args) && !decode_value(order.args).ok()) return false;
  auto staged = std::make_shared<StagedOrder>();
  staged->received_us = monotonic_us();
  staged->commit = commit_numbers_.local(in.start().commit());
  staged->references = referenced_blobs(order);
  staged->order = std::move(order);
  staged->awaits_disk_space = needs_disk_space();
  bool is_staged = staged->awaits_disk_space || !staged->references.empty(), is_rejected = false;
  {
    std::lock_guard lock(mutex_);
    if (!attempts_.emplace(staged->order.rank_id(), 0).second)
      return true;  // the order is already present
    is_rejected = !draining_.empty();
    if (!is_rejected && is_staged) staged_[staged->order.rank_id()] = staged;
  }
  if (is_rejected) {
    requeue(staged->order.rank_id());
    return true;
  }
  std::vector<Digest> digests;
  for (const BlobReference& each : staged->references) {
    digests.push_back(each.blob.digest);
    if (each.file.empty()) continue;
    options_.store->will_place(each.blob.digest);
    std::lock_guard lock(mutex_);
    (void)placed_.place(staged->order.rank_id(), {each.blob.digest, each.file});
  }
  options_.store->pin(owner_of(staged->order.rank_id()), digests);
  if (staged->awaits_disk_space) {
    free_disk_for(staged->order.rank_id());
  } else if (is_staged) {
    fetch(staged);
  } else {
    begin(staged);
  }
  return true;
}

void WorkerAgent::begin(const StagedOrderPtr& staged) {
  std::vector<AttemptOrder> orders;
  orders.push_back(std::move(staged->order));
  orders.front().fetch_us = monotonic_us() - staged->received_us;
  orders.front().fetched_bytes = arrived_.claim(staged->references);
  worker_->stage(std::move(orders), staged->commit);
}

void WorkerAgent::fail(const RankId& id, const std::string& why) {
  TaskFinished finished;
  finished.outcome = TaskFinished::Outcome::failed;
  finished.failure.cause = core::Cause::staging;
  finished.failure.message = "an input could not be fetched to its worker: " + why;
  on_reports({{id.attempt, id.rank, 0, std::move(finished)}});
}

bool WorkerAgent::stop_staged(const core::AttemptId& id) {
  std::vector<Report> reports;
  std::vector<StagedOrderPtr> unplaced;
  bool are_all = true;
  {
    std::lock_guard lock(mutex_);
    for (auto rank = attempts_.lower_bound({id, 0}); rank != attempts_.end(); ++rank) {
      if (rank->first.attempt != id) break;
      auto staged = staged_.find(rank->first);
      if (staged == staged_.end()) {
        are_all = false;
        continue;
      }
      unplaced.push_back(staged->second);
      staged_.erase(staged);
      TaskFinished finished;
      finished.outcome = TaskFinished::Outcome::stopped;
      reports.push_back({id, rank->first.rank, 0, std::move(finished)});
    }
  }
  unplace(unplaced);
  bool was_staged = !reports.empty();
  if (was_staged) on_reports(std::move(reports));
  return was_staged && are_all;
}

bool WorkerAgent::on_release(uint64_t commit) {
  if (commit > kCommitsMax) return false;
  uint64_t local = commit_numbers_.local(commit);
  {
    // Commits older than this session are released by JoinAccepted.
    std::lock_guard lock(mutex_);
    bool is_held = !is_accepted_ && !core::has_mutant(core::Mutant::releases_before_accepted);
    if (is_held) held_release_ = std::max(held_release_, local);
    if (is_held) return true;
  }
  worker_->release(local);
  return true;
}

// Orders that were staged in an earlier session and not stopped by now are still assigned.
bool WorkerAgent::on_join_accepted(const worker_protocol::JoinAccepted& accepted) {
  std::vector<StagedOrderPtr> unfetched;
  std::vector<UnansweredSave> saves;
  {
    std::lock_guard lock(mutex_);
    if (is_accepted_) return false;
    saves = take_committed_saves(accepted.acked());
    spool_->acknowledge(accepted.acked());
    forget_ended(accepted.acked());
    spool_->rewind();
    *options_.encrypts = accepted.encrypt();
    is_accepted_ = true;
    for (const auto& [id, staged] : staged_)
      if (!staged->awaits_disk_space) unfetched.push_back(staged);
  }
  for (const StagedOrderPtr& staged : unfetched) fetch(staged);
  // The answer was lost with the former session. An attempt whose save was rejected is no longer
  // the head's, and has been told to stop by now.
  for (const UnansweredSave& save : saves) worker_->ack_saved(save.rank.attempt, save.name, true);
  worker_->release(commit_numbers_.base);
  if (held_release_ > 0) worker_->release(held_release_);
  progress();
  return true;
}

void WorkerAgent::on_report_ack(uint64_t number) {
  size_t logs = 0;
  {
    std::lock_guard lock(mutex_);
    while (!in_flight_.empty() && in_flight_.front().first <= number) {
      in_flight_bytes_ -= in_flight_.front().second;
      in_flight_.pop_front();
    }
    spool_->acknowledge(number);
    forget_ended(number);
    if (spool_->bytes() < kSpoolLogsMax) logs = std::exchange(deferred_log_acks_, 0);
  }
  if (logs > 0) worker_->ack_logs(logs);
  progress();
}

void WorkerAgent::forget_ended(uint64_t number) {
  bool is_over_limit = false;
  while (!ends_.empty() && ends_.front().number <= number) {
    AttemptEnd end = std::move(ends_.front());
    ends_.pop_front();
    attempts_.erase(end.rank);
    const core::AttemptId& of = end.rank.attempt;
    bool has_run_ended = ended_runs_.contains(of.run);
    // Not a failure: a head that died before it recorded the end of the gang must miss this rank.
    if (end.rank.rank > 0 && end.is_over && !has_run_ended) acked_ends_.push_back(end.rank);
    if (acked_ends_.size() > kAckedEndsMax) acked_ends_.pop_front();
    bool is_over = end.is_over || has_run_ended;
    PlacedCheckpoints::RemovedCheckpoint gone = placed_.end_rank(end.rank, is_over);
    note_blob_removed_locked(gone.digest);
    remove_later(gone.path);
    if (gone.kept) evict_later(replicas_.keep(of, *gone.kept));
    if (is_over) evict_later(replicas_.drop(of));
    if (!runs_any_of(of.run)) ended_runs_.erase(of.run);
    set_aside_run(of.run);
    is_over_limit = options_.store->unpin(owner_of(end.rank));
  }
  if (is_over_limit) thread_pool_.post([store = options_.store] { store->trim(); });
}

void WorkerAgent::send_rank_address(const RankId& id, const std::string& address) {
  worker_protocol::FromWorker message;
  *message.mutable_rank_address_report()->mutable_id() = wire_name(id.attempt, id.rank);
  message.mutable_rank_address_report()->set_rank_address(address);
  std::string& bytes = rank_addresses_[id] = message.SerializeAsString();
  if (send_) priority_messages_.push_back(bytes);
}

void WorkerAgent::note_answer(const core::AttemptId& id, const std::string& name) {
  std::lock_guard lock(mutex_);
  auto answered =
      std::find_if(unanswered_saves_.begin(), unanswered_saves_.end(),
                   [&](const auto& each) { return each.rank.attempt == id && each.name == name; });
  if (answered != unanswered_saves_.end()) unanswered_saves_.erase(answered);
}

std::vector<WorkerAgent::UnansweredSave> WorkerAgent::take_committed_saves(uint64_t acked) {
  auto first = std::stable_partition(unanswered_saves_.begin(), unanswered_saves_.end(),
                                     [&](const auto& each) { return each.number > acked; });
  std::vector<UnansweredSave> committed(first, unanswered_saves_.end());
  unanswered_saves_.erase(first, unanswered_saves_.end());
  return committed;
}

void WorkerAgent::note_end(const Report& report, uint64_t number) {
  if (!is_final_report(report)) return;
  std::erase_if(unanswered_saves_, [&](const auto& each) { return each.rank == report.rank_id(); });
  saved_.erase(report.rank_id());
  attempts_[report.rank_id()] = number;
  const auto* finished = report.as<TaskFinished>();
  bool is_over = finished != nullptr && finished->outcome == TaskFinished::Outcome::succeeded;
  ends_.push_back({number, report.rank_id(), is_over});
  rank_addresses_.erase(report.rank_id());
}

void WorkerAgent::on_reports(std::vector<Report> reports) {
  await_drain(reports);
  size_t logs = 0;
  std::string problem;
  {
    std::lock_guard lock(mutex_);
    for (Report& report : reports) {
      if (const auto* reported = report.as<RankAddressReported>()) {
        send_rank_address(report.rank_id(), reported->address);
        continue;
      }
      if (const auto* lines = report.as<LogLines>()) deferred_log_acks_ += lines->cost;
      if (const auto* metric = report.as<MetricReported>()) deferred_log_acks_ += metric->cost;
      uint64_t number = spool_->last() + 1;
      const auto* step = report.as<StepReported>();
      if (step != nullptr || report.is<CheckpointReported>()) {
        saved_.insert(report.rank_id());
        unanswered_saves_.push_back({number, report.rank_id(), step != nullptr ? step->name : ""});
      }
      mark_preempted(report);
      pin_reported_blobs(report);
      note_end(report, number);
      report.at = is_final_report(report) ? options_.clock() : report.at;
      worker_protocol::FromWorker message;
      put_report(std::move(report), number, *message.mutable_report());
      spool_->append(message.SerializeAsString());
    }
    if (spool_->bytes() < kSpoolLogsMax) logs = std::exchange(deferred_log_acks_, 0);
    if (spool_->problem() != noted_problem_) problem = noted_problem_ = spool_->problem();
  }
  if (logs > 0) worker_->ack_logs(logs);
  if (!problem.empty())
    options_.on_note(
        "reports of attempts are kept in memory only, and are lost if this process ends: " +
        problem);
  progress();
}

void WorkerAgent::progress() {
  std::unique_lock lock(mutex_);
  if (is_progressing_) return;
  is_progressing_ = true;
  std::string message;
  while (next_message(message)) {
    Send send = send_;
    lock.unlock();
    for (const std::string& chunk : split_message(message)) send(chunk);
    lock.lock();
  }
  is_progressing_ = false;
}

bool WorkerAgent::next_message(std::string& message) {
  if (!send_) return false;
  if (!priority_messages_.empty()) {
    message = std::move(priority_messages_.front());
    priority_messages_.pop_front();
    return true;
  }
  if (has_inventory_delta_) {
    worker_protocol::FromWorker update;
    put_inventory_delta(inventory_delta_, *update.mutable_inventory_delta());
    message = update.SerializeAsString();
    inventory_delta_.added.clear();
    inventory_delta_.removed.clear();
    has_inventory_delta_ = false;
    return true;
  }
  if (is_accepted_ && !gpu_samples_.empty()) {
    worker_protocol::FromWorker update;
    put_gpu_sample(gpu_samples_.begin()->second, *update.mutable_gpu_sample());
    gpu_samples_.erase(gpu_samples_.begin());
    message = update.SerializeAsString();
    return true;
  }
  if (!is_accepted_ || in_flight_bytes_ >= kInFlightBytesMax) return false;
  auto entry = spool_->next();
  if (!entry) return false;
  if (core::has_mutant(core::Mutant::spool_forgets_sent)) spool_->acknowledge(entry->number);
  message = std::move(entry->bytes);
  in_flight_.emplace_back(entry->number, message.size());
  in_flight_bytes_ += message.size();
  return true;
}

}  // namespace flow::cluster
