// Requests at the replicas of a version. The time is a number of the test.
#include "engine/serve/request_scheduler.hpp"

#include <catch2/catch.hpp>
#include <list>
#include <map>
#include <random>
#include <string>

using namespace flow;
using namespace std::chrono_literals;

namespace {

using Clock = RequestScheduler::Clock;
using Admission = RequestScheduler::Admission;

/// Notes what it is to run.
class NotingReplica final : public Replica {
 public:
  void start(uint64_t batch, const std::vector<const Tensors*>& parts,
             const std::vector<BatchedRequest>& requests) override {
    described = requests;
    number = batch;
    ids.clear();
    for (const Tensors* part : parts) ids += *part->at("id").data;
  }

  uint64_t number = 0;
  std::string ids;  // one letter for each request
  std::vector<BatchedRequest> described;
};

/// A client that may leave.
class LeavingClient final : public InferResponder {
 public:
  explicit LeavingClient(const bool& is_gone) : is_gone_(is_gone) {}
  bool is_abandoned() const override { return is_gone_; }
  uint64_t inline_bytes_max() const override { return 0; }
  Status encode(const std::string&, const InferRequest&, const Tensors&) override { return {}; }
  void send() override {}
  void fail(int, const std::string&) override {}

 private:
  const bool& is_gone_;
};

Tensor bytes_tensor(std::string bytes) {
  Tensor tensor;
  tensor.dtype = DType::u8;
  tensor.shape = {1, static_cast<int64_t>(bytes.size())};
  tensor.data = std::make_shared<const std::string>(std::move(bytes));
  return tensor;
}

/// A scheduler whose outcomes are a text: "a:200 b:504".
class Scheduling {
 public:
  explicit Scheduling(RequestScheduler::Limits limits = {.rows_max = 4, .call_max = 1min})
      : scheduler(limits, {.finished =
                               [this](PendingRequest& request, Result<Tensors>& outputs) {
                                 add(request, outputs.ok() ? 200 : 500);
                               },
                           .rejected = [this](PendingRequest& request,
                                              int status) { add(request, status); },
                           .called = [this](int64_t of, Clock::duration) { rows += of; },
                           .begun = [this](Clock::duration wait) { begun.add(wait); }}) {}

  NotingReplica& add_replica() {
    NotingReplica& replica = replicas_.emplace_back();
    scheduler.add(replica, now);
    return replica;
  }
  /// One request for each letter.
  Admission push(const std::string& ids, Clock::duration timeout = 1h) {
    Admission last = Admission::admitted;
    for (char id : ids) {
      auto request = std::make_unique<PendingRequest>();
      request->request.id = std::string(1, id);
      request->request.inputs["id"] = bytes_tensor(request->request.id);
      request->responder = std::make_unique<LeavingClient>(is_gone[id]);
      request->arrived = now;
      request->deadline = now + timeout;
      last = scheduler.push(request, now);
    }
    return last;
  }
  bool finish(NotingReplica& replica, bool is_good = true, ResponseParameters parameters = {}) {
    Result<Tensors> outputs = Error{ErrorKind::task, "boom"};
    if (is_good) {
      std::string ids = replica.ids;
      Tensor tensor = bytes_tensor(ids);
      tensor.shape = {static_cast<int64_t>(ids.size()), 1};
      outputs = Tensors{{"y", tensor}};
    }
    return scheduler.finish(replica, replica.number, std::move(outputs), now,
                            std::move(parameters));
  }
  void run_due(Clock::duration later) {
    now += later;
    scheduler.run_due(now);
  }
  std::string outcomes() { return std::exchange(outcomes_, ""); }

  Clock::time_point now{1h};
  std::map<char, bool> is_gone;
  int64_t rows = 0;
  RequestWaits begun;
  RequestScheduler scheduler;

 private:
  void add(const PendingRequest& request, int status) {
    outcomes_ += (outcomes_.empty() ? "" : " ") + request.request.id + ":" + std::to_string(status);
    for (const Parameter& each : request.request.response_parameters)
      outcomes_ += "," + each.name + "=" + each.value.as_string();
  }

  std::string outcomes_;
  std::list<NotingReplica> replicas_;
};

}  // namespace

TEST_CASE("the time of a request before its first batch is measured, and while it still waits") {
  Scheduling at({.rows_max = 1, .call_max = 1min});
  NotingReplica& one = at.add_replica();
  at.push("ab");
  CHECK(at.begun.requests == 1);
  CHECK(at.begun.total == 0us);
  at.now += 30ms;
  CHECK(at.scheduler.waits(at.now).requests == 1);
  CHECK(at.scheduler.waits(at.now).total == 30ms);
  CHECK(at.finish(one));
  CHECK(one.ids == "b");
  CHECK(at.begun.requests == 2);
  CHECK(at.begun.total == 30ms);
  // Its second run does not count: it has not waited for that one.
  at.now += 1s;
  at.scheduler.remove(one, at.now);
  CHECK(at.scheduler.queued() == 1);
  CHECK(at.scheduler.waits(at.now).requests == 0);
  at.add_replica();
  CHECK(at.scheduler.queued() == 0);
  CHECK(at.begun.requests == 2);
}

TEST_CASE("a request runs at once at an idle replica, and waits while all are busy") {
  Scheduling at({.rows_max = 1, .call_max = 1min});
  NotingReplica &one = at.add_replica(), &two = at.add_replica();
  at.push("abc");
  CHECK(one.ids + two.ids == "ab");
  CHECK(at.scheduler.queued() == 1);
  CHECK(at.scheduler.running() == 2);
  CHECK(at.finish(two));
  CHECK(two.ids == "c");
  CHECK(at.outcomes() == "b:200");
  CHECK(at.finish(one));
  CHECK(at.finish(two));
  CHECK(at.outcomes() == "a:200 c:200");
  CHECK(at.scheduler.state(two).batches == 2);
  CHECK(at.rows == 3);
}

TEST_CASE("of two idle replicas the one that was busy last gets the next batch") {
  Scheduling at({.rows_max = 1, .call_max = 1min});
  NotingReplica &one = at.add_replica(), &two = at.add_replica();
  at.push("ab");
  at.now += 1ms;
  at.finish(two);
  at.now += 1ms;
  at.finish(one);
  at.push("c");
  CHECK(one.ids == "c");
  at.now += 1ms;
  at.finish(one);
  at.push("de");
  CHECK(one.ids == "d");
  CHECK(two.ids == "e");
}

TEST_CASE("a batch gets no second one beside it, and its outcome must be its own") {
  Scheduling at;
  NotingReplica& one = at.add_replica();
  at.push("a");
  at.push("bc");
  CHECK(one.ids == "a");
  CHECK_FALSE(at.scheduler.finish(one, one.number + 1, Tensors{}, at.now));
  CHECK(at.finish(one));
  CHECK(one.ids == "bc");
  CHECK(at.finish(one));
  CHECK_FALSE(at.finish(one));  // again
  CHECK(at.outcomes() == "a:200 b:200 c:200");
}

TEST_CASE("the requests of a replica that dies run again first, in the order of their arrival") {
  Scheduling at;
  NotingReplica& one = at.add_replica();
  at.push("abcd");
  CHECK(one.ids == "a");
  at.finish(one);
  CHECK(one.ids == "bcd");
  at.now += 1ms;
  at.push("ef");
  NotingReplica& two = at.add_replica();
  CHECK(two.ids == "ef");
  at.finish(two);
  at.push("gh");
  CHECK(two.ids == "g");
  at.scheduler.remove(one, at.now);
  CHECK(at.scheduler.queued() == 4);
  at.finish(two);
  CHECK(two.ids == "bcdh");
  at.finish(two);
  CHECK(at.outcomes() == "a:200 e:200 f:200 g:200 b:200 c:200 d:200 h:200");
}

TEST_CASE("a request that a replica's death put back keeps its deadline and may be given up") {
  Scheduling at;
  NotingReplica& one = at.add_replica();
  at.push("a", 10ms);
  at.scheduler.remove(one, at.now);
  CHECK(at.scheduler.next_event() == at.now + 10ms);
  at.run_due(10ms);
  CHECK(at.outcomes() == "a:504");
  NotingReplica& two = at.add_replica();
  at.push("b");
  at.is_gone['b'] = true;
  at.scheduler.remove(two, at.now);
  CHECK(at.outcomes() == "b:499");
}

TEST_CASE("requests that are not idempotent fail with their replica") {
  Scheduling at({.rows_max = 4, .call_max = 1min, .is_idempotent = false});
  NotingReplica& one = at.add_replica();
  at.push("abc");
  at.scheduler.remove(one, at.now);
  CHECK(at.outcomes() == "a:502");
  CHECK(at.scheduler.queued() == 2);  // they have not begun
}

TEST_CASE("a request that kills replicas is alone in its last run, and then fails alone") {
  Scheduling at;
  NotingReplica& first = at.add_replica();
  at.push("x");
  at.push("abc");
  at.finish(first);
  CHECK(first.ids == "abc");
  at.scheduler.remove(first, at.now);
  NotingReplica& second = at.add_replica();
  CHECK(second.ids == "abc");
  at.scheduler.remove(second, at.now);
  NotingReplica& third = at.add_replica();
  CHECK(third.ids == "a");
  at.scheduler.remove(third, at.now);
  CHECK(at.outcomes() == "x:200 a:502");
  NotingReplica& fourth = at.add_replica();
  for (const char* id : {"b", "c"}) {
    CHECK(fourth.ids == id);
    at.finish(fourth);
  }
  CHECK(at.outcomes() == "b:200 c:200");
}

TEST_CASE("without replicas requests wait up to their deadline and the limits of the queue") {
  Scheduling at({.rows_max = 4, .queue_max = 2, .call_max = 1min});
  CHECK(at.push("ab", 20ms) == Admission::admitted);
  CHECK(at.push("c") == Admission::full);
  CHECK_FALSE(at.scheduler.is_overdue(at.now));
  at.run_due(5ms);
  NotingReplica& one = at.add_replica();
  CHECK(one.ids == "ab");
  at.scheduler.remove(one, at.now);
  at.run_due(15ms);
  CHECK(at.outcomes() == "a:504 b:504");
}

TEST_CASE("a deadline that passes at a replica is answered at once, and the replica stays busy") {
  Scheduling at;
  NotingReplica& one = at.add_replica();
  at.push("a", 10ms);
  CHECK(at.scheduler.next_event() == at.now + 10ms);
  at.push("b", 30ms);
  at.run_due(10ms);
  CHECK(at.outcomes() == "a:504");
  CHECK(at.scheduler.state(one).is_busy);
  CHECK(at.scheduler.running() == 0);
  CHECK(at.scheduler.queued() == 1);
  at.finish(one);
  CHECK(at.outcomes().empty());
  CHECK(one.ids == "b");
  at.scheduler.remove(one, at.now);
  at.run_due(20ms);
  CHECK(at.outcomes() == "b:504");
}

TEST_CASE("a request is refused if those before it would take all of its time") {
  Scheduling at({.rows_max = 2, .call_max = 1min});
  NotingReplica& one = at.add_replica();
  at.push("a");
  at.now += 10ms;
  at.finish(one);  // a call takes 10 ms
  at.push("b");
  CHECK(at.push("c", 1ms) == Admission::admitted);  // no other waits: calls may have become shorter
  CHECK(at.push("d", 25ms) == Admission::admitted);  // in the batch of c
  CHECK(at.push("e", 25ms) == Admission::too_late);
  CHECK(at.push("e", 35ms) == Admission::admitted);
  CHECK(at.push("f", 35ms) == Admission::admitted);
  CHECK(at.push("g", 35ms) == Admission::too_late);
  at.now += 5ms;  // half of the call of b
  CHECK(at.push("g", 42ms) == Admission::admitted);
  at.add_replica();  // which takes c and d: e and f are next, and then g
  CHECK(at.push("h", 20ms) == Admission::admitted);
  CHECK(at.outcomes() == "a:200 c:504");
}

TEST_CASE("a single long call does not make later requests too late") {
  Scheduling at({.rows_max = 1, .call_max = 1min});
  NotingReplica& one = at.add_replica();
  for (auto call : {10ms, 10ms, 10'000ms, 10ms}) {
    at.push("a");
    at.now += call;
    at.finish(one);
  }
  at.push("ab");
  CHECK(at.push("c", 100ms) == Admission::admitted);
}

TEST_CASE("a request of many rows counts as one call") {
  Scheduling at({.rows_max = 2, .call_max = 1min});
  NotingReplica& one = at.add_replica();
  at.push("a");
  at.now += 10ms;
  at.finish(one);
  at.push("b");
  auto request = std::make_unique<PendingRequest>();
  Tensor tensor = bytes_tensor(std::string(1000, 'x'));
  tensor.shape = {1000, 1};
  request->request.inputs["id"] = tensor;
  request->deadline = at.now + 1h;
  CHECK(at.scheduler.push(request, at.now) == Admission::admitted);
  CHECK(at.push("c", 35ms) == Admission::admitted);
  CHECK(at.push("d", 35ms) == Admission::admitted);
  CHECK(at.push("e", 35ms) == Admission::too_late);
}

TEST_CASE("what was rejected at a replica does not run again") {
  Scheduling at;
  NotingReplica& one = at.add_replica();
  at.push("x");
  at.push("a", 10ms);
  at.push("b", 1h);
  at.finish(one);
  CHECK(one.ids == "ab");
  at.run_due(10ms);
  CHECK(at.outcomes() == "x:200 a:504");
  at.scheduler.remove(one, at.now);
  CHECK(at.add_replica().ids == "b");
}

TEST_CASE("calls are overdue if those of all replicas are") {
  Scheduling at({.rows_max = 1, .call_max = 50ms});
  at.add_replica();
  NotingReplica& two = at.add_replica();
  at.push("a");
  at.now += 60ms;
  CHECK_FALSE(at.scheduler.is_overdue(at.now));
  at.push("b");
  CHECK_FALSE(at.scheduler.is_overdue(at.now));
  at.now += 60ms;
  CHECK(at.scheduler.is_overdue(at.now));
  at.finish(two);
  CHECK_FALSE(at.scheduler.is_overdue(at.now));
}

TEST_CASE("a leaving replica gets batches only if none stays") {
  Scheduling at({.rows_max = 1, .call_max = 1min});
  NotingReplica &one = at.add_replica(), &two = at.add_replica();
  at.scheduler.set_leaving(one, at.now);
  at.push("ab");
  CHECK(one.ids.empty());
  CHECK(two.ids == "a");
  at.scheduler.set_leaving(two, at.now);
  CHECK_FALSE(at.scheduler.has_staying());
  CHECK(one.ids == "b");
}

TEST_CASE("a replica that is replaced gets no batch, also if no other is there") {
  Scheduling at({.rows_max = 1, .call_max = 1min});
  NotingReplica& one = at.add_replica();
  at.scheduler.set_leaving(one, at.now, true);
  at.push("a");
  CHECK(one.ids.empty());
  NotingReplica& two = at.add_replica();
  CHECK(two.ids == "a");
}

TEST_CASE("a request whose replica is stopped runs again if its deadline leaves time for it") {
  Scheduling at({.rows_max = 2, .call_max = 1min});
  NotingReplica &one = at.add_replica(), &two = at.add_replica();
  at.push("a", 30ms);
  at.push("b", 50ms);
  at.push("c", 50ms);
  CHECK(one.ids + two.ids == "ab");
  NotingReplica &first = one.ids == "a" ? one : two, &second = one.ids == "a" ? two : one;
  at.finish(second);
  CHECK(at.outcomes() == "b:200");
  CHECK(second.ids == "c");
  at.scheduler.set_leaving(first, at.now);
  at.push("d", 50ms);
  at.now += 16ms;
  auto stopped = at.scheduler.stop(first, at.now);
  CHECK(stopped.rejected == 1);  // 14 ms are less than the call has taken
  CHECK(stopped.waiting == 0);
  CHECK(at.outcomes() == "a:503");
  CHECK(at.scheduler.state(first).is_busy);
  at.scheduler.remove(first, at.now);
  CHECK(at.outcomes().empty());

  NotingReplica& third = at.add_replica();
  CHECK(third.ids == "d");
  at.scheduler.set_leaving(second, at.now);
  stopped = at.scheduler.stop(second, at.now);
  CHECK(stopped.waiting == 1);
  at.scheduler.remove(second, at.now);
  at.finish(third);
  CHECK(third.ids == "c");
  at.finish(third);
  CHECK(at.outcomes() == "d:200 c:200");
}

TEST_CASE("a request that may not run again is rejected when its replica is stopped") {
  Scheduling at({.rows_max = 2, .call_max = 1min, .is_idempotent = false});
  NotingReplica &one = at.add_replica(), &two = at.add_replica();
  at.push("a");
  NotingReplica &busy = one.ids == "a" ? one : two, &idle = one.ids == "a" ? two : one;
  at.scheduler.set_leaving(busy, at.now);
  CHECK(at.scheduler.stop(busy, at.now).rejected == 1);
  CHECK(at.outcomes() == "a:503");
  CHECK(at.finish(busy));
  CHECK(at.scheduler.stop(idle, at.now).rejected == 0);
}

TEST_CASE("a batch that fails runs again in single requests") {
  Scheduling at;
  NotingReplica& one = at.add_replica();
  at.push("x");
  at.push("abc");
  at.finish(one);
  CHECK(one.ids == "abc");
  at.push("d");
  at.finish(one, false);
  CHECK(one.ids == "a");
  at.finish(one, false);
  at.finish(one);
  at.finish(one);
  CHECK(one.ids == "d");
  CHECK(at.outcomes() == "x:200 a:500 b:200 c:200");
}

TEST_CASE("each request of a batch gets the parameters of its own response") {
  Scheduling at({.rows_max = 2, .call_max = 1min, .is_padded = true});
  NotingReplica& one = at.add_replica();
  auto named = [](const char* name) {
    return std::vector<Parameter>{{.name = name, .value = Value("v")}};
  };
  at.push("abc");
  CHECK(at.finish(one, true, {named("of_a")}));
  CHECK(at.finish(one, true, {named("of_b"), named("of_c")}));
  CHECK(at.outcomes() == "a:200,of_a=v b:200,of_b=v c:200,of_c=v");
  at.push("d");
  CHECK(at.finish(one));
  CHECK(at.outcomes() == "d:200");
}

TEST_CASE("zeros fill the rows that a padded batch lacks, and have no part of the result") {
  Scheduling at({.rows_max = 4, .call_max = 1min, .is_padded = true});
  NotingReplica& one = at.add_replica();
  const std::string zero(1, '\0');
  at.push("a");
  CHECK(one.ids == "a" + zero + zero + zero);
  at.push("bcdef");
  at.finish(one);
  CHECK(one.ids == "bcde");
  at.finish(one);
  CHECK(one.ids == "f" + zero + zero + zero);
  CHECK(at.outcomes() == "a:200 b:200 c:200 d:200 e:200");
  at.finish(one, false);  // not again: it was alone
  CHECK(at.outcomes() == "f:500");
  CHECK(at.rows == 6);
  at.push("x");
  at.push("gh");
  at.finish(one);
  at.finish(one, false);
  CHECK(one.ids == "g" + zero + zero + zero);
  at.finish(one);
  at.finish(one);
  CHECK(at.outcomes() == "x:200 g:200 h:200");
}

TEST_CASE("no batch is started while the scheduler is paused") {
  Scheduling at;
  NotingReplica& one = at.add_replica();
  at.scheduler.set_paused(true, at.now);
  at.push("ab", 10ms);
  CHECK(one.ids.empty());
  CHECK(at.scheduler.next_event() == at.now + 10ms);
  at.scheduler.set_paused(false, at.now);
  CHECK(one.ids == "ab");
}

TEST_CASE("tensors in the queue are bounded by their bytes, but one request may have more") {
  RequestScheduler scheduler({.bytes_max = 10}, {});
  auto push = [&](size_t bytes) {
    auto request = std::make_unique<PendingRequest>();
    request->request.inputs["x"] = bytes_tensor(std::string(bytes, 'a'));
    request->deadline = Clock::time_point(2h);
    return scheduler.push(request, Clock::time_point(1h));
  };
  CHECK(push(20) == Admission::admitted);
  CHECK(push(1) == Admission::too_many_bytes);
  CHECK(scheduler.queued() == 1);
}

TEST_CASE("clients that have left are looked for while their requests wait") {
  Scheduling at;
  at.push("ab");
  CHECK(at.scheduler.next_event() == at.now + 100ms);
  at.is_gone['a'] = true;
  at.run_due(100ms);
  CHECK(at.outcomes() == "a:499");
  CHECK(at.scheduler.next_event() == at.now + 100ms);
}

TEST_CASE("a closed scheduler has rejected everything, and takes nothing") {
  Scheduling at({.rows_max = 1, .call_max = 1min});
  NotingReplica& one = at.add_replica();
  at.push("abc");
  CHECK(at.scheduler.close() == 3);
  CHECK(at.outcomes() == "b:503 c:503 a:503");
  CHECK(at.push("d") == Admission::closed);
  CHECK(at.finish(one));
  CHECK(at.outcomes().empty());
  CHECK(at.scheduler.close() == 0);
}

TEST_CASE("each request has one outcome, whatever happens to replicas and clients") {
  for (unsigned seed = 0; seed < 300; seed++) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    auto below = [&](unsigned n) { return static_cast<unsigned>(random() % n); };
    std::map<std::string, int> outcomes;
    auto add = [&](const PendingRequest& request) { outcomes[request.request.id]++; };
    RequestScheduler scheduler(
        {.rows_max = int64_t{1} + below(4),
         .batch_wait = below(2) * 2ms,
         .queue_max = 8,
         .call_max = 1min,
         .is_idempotent = below(4) > 0,
         .is_padded = below(2) == 0},
        {.finished = [&](PendingRequest& request, Result<Tensors>&) { add(request); },
         .rejected = [&](PendingRequest& request, int) { add(request); },
         .called = [](int64_t, Clock::duration) {}});
    Clock::time_point now(1h);
    std::list<bool> gone;
    std::vector<std::unique_ptr<NotingReplica>> replicas;
    auto finish = [&](NotingReplica& replica, bool is_good) {
      Result<Tensors> outputs = Error{ErrorKind::task, "boom"};
      Tensor tensor = bytes_tensor(replica.ids);
      tensor.shape = {static_cast<int64_t>(replica.ids.size()), 1};
      if (is_good) outputs = Tensors{{"y", tensor}};
      return scheduler.finish(replica, replica.number, std::move(outputs), now);
    };
    int pushed = 0, refused = 0;
    for (int step = 0; step < 300; step++) {
      now += below(2) * 1ms;
      size_t at = replicas.empty() ? 0 : below(static_cast<unsigned>(replicas.size()));
      switch (below(9)) {
        case 0:
          if (replicas.size() == 3) break;
          replicas.push_back(std::make_unique<NotingReplica>());
          scheduler.add(*replicas.back(), now);
          break;
        case 1:
          if (replicas.empty() || below(3) > 0) break;
          scheduler.remove(*replicas[at], now);
          replicas.erase(replicas.begin() + static_cast<ptrdiff_t>(at));
          break;
        case 2:
          if (replicas.empty() || below(4) > 0) break;
          scheduler.set_leaving(*replicas[at], now);
          if (below(2) == 0) scheduler.stop(*replicas[at], now);
          break;
        case 3:
        case 4:
          if (!replicas.empty()) finish(*replicas[at], below(4) > 0);
          break;
        case 5:
          if (!gone.empty() && below(3) == 0) gone.back() = true;
          break;
        case 6:
          scheduler.set_paused(below(4) == 0, now);
          break;
        default: {
          auto request = std::make_unique<PendingRequest>();
          request->request.id = std::to_string(pushed++);
          request->request.inputs["id"] = bytes_tensor("x");
          request->responder = std::make_unique<LeavingClient>(gone.emplace_back(false));
          request->arrived = now;
          request->deadline = now + std::chrono::milliseconds(1 + below(40));
          if (scheduler.push(request, now) != Admission::admitted) refused++;
        }
      }
      if (scheduler.next_event() <= now) scheduler.run_due(now);
      REQUIRE(scheduler.next_event() > now);  // nothing is left to do
    }
    scheduler.close();
    CHECK(scheduler.running() + scheduler.queued() == 0);
    REQUIRE(outcomes.size() == static_cast<size_t>(pushed - refused));
    for (const auto& [id, count] : outcomes) REQUIRE(count == 1);
  }
}

TEST_CASE("requests move from one scheduler to another") {
  Scheduling from, to;
  NotingReplica& one = to.add_replica();
  from.push("abc");
  for (auto& request : from.scheduler.take_queue()) to.scheduler.adopt(std::move(request), to.now);
  CHECK(from.scheduler.queued() == 0);
  CHECK(one.ids == "a");
  to.finish(one);
  CHECK(one.ids == "bc");
}
