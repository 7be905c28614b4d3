// Collectives in flight between the ranks, and how they end.
#include "lua/context/comm.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/tensor/capture.hpp"

namespace flow::lua {
namespace {

void check_not_captured() {
  tensors::check_not_captured("ctx.comm, as the other ranks are not part of a graph");
}

}  // namespace

// Data that an aborted collective left on a GPU is undefined.
Comm::Comm(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {
  if (takes_device())
    tensors::runtime().failure_check = [this] { return record_failure(communicator_->state()); };
}

Comm::~Comm() {
  if (takes_device()) tensors::runtime().failure_check = nullptr;
}

// Error of the call's own arguments: reported before the other ranks are contacted.
Status Comm::record_failure(Status status) {
  if (!status.ok() && status.error().kind != ErrorKind::user) has_failed_ = true;
  return status;
}

Status Comm::run(const CollectiveCall& call) {
  check_not_captured();
  return record_failure(communicator_->run(call));
}

// On GPUs a wait orders the kernels only, so that the calls can be launched together.
Status Comm::run(Exchange& exchange) {
  check_not_captured();
  bool is_device = std::all_of(exchange.calls.begin(), exchange.calls.end(),
                               [](const CollectiveCall& call) { return call.is_device; });
  if (is_device && exchange.calls.size() > 1) {
    Status first;
    for (const auto& work : communicator_->start_all(exchange.calls)) {
      Status status = record_failure(work->wait());  // all: the GPU still uses their tensors
      if (first.ok()) first = std::move(status);
    }
    FLOW_TRY(first);
  } else {
    for (const CollectiveCall& call : exchange.calls) FLOW_TRY(run(call));
  }
  for (const auto& step : exchange.after) step();
  return {};
}

std::shared_ptr<PendingExchange> Comm::start(const char* method, Exchange exchange) {
  check_not_captured();
  auto underway = std::make_shared<PendingExchange>();
  underway->method = method;
  underway->exchange = std::move(exchange);
  pending_.push_back(underway);
  underway->works = communicator_->start_all(underway->exchange.calls);
  return underway;
}

Status Comm::wait(PendingExchange& underway) {
  if (underway.is_over) return underway.status;
  check_not_captured();
  for (const auto& work : underway.works) {
    Status status = work->wait();
    if (underway.status.ok()) underway.status = record_failure(std::move(status));
  }
  underway.is_over = true;
  pending_.remove_if([&](const auto& each) { return each.get() == &underway; });
  if (underway.status.ok())
    for (const auto& step : underway.exchange.after) step();
  underway.exchange = {};
  return underway.status;
}

const char* Comm::writing(const tensors::Tensor& x) const {
  for (const auto& underway : pending_)
    for (const tensors::Tensor& written : underway->exchange.written)
      if (share_memory(written, x)) return underway->method;
  return nullptr;
}

const char* Comm::holding(const tensors::Tensor& x) const {
  for (const auto& underway : pending_)
    for (const tensors::Tensor& held : underway->exchange.held)
      if (share_memory(held, x)) return underway->method;
  return writing(x);
}

Status Comm::finish() {
  Status first;
  while (!pending_.empty()) {
    std::shared_ptr<PendingExchange> next = pending_.front();
    next->exchange.after.clear();  // the tensors are not used any more
    Status status = wait(*next);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

void Comm::leave() {
  bool is_amid = std::any_of(pending_.begin(), pending_.end(), [](const auto& each) {
    return !std::all_of(each->works.begin(), each->works.end(),
                        [](const auto& work) { return work->is_done(); });
  });
  if (is_amid) abort("its attempt ended with unfinished calls");
  (void)finish();
}

namespace {

class DoneWork final : public CollectiveWork {
 public:
  explicit DoneWork(Status status) : status_(std::move(status)) {}
  bool is_done() const override { return true; }
  Status wait() override { return status_; }

 private:
  Status status_;
};

class LoneCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 1; }
  Status run(const CollectiveCall& call) override {
    FLOW_TRY(check(call, 0, 1));
    bool moves = call.from != nullptr && call.from != call.to && call.count > 0;
    if (moves) std::memcpy(call.to, call.from, payload_bytes(call));
    return {};
  }
  std::shared_ptr<CollectiveWork> start(const CollectiveCall& call) override {
    return std::make_shared<DoneWork>(run(call));
  }
  void abort(const std::string&) override {}
  std::string description() const override { return "one rank alone"; }
};

}  // namespace

std::shared_ptr<Communicator> make_lone_communicator() {
  return std::make_shared<LoneCommunicator>();
}

}  // namespace flow::lua
