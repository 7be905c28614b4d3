#include "engine/head/membership.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "engine/base/engine_thread.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

std::string secret_path(const std::string& state_dir) { return state_dir + "/secret"; }

namespace {

/// What is small lies in the database.
std::optional<Result<cluster::BlobReader>> inline_content(Driver& driver, const Digest& digest) {
  auto row = driver.store().get(Family::blobs, digest.view());
  if (!row.ok()) return Result<cluster::BlobReader>(row.error());
  if (!row->has_value()) return std::nullopt;
  return Result<cluster::BlobReader>(cluster::BlobReader::of_bytes(std::move(**row)));
}

}  // namespace

Result<std::unique_ptr<Cluster>> Cluster::start(Driver& driver, const ClusterOptions& options) {
  if (options.lost_after_ms < kLostAfterMsMin || options.lost_after_ms > kLostAfterMsMax)
    return user_error(fmt::format(
        "a worker can't count as lost after {} ms of silence: it is {} ms at least, and {} at most",
        options.lost_after_ms, kLostAfterMsMin, kLostAfterMsMax));
  std::unique_ptr<Cluster> made(new Cluster(driver));
  std::string path =
      options.secret_file.empty() ? secret_path(options.state_dir) : options.secret_file;
  auto session = session_options(cluster::Role::head, machine_name(), path, true);
  FLOW_TRY(session);
  cluster::set_lost_after(*session, options.lost_after_ms);
  driver.inspect([&](const core::State& state, Resolver&) { session->epoch = state.epoch; });
  auto transport = options.make_transport(options.listen, *session);
  FLOW_TRY(transport);
  made->transport_ = std::move(*transport);
  made->await_earlier(options.adopt_ms);
  made->thread_ = engine_thread([self = made.get()] { self->loop(); });
  cluster::WorkerListenerOptions head_options;
  head_options.session = *session;
  head_options.listen = options.listen;
  head_options.state_dir = options.state_dir;
  head_options.encrypt = options.encrypt;
  head_options.blob_directory = driver.blob_directory();
  head_options.resolve = [&driver](const Digest& digest) { return inline_content(driver, digest); };
  head_options.on_note = [](const std::string& text) {
    std::fprintf(stderr, "flow: %s\n", text.c_str());
  };
  head_options.accept_client = [self = made.get()](const cluster::SessionPeer& peer,
                                                   std::shared_ptr<cluster::SessionLink> link) {
    return self->on_client(peer, link);
  };
  auto head = cluster::WorkerListener::start(*made->transport_, head_options, *made);
  FLOW_TRY(head);
  made->head_ = std::move(*head);
  std::vector<std::string> joined;
  {
    std::lock_guard lock(made->mutex_);
    made->listens_at_ = made->head_->address();
    joined.swap(made->joined_);
  }
  for (const std::string& name : joined) made->keep_address(name);
  return made;
}

// It may join while the head is just beginning to listen.
void Cluster::keep_address(const std::string& name) {
  std::lock_guard lock(mutex_);
  if (listens_at_.empty()) return joined_.push_back(name);
  driver_.keep_row(head_key(name), listens_at_ + "\n" + address_for_users(listens_at_));
}

FormerHead head_of_worker(Driver& driver, const std::string& name) {
  auto row = driver.store().get(Family::kv, head_key(name));
  std::string text = row.ok() ? row->value_or("") : "";
  size_t line = text.find('\n');
  bool is_alone = line == std::string::npos;  // as earlier versions wrote it
  if (is_alone) return {text, text.empty() ? "" : address_for_users(text)};
  return {text.substr(0, line), text.substr(line + 1)};
}

std::string Cluster::note_of_moved_head() const {
  std::string names, former, own = address_for_users(address());
  for (const std::string& name : driver_.awaited_hosts()) {
    FormerHead head = head_of_worker(driver_, name);
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

// What its workers run goes on, for the next engine.
Cluster::~Cluster() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
    wake_.notify_all();
  }
  head_.reset();
  if (thread_.joinable()) thread_.join();
}

void Cluster::serve_clients(std::function<void(std::shared_ptr<cluster::SessionChannel>)> take) {
  std::lock_guard lock(clients_mutex_);
  take_client_ = std::move(take);
}

std::shared_ptr<cluster::SessionUser> Cluster::on_client(
    const cluster::SessionPeer& peer, const std::shared_ptr<cluster::SessionLink>& link) {
  if (peer.version != version()) {
    link->end(fmt::format("this head is flow {} and its client flow {}: install one flow on both",
                          version(), peer.version));
    return nullptr;
  }
  auto channel = std::make_shared<cluster::SessionChannel>();
  channel->attach(link);
  std::lock_guard lock(clients_mutex_);
  if (!take_client_) {
    link->end("this head is starting or ending");
    return nullptr;
  }
  take_client_(channel);
  return channel;
}

void Cluster::await_earlier(int64_t adopt_ms) {
  std::vector<std::string> names = driver_.awaited_hosts();
  std::lock_guard lock(mutex_);
  for (const std::string& name : names) {
    members_[name].serial = ++last_serial_;
    wait_for(
        name, last_serial_, adopt_ms,
        fmt::format("it did not come back within {} s of the engine's restart", adopt_ms / 1000.0),
        false);
  }
}

std::string Cluster::address_of(const std::string& name) const {
  std::lock_guard lock(mutex_);
  auto found = members_.find(name);
  return found != members_.end() && found->second.host ? found->second.address : "";
}

bool Cluster::has_left(const std::string& name) const {
  std::lock_guard lock(mutex_);
  auto found = members_.find(name);
  return found != members_.end() && !found->second.host && found->second.is_draining;
}

uint64_t Cluster::committed_of(const std::string& name, const std::string& spool) const {
  auto row = driver_.store().get(Family::kv, spool_key(name));
  if (!row.ok() || !row->has_value() || !(*row)->starts_with(spool + "\n")) return 0;
  std::string_view digits = std::string_view(**row).substr(spool.size() + 1);
  uint64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

std::string Cluster::on_join(std::shared_ptr<RemoteHost> host, cluster::JoinRequest request) {
  const std::string name = request.worker.name;
  if (name == kHomeName)
    return fmt::format(
        "what the head runs itself is shown as `{}`: give this worker another name "
        "with --name",
        name);
  uint64_t taken = committed_of(name, request.spool);
  std::shared_ptr<RemoteHost> former;
  bool is_restarted = false;
  {
    std::lock_guard lock(mutex_);
    if (!members_.contains(name)) forget_gone();
    Member& member = members_[name];
    if (member.host && member.process != request.process)
      return fmt::format(
          "a worker named `{}` is here already, from {}: give this one another name "
          "with --name",
          name, member.address);
    former = std::exchange(member.host, host);
    if (member.spool == request.spool) taken = std::max(taken, member.taken);
    is_restarted = !member.process.empty() && member.process != request.process;
    member.address = request.address;
    member.process = request.process;
    member.spool = request.spool;
    member.taken = member.durable = taken;
    member.is_told = true;
    member.is_draining = false;
    member.serial = ++last_serial_;
    driver_.fleet().attach(name, host, member.address);
  }
  if (former) {
    driver_.host_away(name, "it came by another connection");
    former->disconnect("this worker came by another connection");
  }
  auto decided = [host, taken](bool admitted) {
    if (admitted) return host->accept_join(taken);
    host->disconnect(
        "the head cannot accept this worker: it has the maximum number of workers, or this "
        "worker's description is not valid");
  };
  keep_address(name);
  driver_.host_joined({std::move(request.worker), std::move(request.attempts), is_restarted},
                      std::move(request.machine), decided);
  return "";
}

void forget_lost(WorkerMembers& members, const std::set<std::string>& awaited, size_t max) {
  if (members.size() < max) return;
  std::erase_if(members, [&](const auto& each) {
    const WorkerMember& member = each.second;
    return !member.host && member.durable == member.taken && !awaited.contains(each.first);
  });
}

// Under the lock.
void Cluster::forget_gone() {
  std::set<std::string> awaited;
  for (const auto& [at, lease] : leases_) awaited.insert(lease.name);
  forget_lost(members_, awaited, kMembersMax);
}

WorkerMembers::iterator Cluster::find(const RemoteHost& host) {
  return std::find_if(members_.begin(), members_.end(),
                      [&](const auto& each) { return each.second.host.get() == &host; });
}

void Cluster::on_draining(RemoteHost& host, const std::string& why) {
  std::lock_guard lock(mutex_);
  auto found = find(host);
  if (found == members_.end()) return;
  found->second.is_draining = true;
  driver_.host_draining(found->first, why);
}

void Cluster::on_gpu_failed(RemoteHost& host, const std::string& uuid, const std::string& fault,
                            bool is_dead) {
  std::lock_guard lock(mutex_);
  auto found = find(host);
  if (found != members_.end()) driver_.gpu_failed(found->first, uuid, fault, is_dead);
}

namespace {

/// Files that nothing names: those that the report made so, or where it was refused its own.
void remove_files(const std::vector<std::string>& files) {
  for (const std::string& file : files) ::unlink(file.c_str());
}

}  // namespace

void Cluster::on_report(RemoteHost& host, cluster::ReceivedReport taken) {
  uint64_t number = taken.number;
  std::string name, row;
  uint64_t serial = 0;
  {
    std::lock_guard lock(mutex_);
    auto found = find(host);
    if (found == members_.end()) return;
    Member& member = found->second;
    if (number <= member.taken) return;  // it came before its connection was cut
    member.taken = number;
    name = found->first;
    serial = member.serial;
    row = fmt::format("{}\n{}", member.spool, number);
  }
  auto decided = [placed = std::move(taken.placed), obsolete = std::move(taken.obsolete)](
                     bool admitted) { remove_files(admitted ? obsolete : placed); };
  driver_.host_reported(name, std::move(taken.report), {spool_key(name), std::move(row)}, decided,
                        [this, name, serial, number] { on_durable(name, serial, number); });
}

// What is no worker's any more, of an attempt that is over, is found so in the turn.
void Cluster::on_rank_address(Report report) { driver_.rank_met(std::move(report)); }

// Of many in a commit the last is told.
void Cluster::on_durable(const std::string& name, uint64_t serial, uint64_t number) {
  std::lock_guard lock(mutex_);
  auto found = members_.find(name);
  if (found == members_.end() || found->second.serial != serial) return;
  Member& member = found->second;
  member.durable = number;
  if (!std::exchange(member.is_told, false)) return;
  driver_.after_acts([this, name, serial] { tell_durable(name, serial); });
}

void Cluster::tell_durable(const std::string& name, uint64_t serial) {
  std::shared_ptr<RemoteHost> host;
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    auto found = members_.find(name);
    if (found == members_.end() || found->second.serial != serial) return;
    Member& member = found->second;
    member.is_told = true;
    host = member.host;
    number = member.durable;
  }
  if (host) host->ack_reports(number);
}

void Cluster::on_gone(RemoteHost& host, bool is_for_good, const std::string& why) {
  std::lock_guard lock(mutex_);
  auto found = find(host);
  if (found == members_.end()) return;  // another connection took its place
  auto& [name, member] = *found;
  member.host.reset();
  driver_.fleet().detach(name, host);
  if (quit_) return;
  if (is_for_good) return driver_.host_lost(name, why);
  driver_.host_away(name, why);
  wait_for(name, member.serial, kRejoinMs, why, true);
}

// Under the lock.
void Cluster::wait_for(const std::string& name, uint64_t serial, int64_t ms, std::string why,
                       bool has_died) {
  leases_.emplace(Clock::now() + std::chrono::milliseconds(ms),
                  Lease{name, serial, std::move(why), has_died});
  wake_.notify_all();
}

void Cluster::loop() {
  std::unique_lock lock(mutex_);
  while (!quit_) {
    if (leases_.empty()) {
      wake_.wait(lock);
      continue;
    }
    auto first = leases_.begin();
    if (first->first > Clock::now()) {
      wake_.wait_until(lock, first->first);
      continue;
    }
    Lease lease = std::move(first->second);
    leases_.erase(first);
    auto found = members_.find(lease.name);
    bool is_gone =
        found != members_.end() && !found->second.host && found->second.serial == lease.serial;
    if (is_gone) driver_.host_lost(lease.name, lease.why, lease.has_died);
  }
}

}  // namespace flow
