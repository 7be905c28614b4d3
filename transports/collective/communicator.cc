#include "transports/collective/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/engine_thread.hpp"

namespace flow::collective {
namespace {

bool is_message(const CollectiveCall& call) {
  return call.what == Collective::send || call.what == Collective::recv;
}

}  // namespace

bool Operation::is_done() const {
  std::lock_guard lock(mutex_);
  return is_done_;
}

Status Operation::wait() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return is_done_; });
  return status_;
}

void Operation::finish(Status status) {
  std::lock_guard lock(mutex_);
  if (is_done_) return;
  is_done_ = true;
  status_ = std::move(status);
  done_.notify_all();
}

GangCommunicator::GangCommunicator(CommunicatorParts parts)
    : parts_(std::move(parts)),
      state_(*parts_.state),
      messages_(state_, parts_.rank_links.get()),
      operations_(state_, messages_, parts_.topology),
      sent_(static_cast<size_t>(state_.ranks())),
      received_(static_cast<size_t>(state_.ranks())) {
  state_.progress = [this] { progress(); };
}

GangCommunicator::~GangCommunicator() {
  bool has_unfinished = false;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    has_unfinished = unfinished_.load() > 0;
  }
  if (has_unfinished)
    state_.fail(environment_error(fmt::format("rank {} left with unfinished calls", rank())));
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  state_.leave();
  parts_.rank_links.reset();
}

Status GangCommunicator::check_call(const CollectiveCall& call) const {
  FLOW_TRY(check(call, rank(), ranks()));
  if (call.is_device && call.moves)
    return user_error(
        fmt::format("{}: this gang's collectives run on CPUs, and the tensor is on a "
                    "GPU: move it first",
                    collective_text(call)));
  if (state_.has_failed()) return state_.cause();
  return {};
}

Status GangCommunicator::run(const CollectiveCall& call) {
  FLOW_TRY(check_call(call));
  {
    std::unique_lock lock(mutex_);
    if (is_message(call) || !is_idle()) {
      lock.unlock();
      return start(call)->wait();
    }
    is_running_ = true;
  }
  Status status = execute(call);
  if (!status.ok()) finish_all();
  bool is_more = false;
  {
    std::lock_guard lock(mutex_);
    is_running_ = false;
    is_more = has_work();
  }
  if (is_more) wake_.notify_all();
  return status;
}

std::shared_ptr<CollectiveWork> GangCommunicator::start(const CollectiveCall& call) {
  auto operation = std::make_shared<Operation>(call);
  Status checked = check_call(call);
  if (checked.ok())
    submit(operation);
  else
    operation->finish(checked);
  return operation;
}

// The callback may release the communicator.
void GangCommunicator::finish(Operation& operation, Status status) {
  unfinished_--;
  operation.finish(std::move(status));
}

void GangCommunicator::submit(const Shared& operation) {
  unfinished_++;
  {
    std::lock_guard lock(mutex_);
    if (is_message(operation->call)) {
      number(*operation);
      messages_to_post_.push_back(operation);
    } else {
      queue_.push_back(operation);
    }
    new_count_++;
    if (!thread_.joinable()) thread_ = engine_thread([this] { run_thread(); });
  }
  wake_.notify_all();
  state_.ring_own_doorbell();
}

/// Numbers the messages between two ranks: they are matched in the order in which they are sent.
void GangCommunicator::number(Operation& operation) {
  const CollectiveCall& call = operation.call;
  bool is_send = call.what == Collective::send;
  auto& numbers = is_send ? sent_ : received_;
  operation.transfer.signature = message_signature(call, ++numbers[static_cast<size_t>(call.peer)]);
  operation.transfer.bytes = payload_bytes(call);
  operation.transfer.data = is_send ? const_cast<char*>(static_cast<const char*>(call.from))
                                    : static_cast<char*>(call.to);
}

bool GangCommunicator::has_work() const {
  return !queue_.empty() || !messages_to_post_.empty() || posted_count_.load() > 0;
}

Status GangCommunicator::execute(const CollectiveCall& call) {
  CallSignature signature = signature_of(call, ++number_);
  state_.enter_call(signature);
  if (call.what == Collective::leave) state_.wait_without_limit();
  if (parts_.rank_links) parts_.rank_links->enter(signature);
  is_leaving_ = call.what == Collective::leave;
  if (new_count_.load() > 0 || !posted_.empty() || is_leaving_) progress();
  bool was_sound = !state_.has_failed();
  bool is_done = operations_.run(call, signature);
  state_.exit_call();
  // All ranks have reached the last call: a link that closes from now on is an orderly close.
  if (is_done && is_leaving_ && was_sound) {
    state_.complete();
    return {};
  }
  // A late rank finds all data that it needs, and no other rank continues.
  if (is_done && !state_.has_failed() && !state_.fail_with_local_rank()) return {};
  return state_.cause();
}

void GangCommunicator::post_messages() {
  std::vector<Shared> to_post;
  {
    std::lock_guard lock(mutex_);
    to_post.swap(messages_to_post_);
    new_count_ -= static_cast<int>(to_post.size());
  }
  for (Shared& operation : to_post) {
    const CollectiveCall& call = operation->call;
    if (call.what == Collective::send)
      messages_.send(call.peer, ChannelKind::user, operation->transfer);
    else
      messages_.receive(call.peer, ChannelKind::user, operation->transfer);
    posted_.push_back(std::move(operation));
  }
  posted_count_ = static_cast<int>(posted_.size());
}

void GangCommunicator::progress() {
  if (new_count_.load(std::memory_order_seq_cst) > 0) post_messages();
  messages_.progress();
  if (is_leaving_ && posted_.empty() && !std::exchange(has_ended_, true)) state_.end();
  if (posted_.empty()) return;
  std::erase_if(posted_, [this](const Shared& operation) {
    bool is_done = operation->transfer.is_done.load(std::memory_order_acquire);
    if (is_done) finish(*operation, {});
    return is_done;
  });
  posted_count_ = static_cast<int>(posted_.size());
}

void GangCommunicator::run_thread() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || (!is_running_ && has_work()); });
    if (stopping_ && !has_work()) return;
    is_running_ = true;
    Shared next;
    if (!queue_.empty()) {
      next = std::move(queue_.front());
      queue_.pop_front();
      new_count_--;
    }
    lock.unlock();
    if (state_.has_failed()) finish_all();
    if (next)
      finish(*next, state_.has_failed() ? Status(state_.cause()) : execute(next->call));
    else
      run_messages();
    if (state_.has_failed()) finish_all();
    lock.lock();
    is_running_ = false;
  }
}

/// Progresses messages until they are done or a collective is queued; they continue within its
/// waits.
void GangCommunicator::run_messages() {
  state_.wait_moving([this] {
    if (posted_.empty() || new_count_.load(std::memory_order_seq_cst) > 0) return -1;
    const Operation& next = *next_message();
    state_.await_message(next.transfer.is_begun ? nullptr : &next.call);
    return next.call.peer;
  });
  state_.await_message(nullptr);
}

/// A receive that cannot complete is preferred to one that still may.
const GangCommunicator::Shared& GangCommunicator::next_message() const {
  auto never = std::find_if(posted_.begin(), posted_.end(), [this](const Shared& operation) {
    return !operation->transfer.is_begun && state_.has_ended(operation->call.peer);
  });
  return never != posted_.end() ? *never : posted_.front();
}

/// After a failure, with its cause.
void GangCommunicator::finish_all() {
  messages_.end();
  std::list<Shared> all;
  all.swap(posted_);
  posted_count_ = 0;
  {
    std::lock_guard lock(mutex_);
    all.insert(all.end(), queue_.begin(), queue_.end());
    all.insert(all.end(), messages_to_post_.begin(), messages_to_post_.end());
    queue_.clear();
    messages_to_post_.clear();
    new_count_ = 0;
  }
  Error cause = state_.cause();
  for (Shared& operation : all) finish(*operation, cause);
}

/// Also detects ranks that have died, which only a wait would notice otherwise.
Status GangCommunicator::state() const {
  state_.check_for_dead_ranks();
  return state_.has_failed() ? Status(state_.cause()) : Status();
}

void GangCommunicator::abort(const std::string& reason) {
  state_.fail(environment_error(fmt::format("rank {} ended the gang: {}", rank(), reason)));
}

std::string GangCommunicator::description() const {
  const Topology& topology = parts_.topology;
  if (ranks() == 1) return "one rank alone";
  if (topology.is_one_node()) return fmt::format("{} ranks in shared memory", ranks());
  return fmt::format("{} ranks on {} nodes: shared memory within, links between them", ranks(),
                     topology.nodes.size());
}

}  // namespace flow::collective
