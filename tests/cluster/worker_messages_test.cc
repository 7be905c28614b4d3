// Orders and reports pass between head and worker unchanged, and invalid messages are rejected.
#include "engine/base/clock.hpp"
#include "tests/cluster/transfer_pair.hpp"
#include "tests/cluster/worker_wire.hpp"

namespace flow::cluster {
namespace {

/// An order as text, for comparisons.
std::string text_of(const AttemptOrder& order, uint64_t commit) {
  worker_protocol::Order message;
  put_order(order, commit, message);
  std::string text = message.ShortDebugString() + *order.bundle_bytes;
  for (const auto& [name, value] : *order.environment) text += name + "=" + value + ";";
  return text;
}

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

TEST_CASE("reports arrive unchanged, with those blobs that match their digests") {
  Wire wire(big_host());
  const core::AttemptId id = {"r", 1, 2, 3};
  const Report log{id, 0, 1000, LogLines{2, "line\n\xff", 71}};
  const Report metric{id, 0, 2000, MetricReported{"loss", 0.5, -3}};
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
  CHECK(wire.reports[1].at == 2000);
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

TEST_CASE("a sample of a GPU arrives unchanged, and one that no GPU measures is rejected") {
  GpuSample all{3, "GPU-a", 40, 20, 80, -5, 250'500, 7}, back;
  GpuSample none{0, "GPU-b", {}, {}, {}, {}, {}};
  for (const GpuSample& sample : {all, none}) {
    wire::GpuSample message;
    put_gpu_sample(sample, message);
    CHECK(get_gpu_sample(message, back));
    CHECK(back == sample);
  }
  auto is_rejected = [&](auto change) {
    wire::GpuSample message;
    put_gpu_sample(all, message);
    change(message);
    return !get_gpu_sample(message, back);
  };
  CHECK(is_rejected([](wire::GpuSample& message) { message.set_index(kSampledGpusMax); }));
  CHECK(is_rejected([](wire::GpuSample& message) { message.clear_uuid(); }));
  CHECK(is_rejected([](wire::GpuSample& message) { message.set_uuid(std::string(97, 'a')); }));
  CHECK(is_rejected([](wire::GpuSample& message) { message.set_utilization_percent(101); }));
  CHECK(is_rejected([](wire::GpuSample& message) { message.set_memory_used(-1); }));
}

}  // namespace
}  // namespace flow::cluster
