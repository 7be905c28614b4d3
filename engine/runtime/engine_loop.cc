// The driver's life: start, the inbox, the loop. What a turn does is in turn.cc, what an act does
// in execute_commands.cc.
#include "engine/runtime/engine_loop.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/base/ids.hpp"
#include "engine/base/latch.hpp"
#include "engine/core/gangs.hpp"
#include "engine/process/cgroup.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/worker/gpu_discovery.hpp"

namespace flow {

namespace {

constexpr size_t kInputsMax = 64;  // of one turn: what it wrote is synced while the next decides
constexpr size_t kOwnTurnMax = 4;  // inputs that whoever posts them may turn itself
// A condition variable does not count the time that the machine is suspended, and timers do.
constexpr core::Time kSleepMaxMs = 60'000;

}  // namespace

EngineLoop::EngineLoop(const EngineLoopOptions& options, std::unique_ptr<Store> store)
    : options_(options),
      store_(std::move(store)),
      blobs_(*store_, options.state_dir),
      resolver_([this](const Digest& digest) { return read_blob(digest); }),
      builder_(options.builder ? options.builder : std::make_shared<Builder>(options.executor)),
      native_(options.jobs,
              [this](std::vector<Report> reports) { on_reports(std::move(reports)); }),
      gangs_(
          state_, clock_, worker_registry_,
          [this](core::Event event) { record_if_admitted(std::move(event), clock_.now()); },
          [this](const RunId& run) {
            const RunContext* context = context_of(run);
            return context != nullptr ? context->grace_ms : RunContext().grace_ms;
          }),
      reports_(gangs_, clock_, worker_registry_,
               [this](const Report& report) { publish_progress(report); }),
      membership_(
          state_, gangs_,
          // Local workers get their shares from this process, which may offer more slots than there
          // are.
          !options.is_closed,
          {[this](TurnInput input) { post(as_input(std::move(input))); },
           [this](core::Event event) { record_if_admitted(std::move(event), clock_.now()); },
           [this](std::function<void()> effect) { after_effects(std::move(effect)); }}),
      gpus_(gpu_hooks()) {}

Result<std::unique_ptr<EngineLoop>> EngineLoop::start(const EngineLoopOptions& options,
                                                      std::unique_ptr<Store> store) {
  std::unique_ptr<EngineLoop> engine_loop(new EngineLoop(options, std::move(store)));
  engine_loop->lock_inode_ = engine_loop->lock_inode();
  FLOW_TRY(engine_loop->recover_state());
  WorkerOptions worker;
  worker.state_dir = options.state_dir;
  worker.executor = options.executor;
  worker.executors_max = std::max(1, options.jobs);
  EngineLoop* self = engine_loop.get();
  auto made =
      make_worker(worker, [self](std::vector<Report> r) { self->on_reports(std::move(r)); });
  FLOW_TRY(made);
  engine_loop->worker_registry_.set_own(std::move(*made));
  engine_loop->write_thread_ = engine_thread([self] { self->write_loop(); });
  engine_loop->thread_ = engine_thread([self] { self->loop(); });
  return engine_loop;
}

EngineLoop::~EngineLoop() { shut_down(); }

Status EngineLoop::recover_state() {
  auto recovered = recover(*store_, blobs_);
  FLOW_TRY(recovered);
  state_ = std::move(*recovered);
  FLOW_TRY(
      store_->scan(Family::journal, "", "", [this](std::string_view, std::string_view records) {
        journal_bytes_ += records.size();
        return true;
      }));
  FLOW_TRY(resume_clock());
  core::EngineStarted started;
  started.epoch = state_.epoch + 1;
  started.cpus_milli = options_.jobs * 1000;
  started.memory_bytes = usable_memory_bytes();
  started.custom_resources = options_.custom_resources;
  started.leads_workers = options_.leads_cluster;
  Input input;
  input.event = started;
  std::vector<Input> first;
  first.push_back(std::move(input));
  if (options_.announced > 0) {
    Input announced;
    announced.event = core::WorkersAnnounced{options_.announced};
    first.push_back(std::move(announced));
  }
  turn(std::move(first), false);
  if (auto error = stopped_by()) return *error;
  // A run that ended just before a crash is frozen already: only its leaving is owed.
  std::vector<Input> ended;
  for (const auto& [id, run] : state_.runs) {
    if (!core::is_final(run.status)) continue;
    Input drop;
    drop.event = core::RunDeleted{id};
    ended.push_back(std::move(drop));
  }
  post(std::move(ended));
  return {};
}

Status EngineLoop::resume_clock() {
  auto row = store_->get(Family::meta, kClockKey);
  FLOW_TRY(row);
  if (row->has_value()) clock_saved_ = std::strtoll((*row)->c_str(), nullptr, 10);
  bool at_rest = std::ranges::all_of(
      state_.runs, [](const auto& each) { return core::is_final(each.second.status); });
  clock_.resume(state_.at, state_.at - clock_saved_, at_rest);
  return {};
}

core::RunId EngineLoop::new_run_id() const {
  core::Time at = now_ms();
  std::string newest;  // of the ids that a clock which was ahead gave
  Status scanned = store_->scan(Family::runs, "", run_key(run_id_start(at)),
                                [&](std::string_view key, std::string_view) {
                                  newest = std::string(key);
                                  return true;
                                });
  if (scanned.ok() && is_run_id(newest)) at = std::max(at, run_id_ms(newest) + 1);
  return make_run_id(at);
}

void EngineLoop::shut_down() {
  gpus_.stop_watch();  // it posts
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  {
    std::lock_guard lock(mutex_);
    is_writer_quitting_ = true;
  }
  commit_begun_.notify_all();
  if (write_thread_.joinable()) write_thread_.join();
  worker_registry_.end_own();  // ends every child
}

GpuInventory::Hooks EngineLoop::gpu_hooks() {
  return {
      .discover = [this] { return find_gpus(options_.executor); },
      .publish = [this](const std::vector<Gpu>& gpus) -> Status {
        FLOW_TRY(post_and_wait(core::GpusFound{gpus}));
        return {};
      },
      .watch = [this](const std::vector<Gpu>& gpus,
                      GpuWatch::OnError on_error) -> std::shared_ptr<void> {
        return std::make_shared<GpuWatch>(options_.executor, gpus, std::move(on_error),
                                          [](const std::string&) {});
      },
      .on_error =
          [this](const std::string& uuid, const GpuError& error) {
            Input input;
            input.event = core::GpuFailed{0, uuid, error.fault, error.is_dead};
            post(std::move(input));
          },
  };
}

void EngineLoop::define_native(const std::string& name, const std::string& version,
                               NativeTask task) {
  native_.define(name, version, std::move(task));
}

std::optional<std::string> EngineLoop::native_version(const std::string& name) const {
  return native_.version(name);
}

void EngineLoop::define_operations(const std::string& name, const std::string& library) {
  std::lock_guard lock(mutex_);
  operations_[name] = library;
}

std::string EngineLoop::operations_library(const std::string& name) const {
  std::lock_guard lock(mutex_);
  auto found = operations_.find(name);
  return found == operations_.end() ? "" : found->second;
}

std::optional<Error> EngineLoop::stopped_by() const {
  std::lock_guard lock(mutex_);
  return stopped_by_;
}

void EngineLoop::post_failure(const core::AttemptId& id, core::Cause cause, std::string message) {
  core::AttemptFailed event;
  event.id = id;
  event.failure.cause = cause;
  event.failure.message = std::move(message);
  Input input;
  input.event = std::move(event);
  post(std::move(input));
}

void EngineLoop::on_reports(std::vector<Report> reports) {
  std::vector<Input> inputs;
  inputs.reserve(reports.size());
  for (Report& report : reports)
    inputs.push_back(as_input(reports_.input_of(std::move(report), "")));
  post_or_turn(std::move(inputs));
}

void EngineLoop::worker_reported(const std::string& name, Report report,
                                 std::pair<std::string, std::string> row,
                                 std::function<void(bool)> decided, std::function<void()> durable) {
  std::vector<Input> inputs;
  for (TurnInput& each : reports_.inputs_of(std::move(report), name, std::move(row),
                                            std::move(decided), std::move(durable)))
    inputs.push_back(as_input(std::move(each)));
  post(std::move(inputs));
}

EngineLoop::Input EngineLoop::as_input(TurnInput from) {
  Input input;
  input.done = std::move(from.outcome);
  if (auto* posted = std::get_if<PostedEvent>(&from.what)) {
    input.event = std::move(posted->event);
    input.blobs = std::move(posted->blobs);
    input.kv = std::move(posted->metadata);
    input.attempt = std::move(posted->attempt);
    input.at = posted->reported_at;
  } else if (auto* log = std::get_if<AttemptLog>(&from.what)) {
    input.has_event = false;
    input.is_log = true;
    input.attempt = std::move(log->attempt);
    input.log_rank = log->rank;
    input.stream = log->stream;
    input.at = log->at;
    input.text = std::move(log->text);
    input.log_cost = log->cost;
  } else if (auto* saved = std::get_if<SavedProgress>(&from.what)) {
    input.event = saved->event;
    input.blobs = std::move(saved->blobs);
    // The rows are keyed by the unit's name and key, which only a turn may look up.
    input.reads_store = false;
    input.control = [event = std::move(saved->event), id = std::move(saved->attempt),
                     name = std::move(saved->step),
                     value = std::move(saved->value)](Batch& batch, core::State& state) mutable {
      if (!core::admit(state, event)) return;  // then its blobs are not kept either
      const core::Run& run = state.runs.at(id.run);
      const core::Unit& unit = run.units[id.unit];
      std::string task = InputResolver::unit_name(run, id.unit);
      if (name.empty()) {
        batch.put(Family::kv, checkpoint_key(id.run, task, unit.key), std::move(value));
      } else {
        batch.put(Family::kv, step_prefix(id.run, task, unit.key) + name, std::move(value));
      }
    };
  } else if (auto* state_callback = std::get_if<StateCallback>(&from.what)) {
    input.only(std::move(state_callback->run));
  } else {
    input.has_event = false;
    input.control = std::move(std::get<StoreCallback>(from.what).run);
  }
  return input;
}

std::vector<std::string> EngineLoop::disconnected_workers() {
  std::vector<std::string> names;
  inspect(
      [&](const core::State& state, InputResolver&) { names = flow::disconnected_workers(state); });
  return names;
}

std::vector<std::string> EngineLoop::disconnected_workers_at_work() {
  std::vector<std::string> names;
  inspect([&](const core::State& state, InputResolver&) {
    names = flow::disconnected_workers(state, true);
  });
  return names;
}

void EngineLoop::put_metadata(std::string key, std::string value) {
  Input input;
  input.only([key = std::move(key), value = std::move(value)](Batch& batch, core::State&) {
    if (value.empty()) return batch.erase(Family::kv, key);
    batch.put(Family::kv, key, value);
  });
  post(std::move(input));
}

std::string EngineLoop::worker_name(core::WorkerId worker) const {
  return worker < state_.workers.size() ? state_.workers[worker].info.name : "";
}

void EngineLoop::post(Input input) {
  std::vector<Input> one;
  one.push_back(std::move(input));
  post(std::move(one));
}

void EngineLoop::post(std::vector<Input> inputs) {
  if (inputs.empty()) return;
  bool refused = false;
  {
    std::lock_guard lock(mutex_);
    refused = quit_ || stopped_by_.has_value();
    if (!refused) {
      for (Input& input : inputs) inbox_.push_back(std::move(input));
    }
  }
  if (!refused) {
    wake_.notify_one();
    return;
  }
  for (Input& input : inputs) {
    if (input.done) input.done(false);
  }
}

// Whoever finds nobody turning, and has a little to do, does it: a step of a chain need not wait
// for another thread to wake.
void EngineLoop::post_or_turn(std::vector<Input> inputs) {
  if (inputs.size() <= kOwnTurnMax) {
    std::unique_lock lock(mutex_);
    bool is_idle = !is_turning_ && inbox_.empty() && !quit_ && !stopped_by_ && is_started_;
    if (is_idle) {
      is_turning_ = true;
      bool is_written = commit_phase_ == CommitPhase::written;
      lock.unlock();
      if (is_written) await_commit();
      turn(std::move(inputs), true);
      lock.lock();
      is_turning_ = false;
      if (has_work() || next_timer() < wake_at_ || quit_ || stopped_by_) wake_.notify_all();
      return;
    }
  }
  post(std::move(inputs));
}

core::Time EngineLoop::next_timer() const {
  core::Time next = INT64_MAX;
  if (!timers_.empty()) next = timers_.begin()->first;
  if (!serve_ends_.empty()) next = std::min(next, serve_ends_.begin()->first);
  next = std::min(next, gangs_.next_report_at());
  return next;
}

bool EngineLoop::has_work() const {
  if (commit_phase_ == CommitPhase::written) return true;
  if (commit_phase_ == CommitPhase::idle && !open_batch_.empty()) return true;
  return !inbox_.empty() || !queries_.empty();
}

void EngineLoop::loop() {
  std::unique_lock lock(mutex_);
  is_started_ = true;
  while (true) {
    while (!quit_ && !stopped_by_ && (is_turning_ || !has_work())) {
      if (is_turning_) {
        wake_at_ = INT64_MAX;  // whoever turns wakes it for the next timer too
        wake_.wait(lock);
        continue;
      }
      core::Time now = clock_.now();
      wake_at_ = next_timer();
      if (wake_at_ <= now) break;
      if (wake_at_ == INT64_MAX) {
        wake_.wait(lock);
      } else {
        wake_.wait_for(lock, std::chrono::milliseconds(std::min(wake_at_ - now, kSleepMaxMs)));
      }
    }
    // What another thread has begun comes to its end first.
    while (is_turning_) wake_.wait(lock);
    if (quit_ || stopped_by_) break;
    std::vector<Input> taken;
    bool is_written = commit_phase_ == CommitPhase::written;
    while (!inbox_.empty() && taken.size() < kInputsMax) {
      taken.push_back(std::move(inbox_.front()));
      inbox_.pop_front();
    }
    is_turning_ = true;
    wake_at_ = 0;
    lock.unlock();
    if (is_written) await_commit();
    std::vector<Input> due = due_timers(clock_.now());
    taken.insert(taken.end(), std::make_move_iterator(due.begin()),
                 std::make_move_iterator(due.end()));
    turn(std::move(taken), true);
    lock.lock();
    is_turning_ = false;
  }
  lock.unlock();
  commit(false);
  lock.lock();
  std::deque<Input> left = std::move(inbox_);
  inbox_.clear();
  lock.unlock();
  for (Input& input : left) {
    if (input.done) input.done(false);
  }
  for (auto& [id, latch] : std::exchange(interruptions_, {})) latch->open(false);
  auto why = stopped_by();
  for (auto& [id, context] : contexts_) {
    if (context.listener && why) context.listener->fail(*why);
    if (context.listener && !why) context.listener->on_end();
  }
  log_engine_stop();
}

void EngineLoop::fail(const Error& error) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_by_) return;
    stopped_by_ = error;
  }
  log_engine_failure(error);
}

Result<bool> EngineLoop::post_and_wait(core::Event event,
                                       std::vector<std::pair<Digest, std::string>> blobs,
                                       std::vector<std::pair<std::string, std::string>> kv) {
  auto latch = std::make_shared<Latch>();
  Input input;
  input.event = std::move(event);
  input.blobs = std::move(blobs);
  input.kv = std::move(kv);
  input.done = [latch](bool admitted) { latch->open(admitted); };
  post(std::move(input));
  bool admitted = latch->wait();
  if (auto error = stopped_by()) return *error;
  return admitted;
}

void EngineLoop::inspect(const std::function<void(const core::State&, InputResolver&)>& read) {
  auto latch = std::make_shared<Latch>();
  Input input;
  input.has_event = false;
  input.control = [&read, this](Batch&, core::State& state) { read(state, resolver_); };
  input.done = [latch](bool admitted) { latch->open(admitted); };
  post(std::move(input));
  latch->wait();
}

void EngineLoop::collect(const std::function<void(const core::State&, Batch&)>& mark,
                         const std::function<void()>& sweep) {
  auto alone = pins_.lock_for_collection();
  inspect([&, this](const core::State& state, InputResolver&) {
    commit(false);  // what came before in this turn is content like other
    mark(state, open_batch_.batch);
    snapshot_due_ = true;
    commit(false);  // before what comes after in this turn finds content that is leaving
    if (!stopped_by()) sweep();
  });
}

void EngineLoop::await_rank_ends(std::chrono::milliseconds most) {
  auto until = std::chrono::steady_clock::now() + most;
  while (true) {
    bool is_one_missing = false;
    inspect([&](const core::State&, InputResolver&) {
      is_one_missing = gangs_.has_unreported_ranks();
    });
    if (!is_one_missing || std::chrono::steady_clock::now() >= until) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void EngineLoop::interrupt(const RunId& run, bool kill) {
  Input input;
  input.event = core::StopRequested{run};
  if (kill) {
    input.control = [this, run](Batch&, core::State& state) {
      for (core::Command& command : core::kill_commands(state, run))
        commands_.push_back(std::move(command));
    };
  }
  post(std::move(input));
}

}  // namespace flow
