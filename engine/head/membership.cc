#include "engine/head/membership.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>

#include "engine/base/address.hpp"
#include "engine/base/clock.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/base/log.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/core/mutants.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

std::string secret_path(const std::string& state_dir) { return state_dir + "/secret"; }

namespace {

/// Opens a small blob, which is in the database.
std::optional<Result<cluster::BlobReader>> inline_blob(EngineLoop& engine_loop,
                                                       const Digest& digest) {
  auto row = engine_loop.parts().store.get(Family::blobs, digest.view());
  if (!row.ok()) return Result<cluster::BlobReader>(row.error());
  if (!row->has_value()) return std::nullopt;
  return Result<cluster::BlobReader>(cluster::BlobReader::of_bytes(std::move(**row)));
}

/// The host of a link's description such as "10.0.0.9:41231 (tcp)"; "" if it begins with no
/// address.
std::string host_of(std::string_view description) {
  auto address = parse_address(description.substr(0, description.find(' ')));
  return address.ok() ? address->host : "";
}

}  // namespace

Result<std::unique_ptr<ClusterMembership>> ClusterMembership::start(EngineLoop& engine_loop,
                                                                    const ClusterOptions& options) {
  if (options.lost_after_ms < kLostAfterMsMin || options.lost_after_ms > kLostAfterMsMax)
    return user_error(fmt::format(
        "a worker can't count as lost after {} ms of silence: it is {} ms at least, and {} at most",
        options.lost_after_ms, kLostAfterMsMin, kLostAfterMsMax));
  std::string path =
      options.secret_file.empty() ? secret_path(options.state_dir) : options.secret_file;
  auto session = session_options(cluster::Role::head, machine_name(), path, true);
  FLOW_TRY(session);
  return make(engine_loop, options, std::move(*session), true);
}

Result<std::unique_ptr<ClusterMembership>> ClusterMembership::open(
    EngineLoop& engine_loop, const ClusterOptions& options,
    const cluster::SessionOptions& session) {
  return make(engine_loop, options, session, false);
}

Result<std::unique_ptr<ClusterMembership>> ClusterMembership::make(EngineLoop& engine_loop,
                                                                   const ClusterOptions& options,
                                                                   cluster::SessionOptions session,
                                                                   bool has_threads) {
  std::unique_ptr<ClusterMembership> membership(new ClusterMembership(engine_loop, session.now_us));
  cluster::set_lost_after(session, options.lost_after_ms);
  engine_loop.inspect(
      [&](const core::State& state, InputResolver&) { session.epoch = state.epoch; });
  auto transport = options.make_transport(options.listen, session);
  FLOW_TRY(transport);
  membership->transport_ = std::move(*transport);
  membership->await_former_workers(options.adopt_ms);
  if (has_threads) membership->thread_ = engine_thread([self = membership.get()] { self->loop(); });
  cluster::WorkerListenerOptions listener_options;
  listener_options.session = session;
  listener_options.listen = options.listen;
  listener_options.state_dir = options.state_dir;
  listener_options.encrypt = options.encrypt;
  listener_options.blob_directory = engine_loop.parts().blob_directory;
  listener_options.resolve = [&engine_loop](const Digest& digest) {
    return inline_blob(engine_loop, digest);
  };
  listener_options.on_note = options.on_note ? options.on_note : [](const std::string& text) {
    std::fprintf(stderr, "flow: %s\n", text.c_str());
  };
  if (engine_loop.parts().options.clock) listener_options.clock = engine_loop.parts().options.clock;
  listener_options.has_thread = has_threads;
  listener_options.accept_client = [self = membership.get()](
                                       const cluster::SessionPeer& peer,
                                       std::shared_ptr<cluster::SessionLink> link) {
    return self->on_client(peer, link);
  };
  auto head =
      cluster::WorkerListener::start(*membership->transport_, listener_options, *membership);
  FLOW_TRY(head);
  membership->listener_ = std::move(*head);
  std::vector<std::string> joined;
  {
    std::lock_guard lock(membership->mutex_);
    membership->listens_at_ = membership->listener_->address();
    joined.swap(membership->joined_);
  }
  for (const std::string& name : joined) membership->record_address(name);
  membership->open_fronts(session);
  log::info("head started", {.detail = "listens at " + membership->address()});
  return membership;
}

// Replicas of services on the workers connect to fronts on this machine.
void ClusterMembership::open_fronts(const cluster::SessionOptions& session) {
  auto listens = numeric_address(address());
  auto parsed = listens.ok() ? parse_address(*listens) : Result<Address>(listens.error());
  if (!parsed.ok() || session.secret == nullptr) return;
  engine_loop_.parts().workers.open_fronts({.host = parsed->host,
                                            .name = session.name,
                                            .version = session.version,
                                            .schema = session.schema,
                                            .secret = std::string(session.secret->view()),
                                            .lost_after_ms = session.lost_after_ms});
}

// A worker may join before the head knows the address at which it listens.
void ClusterMembership::record_address(const std::string& name) {
  std::lock_guard lock(mutex_);
  if (listens_at_.empty()) return joined_.push_back(name);
  engine_loop_.put_metadata(head_key(name), listens_at_ + "\n" + address_for_users(listens_at_));
}

FormerHead head_of_worker(EngineLoop& engine_loop, const std::string& name) {
  auto row = engine_loop.parts().store.get(Family::kv, head_key(name));
  std::string text = row.ok() ? row->value_or("") : "";
  size_t line = text.find('\n');
  bool is_alone = line == std::string::npos;  // the format of earlier versions
  if (is_alone) return {text, text.empty() ? "" : address_for_users(text)};
  return {text.substr(0, line), text.substr(line + 1)};
}

std::string ClusterMembership::note_of_moved_head() const {
  std::string names, former, own = address_for_users(address());
  for (const std::string& name : disconnected_workers(engine_loop_)) {
    FormerHead head = head_of_worker(engine_loop_, name);
    if (head.reached_at.empty() || head.reached_at == own) continue;
    names += fmt::format("{}`{}` at {}", names.empty() ? "" : ", ", name, head.reached_at);
    former = head.listened_at;
  }
  if (names.empty()) return "";
  return fmt::format(
      "these workers joined an earlier head of this state and still try its address: {}. This head "
      "listens at {}. Restart it with `--listen {}`, or restart the workers with `--join {}` and "
      "their former `--dir`",
      names, own, former, own);
}

// Attempts of its workers keep running for the next engine.
ClusterMembership::~ClusterMembership() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
    wake_.notify_all();
  }
  if (listener_) log::info("head stopped");
  listener_.reset();
  if (thread_.joinable()) thread_.join();
}

void ClusterMembership::serve_clients(ClientHandler handler) {
  std::lock_guard lock(clients_mutex_);
  client_handler_ = std::move(handler);
}

std::shared_ptr<cluster::SessionUser> ClusterMembership::on_client(
    const cluster::SessionPeer& peer, const std::shared_ptr<cluster::SessionLink>& link) {
  if (peer.version != version()) {
    std::string why =
        fmt::format("this head is flow {} and its client flow {}: install the same flow on both",
                    version(), peer.version);
    log::warning("client rejected", {.detail = why});
    link->end(why);
    return nullptr;
  }
  auto channel = std::make_shared<cluster::SessionChannel>();
  channel->attach(link);
  std::lock_guard lock(clients_mutex_);
  if (!client_handler_) {
    constexpr const char* kWhy = "this head is starting or ending";
    log::warning("client rejected", {.detail = kWhy});
    link->end(kWhy);
    return nullptr;
  }
  client_handler_(channel, host_of(link->link()->description()));
  return channel;
}

void ClusterMembership::await_former_workers(int64_t adopt_ms) {
  std::vector<std::string> names = disconnected_workers(engine_loop_);
  std::lock_guard lock(mutex_);
  for (const std::string& name : names) {
    workers_[name].serial = ++last_serial_;
    start_lease(
        name, last_serial_, adopt_ms,
        fmt::format("it did not rejoin within {} s of the engine's restart", adopt_ms / 1000.0),
        false);
  }
}

std::string ClusterMembership::address_of(const std::string& name) const {
  std::lock_guard lock(mutex_);
  auto found = workers_.find(name);
  return found != workers_.end() && found->second.connection ? found->second.address : "";
}

bool ClusterMembership::has_left(const std::string& name) const {
  std::lock_guard lock(mutex_);
  auto found = workers_.find(name);
  return found != workers_.end() && !found->second.connection && found->second.is_draining;
}

uint64_t ClusterMembership::committed_of(const std::string& name, const std::string& spool) const {
  auto row = engine_loop_.parts().store.get(Family::kv, spool_key(name));
  if (!row.ok() || !row->has_value() || !(*row)->starts_with(spool + "\n")) return 0;
  std::string_view digits = std::string_view(**row).substr(spool.size() + 1);
  uint64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

std::string ClusterMembership::on_join(std::shared_ptr<WorkerConnection> connection,
                                       cluster::JoinRequest request) {
  const std::string name = request.worker.name;
  if (name == kHeadWorkerName)
    return fmt::format(
        "the head itself is shown as `{}`: give this worker another name with --name", name);
  uint64_t received = committed_of(name, request.spool);
  std::shared_ptr<WorkerConnection> former;
  bool is_restarted = false;
  {
    std::lock_guard lock(mutex_);
    if (!workers_.contains(name)) forget_disconnected();
    ConnectedWorker& worker = workers_[name];
    if (worker.connection && worker.process != request.process)
      return fmt::format(
          "a worker named `{}` has already joined, from {}: give this one another name with --name",
          name, worker.address);
    former = std::exchange(worker.connection, connection);
    bool is_known = worker.spool == request.spool;
    if (core::has_mutant(core::Mutant::rejoin_takes_reports_again)) is_known = false;
    if (is_known) received = std::max(received, worker.received);
    is_restarted = !worker.process.empty() && worker.process != request.process;
    worker.address = request.address;
    worker.process = request.process;
    worker.spool = request.spool;
    worker.received = worker.durable = received;
    worker.is_acked = true;
    worker.is_draining = false;
    worker.serial = ++last_serial_;
    engine_loop_.parts().workers.attach(name, connection, worker.address);
  }
  if (former) {
    engine_loop_.parts().membership.disconnect(name, "it joined over another connection");
    former->disconnect("this worker joined over another connection");
  }
  auto decided = [connection, received, name](bool admitted) {
    if (admitted) return connection->accept_join(received);
    std::string why =
        "the head cannot accept this worker: it has the maximum number of workers, or this "
        "worker's description is not valid";
    log::warning("worker rejected", {.worker = name, .detail = why});
    connection->disconnect(why);
  };
  record_address(name);
  engine_loop_.parts().membership.join({std::move(request.worker), std::move(request.ranks),
                                        is_restarted, std::move(request.machine)},
                                       decided);
  return "";
}

void forget_lost(ConnectedWorkers& workers, const std::set<std::string>& disconnected, size_t max) {
  if (workers.size() < max) return;
  std::erase_if(workers, [&](const auto& each) {
    const ConnectedWorker& worker = each.second;
    return !worker.connection && worker.durable == worker.received &&
           !disconnected.contains(each.first);
  });
}

// Requires the lock.
void ClusterMembership::forget_disconnected() {
  std::set<std::string> disconnected;
  for (const auto& [at, lease] : leases_) disconnected.insert(lease.name);
  forget_lost(workers_, disconnected, kKnownWorkersMax);
}

ConnectedWorkers::iterator ClusterMembership::find(const WorkerConnection& connection) {
  return std::find_if(workers_.begin(), workers_.end(), [&](const auto& each) {
    return each.second.connection.get() == &connection;
  });
}

void ClusterMembership::on_draining(WorkerConnection& connection, const std::string& why) {
  std::lock_guard lock(mutex_);
  auto found = find(connection);
  if (found == workers_.end()) return;
  found->second.is_draining = true;
  engine_loop_.parts().membership.drain(found->first, why);
}

void ClusterMembership::on_gpu_failed(WorkerConnection& connection, const std::string& uuid,
                                      const std::string& fault, bool is_dead) {
  std::lock_guard lock(mutex_);
  auto found = find(connection);
  if (found != workers_.end())
    engine_loop_.parts().membership.fail_gpu(found->first, uuid, fault, is_dead);
}

void ClusterMembership::on_gpu_sample(WorkerConnection& connection, GpuSample sample) {
  std::lock_guard lock(mutex_);
  auto found = find(connection);
  if (found == workers_.end()) return;
  std::shared_ptr<GpuSamples>& samples = found->second.gpu_samples;
  if (!samples) samples = std::make_shared<GpuSamples>();
  samples->put(std::move(sample), monotonic_us());
}

std::vector<GpuSamples::TimedSample> ClusterMembership::gpu_samples_of(
    const std::string& name) const {
  std::lock_guard lock(mutex_);
  auto found = workers_.find(name);
  bool has_some = found != workers_.end() && found->second.gpu_samples;
  return has_some ? found->second.gpu_samples->all_timed() : std::vector<GpuSamples::TimedSample>();
}

namespace {

/// Removes files without references: those that the report made obsolete, or its own if it was
/// rejected.
void remove_files(const std::vector<std::string>& files) {
  for (const std::string& file : files) ::unlink(file.c_str());
}

}  // namespace

void ClusterMembership::on_report(WorkerConnection& connection, cluster::ReceivedReport received) {
  uint64_t number = received.number;
  std::string name, row;
  uint64_t serial = 0;
  {
    std::lock_guard lock(mutex_);
    auto found = find(connection);
    if (found == workers_.end()) return;
    ConnectedWorker& worker = found->second;
    if (number <= worker.received) return;  // received before its connection broke
    worker.received = number;
    name = found->first;
    serial = worker.serial;
    row = fmt::format("{}\n{}", worker.spool, number);
  }
  auto decided = [placed = std::move(received.placed), obsolete = std::move(received.obsolete)](
                     bool admitted) { remove_files(admitted ? obsolete : placed); };
  EngineComponents& parts = engine_loop_.parts();
  parts.inbox.post(parts.reports.inputs_of(
      std::move(received.report), name, {spool_key(name), std::move(row)}, decided,
      [this, name, serial, number] { on_durable(name, serial, number); }));
}

// Whether the worker and the attempt are still current is checked in the turn.
void ClusterMembership::on_rank_address(Report report) {
  EngineComponents& parts = engine_loop_.parts();
  parts.inbox.post(parts.reports.input_of(std::move(report), ""));
}

// Acknowledges the last of the reports in a commit.
void ClusterMembership::on_durable(const std::string& name, uint64_t serial, uint64_t number) {
  std::lock_guard lock(mutex_);
  auto found = workers_.find(name);
  if (found == workers_.end() || found->second.serial != serial) return;
  ConnectedWorker& worker = found->second;
  worker.durable = number;
  if (!std::exchange(worker.is_acked, false)) return;
  engine_loop_.parts().group_commit.after_effects(
      [this, name, serial] { ack_durable(name, serial); });
}

void ClusterMembership::ack_durable(const std::string& name, uint64_t serial) {
  std::shared_ptr<WorkerConnection> connection;
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    auto found = workers_.find(name);
    if (found == workers_.end() || found->second.serial != serial) return;
    ConnectedWorker& worker = found->second;
    worker.is_acked = true;
    connection = worker.connection;
    number = worker.durable;
  }
  if (connection) connection->ack_reports(number);
}

void ClusterMembership::on_disconnected(WorkerConnection& connection, bool is_for_good,
                                        const std::string& why) {
  std::lock_guard lock(mutex_);
  auto found = find(connection);
  if (found == workers_.end()) return;  // another connection has replaced it
  auto& [name, worker] = *found;
  worker.connection.reset();
  worker.gpu_samples.reset();
  engine_loop_.parts().workers.detach(name, connection);
  if (quit_) return;
  if (is_for_good) return engine_loop_.parts().membership.lose(name, why);
  engine_loop_.parts().membership.disconnect(name, why);
  start_lease(name, worker.serial, kRejoinMs, why, true);
}

// Requires the lock.
void ClusterMembership::start_lease(const std::string& name, uint64_t serial, int64_t ms,
                                    std::string why, bool has_died) {
  leases_.emplace(now_us_() + ms * 1000, Lease{name, serial, std::move(why), has_died});
  wake_.notify_all();
}

// Requires the lock.
void ClusterMembership::end_due_leases() {
  while (!leases_.empty() && leases_.begin()->first <= now_us_()) {
    Lease lease = std::move(leases_.begin()->second);
    leases_.erase(leases_.begin());
    auto found = workers_.find(lease.name);
    bool is_gone = found != workers_.end() && !found->second.connection &&
                   found->second.serial == lease.serial;
    if (is_gone) engine_loop_.parts().membership.lose(lease.name, lease.why, lease.has_died);
  }
}

void ClusterMembership::loop() {
  std::unique_lock lock(mutex_);
  while (!quit_) {
    end_due_leases();
    if (leases_.empty()) {
      wake_.wait(lock);
    } else {
      wake_.wait_for(lock, std::chrono::microseconds(leases_.begin()->first - now_us_()));
    }
  }
}

void ClusterMembership::tick() {
  listener_->tick();
  std::lock_guard lock(mutex_);
  end_due_leases();
}

}  // namespace flow
