// A worker on another machine, reached through messages: orders and reports pass unchanged, and
// invalid messages are rejected.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include "engine/base/clock.hpp"
#include "engine/base/ids.hpp"
#include "engine/cluster/worker/worker_agent.hpp"
#include "engine/head/remote_worker.hpp"
#include "tests/cluster/transfer_pair.hpp"

using namespace flow;
using namespace flow::cluster;

namespace {

/// Records its calls and reports what a test requests.
struct RecordedCalls {
  std::vector<AttemptOrder> orders;
  std::vector<uint64_t> commits, releases;
  std::vector<std::string> calls;
  Worker::OnReport say;
};

class Recorder final : public Worker {
 public:
  Recorder(RecordedCalls& told, OnReport on_report) : told_(told) {
    told_.say = std::move(on_report);
  }
  void stage(std::vector<AttemptOrder> orders, uint64_t commit) override {
    for (AttemptOrder& order : orders) {
      told_.orders.push_back(std::move(order));
      told_.commits.push_back(commit);
    }
  }
  void release(uint64_t commit) override { told_.releases.push_back(commit); }
  void exchange_addresses(const core::AttemptId& id,
                          const std::vector<std::string>& rank_addresses) override {
    told_.calls.push_back("meet " + id.run + " " + std::to_string(rank_addresses.size()));
  }
  void stop(const core::AttemptId& id, bool kill) override {
    told_.calls.push_back((kill ? "kill " : "stop ") + id.run);
  }
  void interrupt(const core::AttemptId& id) override {
    told_.calls.push_back("interrupt " + id.run);
  }
  void kill_after_flush(const core::AttemptId& id) override {
    told_.calls.push_back("settle " + id.run);
  }
  void ack_saved(const core::AttemptId& id, const std::string& name, bool ok) override {
    told_.calls.push_back("saved " + id.run + " " + name + (ok ? " yes" : " no"));
  }
  void drain(int64_t grace_ms) override {
    told_.calls.push_back("drain " + std::to_string(grace_ms));
  }
  void ack_logs(size_t cost) override { told_.calls.push_back("took " + std::to_string(cost)); }

 private:
  RecordedCalls& told_;
};

/// These tests transfer no blobs.
class NoLink final : public Link {
 public:
  void send(std::string) override {}
  size_t unsent_bytes() const override { return 0; }
  void post_receive(uint64_t, Region, std::function<void(Result<size_t>)>) override {}
  void cancel_receive(uint64_t) override {}
  void put(uint64_t, Region, std::function<void(Status)>) override {}
  void close(int64_t) override {}
  std::string description() const override { return "nowhere"; }
};

/// A head and a worker that deliver messages immediately while there is a session.
struct Wire {
  JoinRequest joined;
  std::vector<Report> reports;
  std::vector<uint64_t> numbers;
  std::vector<std::string> pieces;  // sent to the worker
  std::vector<BlobInventoryDelta> news;
  std::string disconnect_reason, draining;
  RecordedCalls told;
  std::mutex mutex;
  std::condition_variable came;
  std::vector<blob_protocol::Message> asked;  // blob messages, from threads of the agent
  std::atomic<bool> took_all = true;          // the agent's threads set it when they send
  bool is_admitted = true, encrypt = false;
  std::shared_ptr<std::atomic<bool>> encrypts = std::make_shared<std::atomic<bool>>(false);
  std::string folder = "/tmp/flow-nodes-" + random_name();
  std::shared_ptr<BlobCache> store;
  std::unique_ptr<RemoteWorker> head;
  std::unique_ptr<WorkerAgent> agent;

  explicit Wire(const core::WorkerInfo& host) {
    start(host);
    connect();
    head->accept_join(0);
  }
  ~Wire() {
    agent.reset();
    std::filesystem::remove_all(folder);
  }
  void start(const core::WorkerInfo& host) {
    WorkerAgent::Options options;
    options.spool_dir = folder + "/spool";
    auto opened = BlobCache::open(folder, 0);
    REQUIRE(opened.ok());
    options.store = store = *opened;
    options.blob_address = [] { return "10.0.0.7:7"; };
    options.worker = host;
    options.encrypts = encrypts;
    auto made = WorkerAgent::start(
        std::move(options), [this](Worker::OnReport on_report) -> Result<std::unique_ptr<Worker>> {
          return std::unique_ptr<Worker>(new Recorder(told, std::move(on_report)));
        });
    REQUIRE(made.ok());
    agent = std::move(*made);
  }
  void connect() {
    RemoteWorkerCallbacks heard;
    heard.on_join = [this](JoinRequest request) {
      joined = std::move(request);
      return is_admitted;
    };
    heard.on_report = [this](Report report, uint64_t number) {
      reports.push_back(std::move(report));
      numbers.push_back(number);
    };
    heard.on_draining = [this](const std::string& why) { draining = why; };
    heard.on_order = [](const AttemptOrder&) {};
    heard.on_inventory_delta = [this](const BlobInventoryDelta& each) { news.push_back(each); };
    heard.on_blob_message = [this](std::string_view bytes) {
      std::lock_guard lock(mutex);
      blob_protocol::Message& message = asked.emplace_back();
      came.notify_all();
      return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
    };
    head = std::make_unique<RemoteWorker>(
        [this](std::string_view piece) { to_worker(piece); }, std::move(heard),
        [this](const std::string& why) { disconnect_reason = why; }, encrypt);
    agent->connect(
        [this](std::string_view piece) {
          if (!head->on_message(piece)) took_all = false;
        },
        std::make_shared<NoLink>(), BulkSeal(Key{}, Key{}), "the head");
  }
  blob_protocol::Message asks(size_t number) {
    std::unique_lock lock(mutex);
    bool has_asked =
        came.wait_for(lock, std::chrono::seconds(60), [&] { return asked.size() > number; });
    REQUIRE(has_asked);
    return asked[number];
  }
  void disconnect() {
    agent->disconnect(environment_error("cut"));
    reports.clear();
    numbers.clear();
  }
  void to_worker(std::string_view piece) {
    pieces.emplace_back(piece);
    if (!agent->on_message(piece)) took_all = false;
  }
};

core::WorkerInfo big_host() {
  core::WorkerInfo host{"w1", 64'000, int64_t{1} << 40, {}, {{"rack", "a"}, {"zone", "\xff"}}};
  host.gpus.push_back({0, "GPU-a", "NVIDIA H200", "0000:1b:00.0", int64_t{140} << 30, 1, false});
  host.gpus.push_back({1, "MIG-b", "NVIDIA A100 MIG 1g.5gb", "", 5000, -1, true});
  host.custom_resources = {{"fpga", 2000}, {"licence", 500}};
  return host;
}

AttemptOrder full_order() {
  AttemptOrder order;
  order.id = {"run-1", 7, 2, 3 << 16};
  order.task = "train#2[1]";
  order.task_name = "train";
  order.kind = TaskKind::shell;
  order.bundle_bytes = std::make_shared<const std::string>("the bundle");
  order.bundle = sha256(*order.bundle_bytes);
  order.ordinal = 4;
  order.args = encode_value(Value::list({"args", std::string("\0\xff", 2)}));
  order.blobs = {{sha256("small"), "small"}};
  order.key = sha256("key");
  order.seed = UINT64_MAX - 1;
  order.resources.cpus_milli = 2500;
  order.resources.memory_bytes = int64_t{3} << 33;
  order.resources.gpus_milli = 2000;
  order.gpus = {"GPU-a", "GPU-b"};
  order.timeout_ms = 12345;
  order.grace_ms = 77;
  order.steps = {{"a", "1"}, {"b\xff", "2"}};
  order.signals = {{"go", "true"}};
  order.has_checkpoint = true;
  order.checkpoint = "state";
  order.waits = {{"wait#2", 99, true}};
  order.environment = std::make_shared<const std::vector<std::pair<std::string, std::string>>>(
      std::vector<std::pair<std::string, std::string>>{{"HOME", "/root"}, {"X", "\xff"}});
  order.env = {{"TOKEN", "secret"}};
  order.hide = {"secret"};
  auto shell = std::make_shared<ShellSpec>();
  shell->command = "wc {text}";
  shell->args = {"text"};
  shell->outputs = {{"out", "*.txt"}};
  shell->shell = {"bash", "-c"};
  order.shell = shell;
  order.defined_at = "p.lua:3";
  order.stage_copy = order.named_args = true;
  order.service = {8080, 32, 5000};
  return order;
}

/// An order as text, for comparisons.
std::string text_of(const AttemptOrder& order, uint64_t commit) {
  worker_protocol::Order message;
  put_order(order, commit, message);
  std::string text = message.ShortDebugString() + *order.bundle_bytes;
  for (const auto& [name, value] : *order.environment) text += name + "=" + value + ";";
  return text;
}

TaskFinished died() {
  TaskFinished finished;
  finished.outcome = TaskFinished::Outcome::failed;
  finished.value = "value";
  finished.blobs = {{sha256("blob"), "blob"}, {sha256("other"), "another"}};
  finished.failure = {core::Cause::signal, "it died\xff", "evidence", 9};
  finished.fragment = "fragment";
  finished.waited = true;
  finished.duration_us = 1234;
  finished.pid = 42;
  return finished;
}

Report finished() { return {{"run-1", 7, 2, 3 << 16}, 0, 0, died()}; }

template <typename Body>
const Body& body_of(const Report& report) {
  REQUIRE(report.is<Body>());
  return *report.as<Body>();
}

const TaskFinished& end_of(const Report& report) { return body_of<TaskFinished>(report); }

}  // namespace

TEST_CASE("a worker reports its resources and receives orders unchanged") {
  Wire wire(big_host());
  CHECK(wire.joined.worker.cpus_milli == 64'000);
  CHECK(wire.joined.worker.memory_bytes == int64_t{1} << 40);
  CHECK(wire.joined.worker.gpus == big_host().gpus);
  CHECK(wire.joined.worker.labels == big_host().labels);
  CHECK(wire.joined.worker.custom_resources == big_host().custom_resources);
  CHECK(wire.joined.worker.name.empty());  // set by the session
  CHECK(wire.joined.blob_address == "10.0.0.7:7");

  AttemptOrder second = full_order();
  second.id.unit++;
  wire.head->stage({full_order(), second}, 9);
  REQUIRE(wire.told.orders.size() == 2);
  CHECK(wire.told.commits == std::vector<uint64_t>{9, 9});
  CHECK(text_of(wire.told.orders[0], 9) == text_of(full_order(), 9));
  CHECK(text_of(wire.told.orders[1], 9) == text_of(second, 9));
  // Bundle and environment were sent once, after JoinAccepted, and no attempt twice.
  CHECK(wire.pieces.size() == 5);

  wire.head->release(9);
  core::AttemptId id = full_order().id;
  wire.head->stop(id, false);
  wire.head->stop(id, true);
  wire.head->interrupt(id);
  wire.head->kill_after_flush(id);
  wire.head->ack_saved(id, "step", true);
  wire.head->ack_saved(id, "", false);
  CHECK(wire.told.releases == std::vector<uint64_t>{0, 9});
  CHECK(wire.told.calls == std::vector<std::string>{"stop run-1", "kill run-1", "interrupt run-1",
                                                    "settle run-1", "saved run-1 step yes",
                                                    "saved run-1  no"});
  CHECK(wire.took_all);
}

TEST_CASE("a worker requests blobs only after its head has said whether they are sealed") {
  Wire wire(big_host());
  AttemptOrder order = full_order();
  File file;
  file.name = "a";
  file.size = 6;
  file.digest = sha256("a file");
  order.args = encode_value(Value::list({Value(file)}));
  wire.head->stage({order}, 9);
  blob_protocol::Message first = wire.asks(0);
  REQUIRE(first.has_request());
  CHECK_FALSE(first.request().sealed());
  CHECK_FALSE(*wire.encrypts);
  wire.disconnect();

  wire.encrypt = true;
  wire.connect();
  wire.head->accept_join(0);
  CHECK(wire.asks(1).request().sealed());
  CHECK(*wire.encrypts);
  CHECK(wire.told.orders.empty());
  CHECK(wire.took_all);
}

TEST_CASE("reports arrive unchanged, with those blobs that match their digests") {
  Wire wire(big_host());
  const core::AttemptId id = {"r", 1, 2, 3};
  const Report log{id, 0, 1000, LogLines{2, "line\n\xff", 71}};
  const Report metric{id, 0, 0, MetricReported{"loss", 0.5, -3}};
  const Report returned{id, 0, 0, TaskRequeued{}};
  const Report saved{id, 0, 0, StepReported{"step", "bytes", {}}};
  const Report ready{id, 0, 0, ServiceReported{"http://127.0.0.1:1"}};
  const Report progress{id, 0, 0, ProgressReported{0.25, "metrics"}};
  wire.told.say({log, metric, returned, saved, ready, progress, finished()});
  CHECK(wire.took_all);
  REQUIRE(wire.reports.size() == 7);
  for (size_t i = 0; i < 6; i++) CHECK(wire.reports[i].id == id);
  CHECK(body_of<LogLines>(wire.reports[0]).text == "line\n\xff");
  CHECK(body_of<LogLines>(wire.reports[0]).stream == 2);
  CHECK(wire.reports[0].at == 1000);
  CHECK(wire.numbers == std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7});
  CHECK(wire.told.calls == std::vector<std::string>{"took 71"});  // it is on the worker's disk
  CHECK(body_of<MetricReported>(wire.reports[1]).name == "loss");
  CHECK(body_of<MetricReported>(wire.reports[1]).value == 0.5);
  CHECK(body_of<MetricReported>(wire.reports[1]).step == -3);
  CHECK(wire.reports[2].is<TaskRequeued>());
  CHECK(body_of<StepReported>(wire.reports[3]).name == "step");
  CHECK(body_of<StepReported>(wire.reports[3]).value == "bytes");
  CHECK(body_of<ServiceReported>(wire.reports[4]).url == "http://127.0.0.1:1");
  CHECK(body_of<ProgressReported>(wire.reports[5]).fraction == 0.25);
  CHECK(body_of<ProgressReported>(wire.reports[5]).metrics == "metrics");
  const TaskFinished& last = end_of(wire.reports[6]);
  CHECK(last.failure.message == died().failure.message);
  CHECK(last.failure.cause == core::Cause::signal);
  CHECK(last.failure.code == 9);
  CHECK(last.duration_us == 1234);
  CHECK(last.waited);
  CHECK(last.pid == 42);
  REQUIRE(last.blobs.size() == 1);  // the other does not match its digest
  CHECK(last.blobs[0].second == "blob");
}

TEST_CASE("a long message is sent in parts, without other messages between them") {
  Wire wire(big_host());
  AttemptOrder order = full_order();
  order.args = encode_value(Value(std::string(5 * kMessageChunkBytes / 2, 'a')));
  wire.head->stage({order}, 1);
  REQUIRE(wire.told.orders.size() == 1);
  CHECK(wire.told.orders[0].args == order.args);
  for (const std::string& piece : wire.pieces) CHECK(piece.size() <= kMessageChunkBytes + 1);
  CHECK(wire.pieces.size() == 6);

  MessageAssembler joiner;
  std::string message;
  CHECK(joiner.add("", message) == MessageAssembler::Outcome::broken);
  CHECK(joiner.add("\x02hm", message) == MessageAssembler::Outcome::broken);
  CHECK(joiner.add(std::string_view("\x01half", 5), message) == MessageAssembler::Outcome::more);
  CHECK(joiner.add(std::string_view("\0 done", 6), message) == MessageAssembler::Outcome::whole);
  CHECK(message == "half done");
}

TEST_CASE("invalid messages of the peer are rejected") {
  auto piece = [](const auto& message) {
    return std::string(1, '\0') + message.SerializeAsString();
  };
  Wire wire(big_host());
  JoinRequest request{big_host(), "", "process", "spool", {}, ""};
  request.ranks = {{{{"run-1", 7, 2, 3 << 16}, 0}, false}, {{{"run-1", 8, 1, 5}, 3}, true}};
  worker_protocol::FromWorker join;
  put_join_request(request, *join.mutable_join());
  CHECK_FALSE(wire.head->on_message(piece(join)));  // it has already joined
  CHECK_FALSE(wire.head->on_message(std::string("\0\xff\xff\xff", 4)));
  CHECK_FALSE(wire.head->on_message(piece(worker_protocol::FromWorker())));
  JoinRequest heard;
  std::vector<uint64_t> numbers;
  RemoteWorkerCallbacks told;
  told.on_join = [&](JoinRequest each) {
    heard = std::move(each);
    return true;
  };
  told.on_report = [&](Report, uint64_t number) { numbers.push_back(number); };
  told.on_order = [](const AttemptOrder&) {};
  told.on_blob_message = [](std::string_view) { return false; };
  RemoteWorker fresh([](std::string_view) {}, told, [](const std::string&) {});
  worker_protocol::FromWorker said;
  put_report(finished(), 5, *said.mutable_report());
  CHECK_FALSE(fresh.on_message(piece(said)));  // before it joined
  for (auto spoil :
       {+[](worker_protocol::Join& m) { m.set_cpus_milli(-1); },
        +[](worker_protocol::Join& m) { m.set_memory_bytes(-1); },
        +[](worker_protocol::Join& m) { m.clear_process(); },
        +[](worker_protocol::Join& m) { m.set_spool(std::string(65, 's')); },
        +[](worker_protocol::Join& m) {
          m.set_blob_address(std::string(kAddressBytesMax + 1, 'a'));
        },
        +[](worker_protocol::Join& m) { m.mutable_gpus(1)->set_uuid("GPU-a"); },
        +[](worker_protocol::Join& m) { m.mutable_labels(1)->set_name("rack"); },
        +[](worker_protocol::Join& m) { m.mutable_custom_resources(1)->set_name("fpga"); },
        +[](worker_protocol::Join& m) { m.mutable_custom_resources(0)->set_milli(0); },
        +[](worker_protocol::Join& m) { m.set_now_ms(INT64_MAX); },
        +[](worker_protocol::Join& m) { m.set_now_ms(-1); },
        +[](worker_protocol::Join& m) { m.mutable_gpus(0)->set_uuid(""); }}) {
    worker_protocol::FromWorker bad = join;
    spoil(*bad.mutable_join());
    CHECK_FALSE(fresh.on_message(piece(bad)));
  }
  CHECK(fresh.on_message(piece(join)));
  CHECK(heard.ranks == request.ranks);
  CHECK(heard.spool == "spool");
  for (int64_t at : {INT64_MAX, int64_t{-1}}) {
    worker_protocol::FromWorker bad = said;
    bad.mutable_report()->set_at_ms(at);
    CHECK_FALSE(fresh.on_message(piece(bad)));
  }
  CHECK(fresh.on_message(piece(said)));
  CHECK_FALSE(fresh.on_message(piece(said)));  // numbers must increase
  CHECK(numbers == std::vector<uint64_t>{5});

  worker_protocol::ToWorker order;
  put_order(full_order(), 1, *order.mutable_order());
  CHECK_FALSE(wire.agent->on_message(piece(order)));  // its bundle was not sent before
  worker_protocol::ToWorker bundle;
  bundle.mutable_bundle()->set_digest(std::string(sha256("this").view()));
  bundle.mutable_bundle()->set_bundle("that");
  CHECK_FALSE(wire.agent->on_message(piece(bundle)));
  CHECK_FALSE(wire.agent->on_message(piece(worker_protocol::ToWorker())));
  wire.head->stage({full_order()}, 1);
  REQUIRE(wire.told.orders.size() == 1);
  for (auto spoil : {+[](worker_protocol::Order& m) { m.set_timeout_ms(-1); },
                     +[](worker_protocol::Order& m) { m.mutable_start()->set_kind(9); },
                     +[](worker_protocol::Order& m) { m.mutable_start()->clear_id(); },
                     +[](worker_protocol::Order& m) { m.mutable_start()->set_key("short"); },
                     +[](worker_protocol::Order& m) { m.mutable_start()->set_port(65536); },
                     +[](worker_protocol::Order& m) {
                       m.mutable_start()->mutable_shell()->add_output_names("x");
                     },
                     +[](worker_protocol::Order& m) { m.clear_start(); }}) {
    worker_protocol::ToWorker bad = order;
    spoil(*bad.mutable_order());
    CHECK_FALSE(wire.agent->on_message(piece(bad)));
  }
  order.mutable_order()->mutable_start()->mutable_id()->set_unit(99);
  CHECK(wire.agent->on_message(piece(order)));
  CHECK(wire.told.orders.size() == 2);
  worker_protocol::ToWorker welcome;
  welcome.mutable_join_accepted();
  CHECK_FALSE(wire.agent->on_message(piece(welcome)));  // already accepted
}

namespace {

Report ended(uint32_t unit) {
  Report report = finished();
  report.id.unit = unit;
  return report;
}

AttemptOrder order_of(uint32_t unit) {
  AttemptOrder order = full_order();
  order.id.unit = unit;
  return order;
}

using Offers = std::vector<RankOffer>;

/// Of a gang of three ranks.
AttemptOrder rank_order(uint32_t unit, uint32_t rank) {
  AttemptOrder order = order_of(unit);
  order.ranks = 3;
  order.rank = rank;
  return order;
}

Report rank_end(uint32_t unit, uint32_t rank) {
  Report report = ended(unit);
  report.rank = rank;
  return report;
}

}  // namespace

TEST_CASE("events without a head are reported to the next head, once") {
  Wire wire(big_host());
  wire.head->stage({order_of(1), order_of(2), order_of(3)}, 5);
  wire.head->release(5);
  wire.told.say({ended(1)});
  CHECK(wire.numbers == std::vector<uint64_t>{1});
  wire.head->ack_reports(1);
  wire.disconnect();
  CHECK(wire.agent->was_accepted());
  CHECK(wire.agent->attempts() == 2);

  wire.told.say({{ended(2).id, 0, 0, LogLines{0, "alone"}}, ended(2)});
  CHECK(wire.reports.empty());

  wire.connect();
  CHECK(wire.joined.ranks == Offers{{{ended(2).id, 0}, true}, {{ended(3).id, 0}, false}});
  CHECK(wire.reports.empty());  // before the join is accepted
  CHECK_FALSE(wire.agent->was_accepted());
  wire.head->accept_join(1);
  CHECK(wire.numbers == std::vector<uint64_t>{2, 3});
  CHECK(body_of<LogLines>(wire.reports[0]).text == "alone");
  // The connection breaks before the acknowledgement arrives: the head already has them.
  wire.disconnect();
  wire.connect();
  CHECK(wire.joined.ranks.size() == 2);
  wire.head->accept_join(3);
  CHECK(wire.reports.empty());
  CHECK(wire.agent->attempts() == 1);
  wire.told.say({ended(3)});
  CHECK(wire.numbers == std::vector<uint64_t>{4});
  wire.head->ack_reports(4);
  CHECK(wire.agent->attempts() == 0);
}

TEST_CASE("the end time of an attempt is converted to the head's clock") {
  JoinRequest request{big_host(), "", "process", "spool", {}, ""};
  constexpr core::Time kHour = 3'600'000;
  request.now = now_ms() - kHour;
  RemoteWorkerCallbacks told;
  std::vector<core::Time> times;
  told.on_join = [](const JoinRequest&) { return true; };
  told.on_report = [&](const Report& report, uint64_t) { times.push_back(report.at); };
  RemoteWorker head([](std::string_view) {}, told, [](const std::string&) {});
  auto tell = [&](const worker_protocol::FromWorker& message) {
    REQUIRE(head.on_message(std::string(1, '\0') + message.SerializeAsString()));
  };
  worker_protocol::FromWorker join;
  put_join_request(request, *join.mutable_join());
  core::Time before = now_ms();
  tell(join);
  core::Time after = now_ms();
  Report report = finished();
  report.at = request.now - 500;  // half a second before it joined
  worker_protocol::FromWorker said;
  put_report(report, 1, *said.mutable_report());
  tell(said);
  report.at = 0;  // from a worker that does not report the time
  put_report(report, 2, *said.mutable_report());
  tell(said);
  REQUIRE(times.size() == 2);
  CHECK(times[0] >= before - 500);
  CHECK(times[0] <= after - 500);
  CHECK(times[1] == 0);
}

TEST_CASE(
    "orders that were not released when the head died begin when the next head accepts the join") {
  Wire wire(big_host());
  wire.head->stage({order_of(1)}, 7);
  wire.disconnect();
  wire.told.releases.clear();
  wire.connect();
  // The next head numbers its commits from 1: none of them releases unknown orders.
  wire.head->stage({order_of(2)}, 1);
  wire.head->release(1);
  CHECK(wire.told.commits == std::vector<uint64_t>{7, 8});
  CHECK(wire.told.releases.empty());
  wire.head->stop(order_of(1).id, true);
  wire.head->accept_join(0);
  CHECK(wire.told.calls == std::vector<std::string>{"kill run-1"});
  CHECK(wire.told.releases == std::vector<uint64_t>{7, 8});
}

TEST_CASE("the answer to a save that was lost with a session is found in the next one") {
  Wire wire(big_host());
  AttemptOrder order = full_order();
  wire.head->stage({order}, 0);
  for (const char* name : {"answered", "committed", "not committed"})
    wire.told.say({{order.id, 0, 0, StepReported{name, "bytes", {}}}});
  wire.head->ack_saved(order.id, "answered", true);
  wire.disconnect();
  wire.told.calls.clear();

  wire.connect();
  wire.head->accept_join(2);
  CHECK(wire.told.calls == std::vector<std::string>{"saved run-1 committed yes"});
  CHECK(wire.numbers == std::vector<uint64_t>{3});
  wire.head->ack_saved(order.id, "not committed", true);
  wire.disconnect();
  wire.connect();
  wire.head->accept_join(3);
  CHECK(wire.told.calls ==
        std::vector<std::string>{"saved run-1 committed yes", "saved run-1 not committed yes"});
  CHECK(wire.took_all);
}

TEST_CASE("a restarted worker process reports attempts that had finished") {
  Wire wire(big_host());
  wire.disconnect();
  wire.head->stage({}, 0);
  wire.connect();
  wire.head->accept_join(0);
  wire.head->stage({order_of(1), order_of(2)}, 1);
  wire.told.say({ended(1)});
  wire.disconnect();
  std::string process = wire.joined.process, spool = wire.joined.spool;
  wire.agent.reset();

  wire.start(big_host());
  wire.connect();
  CHECK(wire.joined.process != process);
  CHECK(wire.joined.spool == spool);
  CHECK(wire.joined.ranks == Offers{{{ended(1).id, 0}, true}});
  wire.head->accept_join(0);
  REQUIRE(wire.reports.size() == 1);
  CHECK(wire.reports[0].id == ended(1).id);
}

TEST_CASE("a worker offers the ranks of a gang whose orders it got") {
  Wire wire(big_host());
  wire.head->stage({rank_order(1, 0), rank_order(1, 1)}, 1);
  wire.disconnect();  // before the order of rank 2
  wire.connect();
  CHECK(wire.joined.ranks == Offers{{{ended(1).id, 0}, false}, {{ended(1).id, 1}, false}});
  // The head has found that a rank is missing.
  wire.head->kill_after_flush(ended(1).id);
  wire.head->accept_join(0);
  CHECK(wire.told.calls == std::vector<std::string>{"settle run-1"});
}

TEST_CASE("a restarted worker process offers the ranks whose ends it has still to report") {
  Wire wire(big_host());
  wire.head->stage({rank_order(1, 0), rank_order(1, 1), order_of(2)}, 1);
  wire.told.say({rank_end(1, 1), ended(2)});
  wire.disconnect();
  wire.agent.reset();

  wire.start(big_host());
  wire.connect();
  CHECK(wire.joined.ranks == Offers{{{ended(1).id, 1}, true}, {{ended(2).id, 0}, true}});
  wire.head->accept_join(0);
  CHECK(wire.reports.size() == 2);
}

TEST_CASE("an acknowledged end of a rank above 0 is offered until its run has ended") {
  Wire wire(big_host());
  wire.head->stage({rank_order(1, 0), rank_order(1, 1), rank_order(2, 1)}, 1);
  wire.told.say({rank_end(2, 1), rank_end(1, 1)});
  wire.head->ack_reports(2);
  CHECK(wire.agent->attempts() == 1);
  Offers ends{{{ended(2).id, 1}, true}, {{ended(1).id, 1}, true}};
  Offers all = ends;
  all.insert(all.begin(), {{ended(1).id, 0}, false});
  wire.disconnect();
  wire.connect();
  CHECK(wire.joined.ranks == all);
  wire.head->accept_join(2);
  wire.told.say({rank_end(1, 0)});
  wire.head->ack_reports(3);
  wire.disconnect();
  wire.connect();
  CHECK(wire.joined.ranks == ends);  // rank 0's end was that of the attempt
  wire.head->accept_join(3);
  wire.head->forget("run-1");
  wire.disconnect();
  wire.connect();
  CHECK(wire.joined.ranks.empty());
}

TEST_CASE("the number of acknowledged ends that a worker offers is bounded") {
  Wire wire(big_host());
  for (uint32_t unit = 0; unit < kAckedEndsMax + 3; unit++) {
    wire.head->stage({rank_order(unit, 1)}, 1);
    wire.told.say({rank_end(unit, 1)});
  }
  wire.head->ack_reports(kAckedEndsMax + 3);
  wire.disconnect();
  wire.connect();
  REQUIRE(wire.joined.ranks.size() == kAckedEndsMax);
  CHECK(wire.joined.ranks.front().rank.attempt.unit == 3);
}

TEST_CASE("the data in transit to a slow head is bounded") {
  Wire wire(big_host());
  const Report log{ended(1).id, 0, 0, LogLines{0, std::string(kInFlightBytesMax / 4, 'x')}};
  for (int i = 0; i < 10; i++) wire.told.say({log});
  CHECK(wire.reports.size() == 4);
  wire.head->ack_reports(3);
  CHECK(wire.reports.size() == 7);
  wire.head->ack_reports(7);
  CHECK(wire.reports.size() == 10);
}

TEST_CASE("a draining worker announces it, requeues new orders and reports interrupted attempts") {
  Wire wire(big_host());
  wire.head->stage({order_of(1), order_of(2)}, 5);
  wire.head->release(5);
  wire.told.say({{order_of(1).id, 0, 0, CheckpointReported{}}});
  wire.agent->drain(700, "maintenance");
  CHECK(wire.draining == "maintenance");
  CHECK(wire.told.calls.back() == "drain 700");
  wire.head->stage({order_of(3)}, 6);
  CHECK(wire.told.orders.size() == 2);
  REQUIRE(wire.reports.size() == 2);
  CHECK(wire.reports[1].is<TaskRequeued>());
  CHECK(wire.reports[1].id == order_of(3).id);

  TaskFinished stopped;
  stopped.outcome = TaskFinished::Outcome::stopped;
  wire.told.say({{order_of(1).id, 0, 0, stopped}});
  CHECK(end_of(wire.reports.back()).outcome ==
        TaskFinished::Outcome::stopped);  // it resumes from its saved state
  wire.told.say({{order_of(2).id, 0, 0, stopped}});
  CHECK(end_of(wire.reports.back()).outcome == TaskFinished::Outcome::failed);
  CHECK(end_of(wire.reports.back()).failure.cause == core::Cause::preempted);
  CHECK(end_of(wire.reports.back()).failure.message.find("maintenance") != std::string::npos);
  CHECK(wire.agent->attempts() == 3);  // until the head has the report

  // It is announced again to a head that connects while it drains.
  wire.draining.clear();
  wire.disconnect();
  wire.connect();
  CHECK(wire.draining == "maintenance");
  wire.head->accept_join(0);
  wire.head->ack_reports(wire.numbers.back());
  CHECK(wire.agent->attempts() == 0);
  CHECK(wire.took_all);
}

TEST_CASE("an attempt that dies from the signal that ends its worker has not failed by itself") {
  Wire wire(big_host());
  wire.head->stage({order_of(1), order_of(2), order_of(3), order_of(4)}, 5);
  wire.head->release(5);
  auto killed = [](uint32_t unit, core::Cause cause, int code) {
    TaskFinished killed = died();
    killed.failure = {cause, "killed", "", code};
    return Report{ended(unit).id, 0, 0, std::move(killed)};
  };
  // The worker receives the signal a moment later.
  std::thread teller([&] { wire.told.say({killed(1, core::Cause::signal, 15)}); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  wire.agent->drain(700, "its time is over");
  teller.join();
  CHECK(end_of(wire.reports.back()).failure.cause == core::Cause::preempted);
  wire.told.say({killed(2, core::Cause::exit_code, 143)});
  CHECK(end_of(wire.reports.back()).failure.cause == core::Cause::preempted);
  wire.told.say({killed(3, core::Cause::exit_code, 1)});
  CHECK(end_of(wire.reports.back()).failure.cause == core::Cause::exit_code);
  wire.told.say({killed(4, core::Cause::signal, 11)});
  CHECK(end_of(wire.reports.back()).failure.cause == core::Cause::signal);

  Wire other(big_host());
  other.head->stage({order_of(1)}, 5);
  other.told.say({killed(1, core::Cause::signal, 15)});  // from another process
  CHECK(end_of(other.reports.back()).failure.cause == core::Cause::signal);
}

TEST_CASE("a worker reports which large blobs it adds and removes, and its transfer totals") {
  Wire wire(big_host());
  auto tensor_of = [](const std::string& bytes) {
    Tensor tensor;
    tensor.digest = sha256(bytes);
    tensor.dtype = DType::u8;
    tensor.shape = {static_cast<int64_t>(bytes.size())};
    return tensor;
  };
  auto digests = [](const std::vector<BlobInfo>& blobs) {
    std::vector<Digest> found;
    for (const BlobInfo& each : blobs) found.push_back(each.digest);
    return found;
  };
  std::string old(kLargeBytes, 'o'), small(kLargeBytes - 1, 's'), made(2 * kLargeBytes, 'm');
  wire.agent.reset();
  put_object(wire.folder, old);
  put_object(wire.folder, small);
  wire.start(big_host());
  wire.news.clear();
  wire.connect();
  REQUIRE(wire.news.size() == 1);
  CHECK(digests(wire.news[0].added) == std::vector<Digest>{sha256(old)});
  CHECK(wire.news[0].added[0].size == kLargeBytes);
  wire.head->accept_join(0);

  wire.head->stage({order_of(1)}, 1);
  TaskFinished succeeded;
  succeeded.value = encode_value(Value::list({Value(tensor_of(small)), Value(tensor_of(made))}));
  put_object(wire.folder, made);
  wire.told.say({{ended(1).id, 0, 0, std::move(succeeded)}});
  REQUIRE(wire.news.size() == 2);
  CHECK(digests(wire.news[1].added) == std::vector<Digest>{sha256(made)});

  wire.agent->note_transfer(&Traffic::from_workers, blob_of(made));
  wire.agent->note_transfer(&Traffic::from_head, blob_of(small));
  wire.agent->note_transfer(&Traffic::to_workers, blob_of(made));
  REQUIRE(wire.news.size() == 5);
  CHECK(digests(wire.news[2].added) == std::vector<Digest>{sha256(made)});
  CHECK(wire.news[3].added.empty());
  CHECK(wire.news[4].added.empty());
  CHECK(wire.news[4].traffic == Traffic{{1, small.size()}, {1, made.size()}, {1, made.size()}});

  std::filesystem::remove(blob_path(wire.folder, sha256(made)));
  REQUIRE(write_file_atomic(blob_path(wire.folder, sha256(made)), "damaged", 0400).ok());
  wire.store->drop_if_damaged(sha256(made));
  REQUIRE(wire.news.size() == 6);
  CHECK(wire.news[5].removed == std::vector<Digest>{sha256(made)});
  CHECK(wire.took_all);
}

TEST_CASE("an invalid blob inventory report is rejected") {
  BlobInventoryDelta news{{blob_of("x")}, {sha256("y")}, {{1, 2}, {3, 4}, {5, 6}}};
  worker_protocol::BlobInventoryDelta sound;
  put_inventory_delta(news, sound);
  BlobInventoryDelta back;
  REQUIRE(get_inventory_delta(sound, back));
  CHECK(back.added[0].digest == news.added[0].digest);
  CHECK(back.added[0].size == news.added[0].size);
  CHECK(back.removed == news.removed);
  CHECK(back.traffic == news.traffic);
  for (auto spoil :
       {+[](worker_protocol::BlobInventoryDelta& m) { m.mutable_added(0)->set_digest("short"); },
        +[](worker_protocol::BlobInventoryDelta& m) {
          m.mutable_added(0)->set_size(kBlobBytesMax + 1);
        },
        +[](worker_protocol::BlobInventoryDelta& m) { m.set_removed(0, ""); },
        +[](worker_protocol::BlobInventoryDelta& m) {
          for (size_t i = 0; i < kInventoryDeltaMax; i++) *m.add_added() = m.added(0);
        }}) {
    worker_protocol::BlobInventoryDelta bad = sound;
    spoil(bad);
    BlobInventoryDelta taken;
    CHECK_FALSE(get_inventory_delta(bad, taken));
  }
}

TEST_CASE("both ends of a session forget bundle and environment when no run uses them") {
  Wire wire(big_host());
  std::map<std::string, decltype(AttemptOrder::environment)> environments;  // of the head
  auto stage = [&](const std::string& run, uint32_t unit, const std::string& bundle) {
    AttemptOrder order = full_order();
    order.environment = environments.try_emplace(run, order.environment).first->second;
    order.id = {run, unit, 1, 3 << 16};
    order.bundle_bytes = std::make_shared<const std::string>(bundle);
    order.bundle = sha256(bundle);
    wire.told.orders.clear();
    wire.pieces.clear();
    wire.head->stage({order}, 0);
    REQUIRE(wire.told.orders.size() == 1);
    REQUIRE(wire.took_all);
    size_t count = 0;  // of messages: known bundles are not sent again
    for (const std::string& piece : wire.pieces) count += piece.empty() ? 0 : 1;
    return count;
  };
  auto end = [&](const std::string& run, uint32_t unit) {
    Report report = finished();
    report.id = {run, unit, 1, 3 << 16};
    wire.told.say({report});
    wire.head->ack_reports(wire.numbers.back());
  };
  CHECK(stage("run-1", 0, "shared") == 3);  // bundle, environment, order
  std::weak_ptr<const std::string> bundle = wire.told.orders[0].bundle_bytes;
  auto environment = std::weak_ptr(wire.told.orders[0].environment);
  CHECK(stage("run-1", 1, "shared") == 1);
  CHECK(stage("run-2", 0, "shared") == 2);
  CHECK(wire.told.orders[0].bundle_bytes == bundle.lock());
  wire.told.orders.clear();

  end("run-1", 0);
  end("run-1", 1);
  wire.head->forget("run-1");
  CHECK(environment.expired());
  CHECK_FALSE(bundle.expired());  // run-2 uses it
  CHECK(stage("run-2", 1, "shared") == 1);
  wire.told.orders.clear();
  end("run-2", 0);
  end("run-2", 1);
  wire.head->forget("run-2");
  CHECK(bundle.expired());

  CHECK(stage("run-1", 2, "shared") == 3);  // the run was resumed
  end("run-1", 2);
  CHECK(wire.agent->attempts() == 0);
}

TEST_CASE("a resumed run has its new environment on a worker") {
  Wire wire(big_host());
  std::vector<std::string> values;
  auto old = std::make_shared<const std::vector<std::pair<std::string, std::string>>>(
      1, std::pair("X", "1"));
  auto fresh = std::make_shared<const std::vector<std::pair<std::string, std::string>>>(
      1, std::pair("X", "2"));
  uint32_t unit = 0;
  for (const auto& environment : {old, old, fresh, fresh}) {
    AttemptOrder order = full_order();
    order.id.unit = unit++;
    order.environment = environment;
    wire.pieces.clear();
    wire.head->stage({order}, 0);
    values.push_back(std::to_string(wire.pieces.size()) + " " +
                     wire.told.orders.back().environment->front().second);
  }
  CHECK(values == std::vector<std::string>{"3 1", "1 1", "2 2", "1 2"});
}
