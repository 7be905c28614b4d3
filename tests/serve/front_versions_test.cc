// Replicas and versions of a service: deaths, weights, stops and the end of a front.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "adder.hpp"
#include "engine/base/temporary_folder.hpp"
#include "engine/front/front_messages.hpp"
#include "engine/plan/plan.hpp"
#include "engine/serve/declared_tensors.hpp"
#include "engine/serve/oip_datatypes.hpp"

using namespace flow;
using Catch::Contains;
using Catch::StartsWith;

namespace {

/// Requests that wait for their answers.
class Askers {
 public:
  explicit Askers(int port) : port_(port) {}
  void ask(int value, const std::string& fields = "") {
    clients_.push_back(std::make_unique<Client>(port_));
    clients_.back()->send(post_text(kInfer, infer_body("x", value), fields));
  }
  Reply next() {
    Reply reply = clients_.front()->read();
    clients_.pop_front();
    return reply;
  }

 private:
  const int port_;
  std::deque<std::unique_ptr<Client>> clients_;
};

front::Status status_of(Service& service) {
  front::Status status;
  service.on_loop([&](Front& front) { status = status_of(front); });
  return status;
}

void set_weights(Service& service, const TrafficWeights& weights,
                 const std::string& measured = "") {
  service.on_loop([&](Front& front) { REQUIRE(front.set_traffic(weights, measured).ok()); });
}

}  // namespace

TEST_CASE("replicas share the requests, and one's death loses none") {
  Service service(batched(4), {.replicas = 2});
  AdderReplica &one = service.replica(0), &two = service.replica(1);
  one.hold(), two.hold();
  Askers askers(service.port);
  askers.ask(1), askers.ask(2);
  one.wait_calls(1), two.wait_calls(1);
  for (int value : {3, 4, 5}) {
    askers.ask(value);
    service.wait_metric("queue_length", value - 2);
  }
  one.die();
  service.wait_metric("queue_length", 4);
  int lost = one.order()[0];
  two.go_on();
  for (int value : {1, 2, 3, 4, 5}) CHECK(first_number(askers.next()) == value + 1);
  CHECK(two.order() == std::vector<int>{3 - lost, lost, 3, 4, 5});
  CHECK(service.metric("requests_total,code=\"200\"") == 5);
  CHECK(service.metric("replicas") == 1);
}

TEST_CASE("without a replica requests wait for the next one, or for their deadline") {
  Service service;
  service.replica().die();
  CHECK(request(service.port, "GET", "/v2/health/ready").status == 503);
  Askers askers(service.port);
  askers.ask(1), askers.ask(2, "X-Request-Timeout: 20ms\r\n");
  service.wait_metric("requests_total,code=\"504\"", 1);
  CHECK(service.metric("queue_length") == 1);
  service.add();
  CHECK(first_number(askers.next()) == 2);
  Reply late = askers.next();
  CHECK(late.status == 504);
  CHECK(late.body == R"({"error":"the request was not answered within 20ms"})");
}

TEST_CASE("a request that may not run again is a 502 after the death of its replica") {
  ServiceOptions options;
  options.is_idempotent = false;
  Service service(options);
  service.hold();
  Askers askers(service.port);
  askers.ask(1);
  service.wait_calls(1);
  service.replica().die();
  Reply reply = askers.next();
  CHECK(reply.status == 502);
  CHECK(reply.body == R"({"error":"the replica of `adder` that ran the request died, and the )"
                      R"(request is not run again, because the service is not `idempotent`"})");
  REQUIRE(service.logged().size() == 1);
  CHECK_THAT(service.logged()[0], StartsWith("request failed: the replica of `adder`"));
}

TEST_CASE("a request that kills three replicas is a 502") {
  Service service({}, {.replicas = 0});
  service.add().hold();
  Askers askers(service.port);
  askers.ask(1);
  for (size_t i = 0; i < 3; i++) {
    service.replica(i).wait_calls(1);
    AdderReplica& next = service.add_unjoined();
    next.hold();
    service.replica(i).die();
    if (i < 2) REQUIRE(service.join(next, "r1", {.name = "adder"}).ok());
  }
  CHECK_THAT(askers.next().body, Contains("3 replicas of `adder` died one after the other"));
}

TEST_CASE("a failure is in the log of a replica") {
  Service service;
  CHECK(request(service.port, "POST", kInfer, infer_body("boom", 1)).status == 500);
  CHECK(service.logged() == std::vector<std::string>{"request failed: boom: predict failed"});
  CHECK(service.replica().logged() == service.logged());
}

TEST_CASE("the first version has all requests, and a later one what its weight says") {
  Service service;
  AdderReplica &one = service.replica(), &two = service.add("r2");
  Client client(service.port);
  auto ask = [&](int count) {
    for (int i = 0; i < count; i++) REQUIRE(client.post(kInfer, infer_body("x", 1)).status == 200);
  };
  ask(20);
  CHECK(one.calls() == 20);
  set_weights(service, {{"r1", 73}, {"r2", 27}, {"r3", 100}}, "r2");
  ask(1000);
  CHECK(std::abs(two.calls() - 270) <= 1);
  CHECK(one.calls() + two.calls() == 1020);
  front::Status status = status_of(service);
  REQUIRE(status.versions_size() == 2);
  CHECK(status.versions(0).percent() == 73);
  CHECK(status.versions(1).step_requests() == static_cast<uint64_t>(two.calls()));
  set_weights(service, {{"r2", 100}});
  int before = one.calls();
  ask(20);
  CHECK(one.calls() == before);
  CHECK(service.metric("requests_total,code=\"200\"", "r2") == two.calls());
  CHECK_THAT(request(service.port, "GET", "/v2/models/stats").body,
             Contains(R"("success":{"count":1040,)"));
}

TEST_CASE("a weight that was set before its version joins applies to it") {
  Service service;
  set_weights(service, {{"r1", 0}, {"r2", 100}});
  Client client(service.port);
  CHECK(client.post(kInfer, infer_body("x", 1)).status == 200);  // it is the only one
  AdderReplica& two = service.add("r2");
  CHECK(client.post(kInfer, infer_body("x", 1)).status == 200);
  CHECK(two.calls() == 1);
  CHECK(service.calls() == 1);
}

TEST_CASE("a version without replicas gets no requests while another has some") {
  Service service;
  AdderReplica& two = service.add("r2");
  service.hold();
  Askers askers(service.port);
  askers.ask(1), askers.ask(2), askers.ask(3);
  service.wait_calls(1);
  service.wait_metric("queue_length", 2);
  service.replica().die();
  for (int value : {1, 2, 3}) CHECK(first_number(askers.next()) == value + 1);
  CHECK(two.calls() == 3);
  Client client(service.port);
  CHECK(client.post(kInfer, infer_body("x", 4)).status == 200);
  CHECK(two.calls() == 4);
  CHECK(request(service.port, "GET", "/v2/health/ready").status == 200);
  service.add("r1");
  CHECK(client.post(kInfer, infer_body("x", 4)).status == 200);
  CHECK(two.calls() == 4);
}

TEST_CASE("one of two replicas leaves when its batch is done, and gets no other") {
  Service service({}, {.replicas = 2});
  AdderReplica &one = service.replica(0), &two = service.replica(1);
  one.hold(), two.hold();
  Askers askers(service.port);
  askers.ask(1), askers.ask(2);
  one.wait_calls(1), two.wait_calls(1);
  askers.ask(3);
  service.wait_metric("queue_length", 1);
  one.leave(10'000);
  CHECK_FALSE(one.is_released());
  one.go_on();
  one.wait_released();
  CHECK(one.calls() == 1);
  CHECK(service.metric("replicas") == 1);
  two.go_on();
  for (int value : {1, 2, 3}) CHECK(first_number(askers.next()) == value + 1);
  CHECK_FALSE(service.has_ended());
  // The one that stayed may die: it is not the end of the version.
  two.die();
  CHECK_FALSE(service.has_ended());
  service.add();
  CHECK(request(service.port, "GET", "/v2/health/ready").status == 200);
}

TEST_CASE("a version that leaves finishes its queue while another has the new requests") {
  Service service({}, {.replicas = 2});
  AdderReplica &one = service.replica(0), &two = service.replica(1), &other = service.add("r2");
  one.hold(), two.hold();
  Askers askers(service.port);
  askers.ask(1), askers.ask(2);
  one.wait_calls(1), two.wait_calls(1);
  askers.ask(3), askers.ask(4);
  service.wait_metric("queue_length", 2);
  one.leave(10'000), two.leave(10'000);
  CHECK(first_number(request(service.port, "POST", kInfer, infer_body("x", 7))) == 8);
  CHECK(other.calls() == 1);
  CHECK_FALSE(one.is_released());
  one.go_on(), two.go_on();
  for (int value : {1, 2, 3, 4}) CHECK(first_number(askers.next()) == value + 1);
  one.wait_released(), two.wait_released();
  CHECK(one.calls() + two.calls() == 4);
  CHECK(status_of(service).versions_size() == 1);
  CHECK(request(service.port, "GET", "/v2/health/ready").status == 200);
  CHECK_FALSE(service.has_ended());
  CHECK_THAT(request(service.port, "GET", "/v2/models/adder/stats").body,
             Contains(R"("success":{"count":5,)"));
}

TEST_CASE("what a version does not answer within its grace runs again in the next one") {
  Service service;
  AdderReplica& next = service.add("r2");
  service.hold();
  Askers askers(service.port);
  askers.ask(1), askers.ask(2);
  service.wait_calls(1);
  service.wait_metric("queue_length", 1);
  service.replica().leave(20);
  for (int value : {1, 2}) CHECK(first_number(askers.next()) == value + 1);
  CHECK(next.calls() == 2);
  service.replica().wait_released();
  CHECK(service.logged() ==
        std::vector<std::string>{"requests that a replica had not answered when its time to stop "
                                 "was over and that run again: 1"});
  CHECK(service.replica().logged() == service.logged());
  CHECK(request(service.port, "GET", "/v2/health/ready").status == 200);
}

TEST_CASE("what a version may not run again after its grace is a 503 and logged") {
  ServiceOptions options;
  options.is_idempotent = false;
  Service service(options);
  service.add("r2");
  service.hold();
  Askers askers(service.port);
  askers.ask(1), askers.ask(2);
  service.wait_calls(1);
  service.wait_metric("queue_length", 1);
  service.replica().leave(20);
  Reply cut = askers.next();
  CHECK(cut.status == 503);
  CHECK_THAT(cut.headers, Contains("Retry-After: "));
  CHECK(cut.body ==
        R"({"error":"the replica of `adder` that ran the request was stopped at the end of the )"
        R"(`--grace` of its run, and the request is not run again, because the service is not )"
        R"(`idempotent`"})");
  CHECK(first_number(askers.next()) == 3);  // it had not begun
  service.replica().wait_released();
  CHECK(service.logged() ==
        std::vector<std::string>{"requests that a replica had not answered when its time to stop "
                                 "was over and that got status 503: 1"});
}

TEST_CASE("a replica that does not answer within its grace is released while others stay") {
  ServiceOptions options;
  options.is_idempotent = GENERATE(false, true);
  Service service(options, {.replicas = 2});
  AdderReplica &one = service.replica(0), &two = service.replica(1);
  one.hold(), two.hold();
  Askers askers(service.port);
  askers.ask(1), askers.ask(1);
  one.wait_calls(1), two.wait_calls(1);
  AdderReplica& three = service.add();
  two.leave(3'600'000);
  one.leave(20);  // it has a time of its own
  one.wait_released();
  CHECK_FALSE(two.is_released());
  two.go_on();
  std::vector<int> statuses = {askers.next().status, askers.next().status};
  std::ranges::sort(statuses);
  CHECK(statuses == std::vector<int>{200, options.is_idempotent ? 200 : 503});
  CHECK(three.calls() == (options.is_idempotent ? 1 : 0));
  CHECK(service.metric("requests_total,code=\"502\"") == 0);
}

TEST_CASE("the last version that leaves ends the front, and none may join any more") {
  Service service({}, {.replicas = 2});
  service.replica(0).leave(10'000);
  service.replica(0).wait_released();
  CHECK_FALSE(service.has_ended());
  service.replica(1).leave(10'000);
  service.wait_end();
  CHECK(service.replica(1).is_released());
  CHECK(connect_to(service.port) < 0);
  Status late = service.join(service.add_unjoined(), "r2", {.name = "adder"});
  REQUIRE_FALSE(late.ok());
  CHECK(late.error().kind == ErrorKind::interrupted);
}

TEST_CASE("a drain accepts new connections for a time") {
  ServiceOptions options;
  options.drain_delay_ms = 3'600'000;
  Service service(options, {.drain_ms = 3'600'000});
  service.begin_stop();
  while (request(service.port, "GET", "/v2/health/ready").status != 503) std::this_thread::yield();
  CHECK(first_number(request(service.port, "POST", kInfer, infer_body("x", 1))) == 2);
  service.replica().die();  // then there is nothing to wait for
  service.wait_end();
}

TEST_CASE("a front ends when it has neither replicas nor an engine for its lease") {
  Service service({}, {.lease_ms = 20});
  service.on_loop([](Front& front) { front.add_engine(); });
  service.replica().die();
  service.on_loop([](Front& front) { front.remove_engine(); });
  service.wait_end();
  Service unused({}, {.replicas = 0, .lease_ms = 0});
  unused.wait_end();
}

TEST_CASE("a version must have the listener of the one that serves") {
  Service service;
  ServiceOptions options{.name = "adder", .address = "127.0.0.2"};
  Status joined = service.join(service.add_unjoined(), "r2", options);
  REQUIRE_FALSE(joined.ok());
  CHECK(joined.error().message ==
        "the service `adder` has another `listen` than the version that serves at " +
            service.url() +
            ", whose listener it would take over: give it the same, or stop that version first");
  options = {.name = "adder", .tls = TlsFiles{"a", "b", ""}};
  joined = service.join(service.add_unjoined(), "r2", options);
  REQUIRE_FALSE(joined.ok());
  CHECK_THAT(joined.error().message, Contains("another `tls` than"));
  CHECK(status_of(service).versions_size() == 1);
}

TEST_CASE("a front has eight versions at most") {
  Service service;
  for (int i = 2; i <= 8; i++) service.add("r" + std::to_string(i));
  Status ninth = service.join(service.add_unjoined(), "r9", {.name = "adder"});
  REQUIRE_FALSE(ninth.ok());
  CHECK_THAT(ninth.error().message, Contains("has 8 versions already, and may have 8"));
}

TEST_CASE("keys are those of the version with the highest weight") {
  ServiceOptions first{.name = "adder", .keys = {"one"}}, second{.name = "adder", .keys = {"two"}};
  Service service(first);
  service.add("r2", second);
  auto status = [&](const std::string& key) {
    return send_raw(service.port,
                    "GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                    "Authorization: Bearer " +
                        key + "\r\n\r\n")
        .status;
  };
  CHECK(status("one") == 200);
  CHECK(status("two") == 401);
  set_weights(service, {{"r1", 40}, {"r2", 60}});
  CHECK(status("one") == 401);
  CHECK(status("two") == 200);
}

TEST_CASE("hosts are those of the version with the highest weight") {
  Service service({.name = "adder", .hosts = {"old.example"}});
  service.add("r2", {.name = "adder", .hosts = {"new.example"}});
  auto status = [&](const std::string& host) {
    return send_raw(service.port,
                    "GET /v2 HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n")
        .status;
  };
  CHECK(status("old.example") == 200);
  CHECK(status("new.example") != 200);
  set_weights(service, {{"r2", 100}});
  CHECK(status("old.example") != 200);
  CHECK(status("new.example") == 200);
}

TEST_CASE("the status has the figures of each version and replica") {
  Service service;
  CHECK(request(service.port, "POST", kInfer, infer_body("x", 1)).status == 200);
  CHECK(request(service.port, "POST", kInfer, infer_body("boom", 1)).status == 500);
  CHECK(request(service.port, "POST", kInfer, "{").status == 400);
  service.hold();
  Askers askers(service.port);
  askers.ask(1), askers.ask(2);
  service.wait_calls(3);
  service.wait_metric("queue_length", 1);
  service.replica().leave(10'000'000);
  front::Status status = status_of(service);
  CHECK(status.url() == service.url());
  CHECK(status.pid() == ::getpid());
  CHECK_FALSE(status.is_ready());
  CHECK(status.is_draining());
  REQUIRE(status.versions_size() == 1);
  const front::VersionStatus& version = status.versions(0);
  CHECK(version.version() == "r1");
  CHECK(version.percent() == 100);
  CHECK(version.requests() == 2);  // accepted
  CHECK(version.errors() == 1);
  CHECK(version.requests_per_second() > 0);
  CHECK(version.p50_us() > 0);
  CHECK(version.p99_us() >= version.p50_us());
  CHECK(version.queued() == 1);
  CHECK(version.running() == 1);
  REQUIRE(version.replicas_size() == 1);
  CHECK(version.replicas(0).replica() == "adder[0]");
  CHECK(version.replicas(0).pid() == 4711);
  CHECK(version.replicas(0).is_leaving());
  CHECK(version.replicas(0).is_busy());
  CHECK(version.replicas(0).batches() == 2);
  std::string error;
  service.on_loop([&](Front& front) { error = front.set_traffic({}, "r7").error().message; });
  CHECK_THAT(error, StartsWith("the version to measure is not there"));
  service.on_loop([&](Front& front) { CHECK_FALSE(front.set_traffic({{"r1", 101}}, "").ok()); });
}

TEST_CASE("the next front takes the port that the system chose for the last one") {
  auto folder = make_temporary_folder();
  REQUIRE(folder.ok());
  const std::string file = **folder + "/front.port";
  int port = 0;
  {
    Service first({}, {.port_file = file});
    port = first.port;
    int written = 0;
    std::ifstream(file) >> written;
    CHECK(written == port);
  }
  {
    Service second({}, {.port_file = file});
    CHECK(second.port == port);
    CHECK(second.logged().empty());
    Service third({}, {.port_file = file});  // it is taken
    CHECK(third.port != port);
    REQUIRE(third.logged().size() == 1);
    CHECK_THAT(third.logged()[0], StartsWith("the service had port " + std::to_string(port) +
                                             " before, and has another one now: "));
  }
}

TEST_CASE("the next front restores the weights of versions that join it again") {
  auto folder = make_temporary_folder();
  REQUIRE(folder.ok());
  const std::string file = **folder + "/front.traffic";
  auto percents = [](Service& service) {
    std::vector<uint32_t> all;
    const front::Status status = status_of(service);
    for (const auto& version : status.versions()) all.push_back(version.percent());
    return all;
  };
  Service first({}, {.traffic_file = file});
  set_weights(first, {{"r1", 90}, {"r2", 10}});
  Service second({}, {.replicas = 0, .traffic_file = file});
  second.add("r2");
  second.add("r1");
  CHECK(percents(second) == std::vector<uint32_t>{10, 90});
  // Another version is there first: it answers meanwhile, and gets nothing afterwards.
  Service third({}, {.replicas = 0, .traffic_file = file});
  AdderReplica& other = third.add("r7");
  CHECK(request(third.port, "POST", kInfer, infer_body("x", 1)).status == 200);
  third.add("r1");
  CHECK(request(third.port, "POST", kInfer, infer_body("x", 1)).status == 200);
  CHECK(other.calls() == 1);
  CHECK(percents(third) == std::vector<uint32_t>{0, 90});
}

TEST_CASE("a version gets all requests if those of the last front do not join in time") {
  auto folder = make_temporary_folder();
  REQUIRE(folder.ok());
  const std::string file = **folder + "/front.traffic";
  auto percents = [](Service& service) {
    std::vector<uint32_t> all;
    const front::Status status = status_of(service);
    for (const auto& version : status.versions()) all.push_back(version.percent());
    return all;
  };
  Service first({}, {.traffic_file = file});
  set_weights(first, {{"r1", 0}, {"r2", 100}});
  Service late({}, {.replicas = 0, .traffic_file = file, .rejoin_ms = 0});
  late.add("r7");
  CHECK(percents(late) == std::vector<uint32_t>{100});
  late.add("r2");
  CHECK(percents(late) == std::vector<uint32_t>{100, 0});
  // The time ends after it has joined, and after one of the last front that had no requests.
  Service second({}, {.replicas = 0, .traffic_file = file, .rejoin_ms = 50});
  second.add("r1");
  second.add("r7");
  while (percents(second) != std::vector<uint32_t>{100, 0}) std::this_thread::yield();
}

TEST_CASE("a front that finds a canary and no engine gives all traffic to the version before") {
  auto folder = make_temporary_folder();
  REQUIRE(folder.ok());
  const std::string file = **folder + "/front.traffic";
  auto percents = [](Service& service) {
    std::vector<uint32_t> all;
    const front::Status status = status_of(service);
    for (const auto& version : status.versions()) all.push_back(version.percent());
    return all;
  };
  const std::vector<uint32_t> canary = {90, 10}, before = {100, 0};
  {
    Service first({}, {.traffic_file = file});
    first.add("r2");
    first.on_loop([](Front& front) {
      front.add_engine();
      REQUIRE(front.set_traffic({{"r1", 90}, {"r2", 10}}, "r2").ok());
    });
    CHECK(percents(first) == canary);
  }
  // Its engine is still there, and ends later.
  {
    Service second({}, {.traffic_file = file});
    second.add("r2");
    second.on_loop([](Front& front) { front.add_engine(); });
    CHECK(percents(second) == canary);
  }
  {
    Service third({}, {.canary_wait_ms = 0, .traffic_file = file});
    third.add("r2");
    while (percents(third) != before) std::this_thread::yield();
  }
  Service fourth({}, {.traffic_file = file});
  fourth.add("r2");
  CHECK(percents(fourth) == before);
}

TEST_CASE("what a replica sends to join is checked") {
  front::Join join;
  auto problem = [&] {
    auto request = join_request_of(join);
    return request.ok() ? "" : request.error().message;
  };
  CHECK_THAT(problem(), Contains("has no name"));
  join.set_version("r1");
  join.set_model("adder");
  CHECK(problem().empty());
  join.set_request_timeout_ms(500);
  join.set_batch_max(4);
  join.set_port(80);
  join.add_keys("k");
  auto request = join_request_of(join);
  REQUIRE(request.ok());
  CHECK(request->options.request_timeout_ms == 500);
  CHECK(request->options.batch_max == 4);
  CHECK(request->options.port == 80);
  CHECK(request->options.keys == std::vector<std::string>{"k"});
  join.set_port(65536);
  CHECK_THAT(problem(), Contains("port"));
  join.set_port(0);
  join.set_service("garbage");
  CHECK_FALSE(problem().empty());
  ServiceSpec spec;
  spec.keys.variable = "KEYS";
  spec.queue_max = 7;
  spec.is_idempotent = false;
  spec.drain_delay_ms = 8;
  join.set_service(encode_service_options(spec));
  CHECK(join_request_of(join)->options.queue == 7);
  CHECK_FALSE(join_request_of(join)->options.is_idempotent);
  CHECK(join_request_of(join)->options.drain_delay_ms == 8);
  join.clear_keys();
  CHECK_THAT(problem(), Contains("it has no keys"));
}

TEST_CASE("the warm-up request of a replica has the declared datatypes, as a client's must have") {
  ServiceSpec spec;
  spec.inputs = {{"n", "INT16", {1}}, {"t", "BYTES", {1}}};
  spec.warmup = {{"n", "i32", {1}, std::string("\1\0\0\0", 4)},
                 {"t", "BYTES", {1}, std::string("\1\0\0\0a", 5)}};
  front::Join join;
  join.set_version("r1");
  join.set_model("adder");
  join.set_service(encode_service_options(spec));
  auto joined = join_request_of(join);
  REQUIRE(joined.ok());
  InferRequest request;
  request.inputs = joined->options.warmup;
  CHECK(check_inputs(spec.inputs, request).ok());
  CHECK(datatype_of(request.inputs.at("n")).name == "INT16");
}

TEST_CASE("a version whose run was resumed with other options has them") {
  ServiceOptions options = batched(1);
  Service service(options);
  service.hold();
  Askers askers(service.port);
  askers.ask(1);
  service.wait_calls(1);
  for (int value : {2, 3, 4}) askers.ask(value);
  service.wait_metric("queue_length", 3);
  ServiceOptions now = batched(4);
  now.name = "adder";
  now.inputs = {{"x", "FP32", {-1, 1}}};
  now.request_timeout_ms = 50'000;
  service.on_loop([&](Front& front) {
    front.renew(service.replica(), {"r1", {"adder[0]", 4711, ""}, now});
  });
  service.release();
  for (int value : {1, 2, 3, 4}) CHECK(first_number(askers.next()) == value + 1);
  CHECK(service.rows_max() == 3);
  Reply refused = request(service.port, "POST", kInfer, infer_body("y", 1));
  CHECK(refused.status == 400);
  service.on_loop([&](Front& front) {
    CHECK(front.versions().find("r1")->options().request_timeout_ms == 50'000);
  });

  service.hold();
  askers.ask(5);
  service.wait_calls(3);
  askers.ask(6);
  service.wait_metric("queue_length", 1);
  now.inputs = {{"z", "FP32", {-1, 1}}};
  now.queue = 1;
  AdderReplica& other = service.add("r1", now);
  Reply wrong = [&] {
    CHECK(request(service.port, "POST", kInfer, infer_body("z", 7)).status == 200);
    service.release();
    CHECK(first_number(askers.next()) == 6);
    return askers.next();
  }();
  CHECK(wrong.status == 400);
  CHECK(other.calls() == 1);
}

TEST_CASE("a version that has ended is forgotten when its replicas are gone") {
  Service service;
  AdderReplica& two = service.add("r2");
  service.on_loop([](Front& front) { front.forget("r3"); });
  two.die();
  CHECK(status_of(service).versions_size() == 2);
  service.on_loop([](Front& front) { front.forget("r2"); });
  CHECK(status_of(service).versions_size() == 1);
  CHECK(first_number(request(service.port, "POST", kInfer, infer_body("x", 1))) == 2);
  service.on_loop([](Front& front) { front.forget("r1"); });
  CHECK(status_of(service).versions_size() == 1);
  CHECK_FALSE(service.has_ended());
  service.replica().die();
  service.wait_end();
}

/// Runs what a call on the loop has posted: that is queued when its handler has ended, which may be
/// after the next job.
void settle(Service& service) {
  for (int i = 0; i < 2; i++) service.on_loop([](Front&) {});
}

TEST_CASE("a front that no replica has joined ends with the run that it was started for") {
  Service service({}, {.replicas = 0});
  service.on_loop([](Front& front) { front.forget("r1"); });
  settle(service);
  CHECK(service.has_ended());
}

TEST_CASE("a front that no replica has joined ends with the last engine") {
  Service service({}, {.replicas = 0});
  service.on_loop([](Front& front) { front.add_engine(), front.add_engine(); });
  service.on_loop([](Front& front) { front.remove_engine(); });
  settle(service);
  CHECK_FALSE(service.has_ended());
  service.on_loop([](Front& front) { front.remove_engine(); });
  settle(service);
  CHECK(service.has_ended());
}

TEST_CASE("a front that has traffic to restore does not end with a run whose replicas died") {
  auto folder = make_temporary_folder();
  REQUIRE(folder.ok());
  const std::string traffic = **folder + "/traffic";
  std::ofstream(traffic) << "100 r1\n";
  Service service({}, {.replicas = 0, .traffic_file = traffic});
  service.on_loop([](Front& front) { front.forget("r2"); });
  settle(service);
  CHECK_FALSE(service.has_ended());
  service.add();
  CHECK(first_number(request(service.port, "POST", kInfer, infer_body("x", 1))) == 2);
}

TEST_CASE("a version that is drained leaves the others, and the last one ends the front") {
  Service service;
  AdderReplica& two = service.add("r2");
  service.on_loop([](Front& front) {
    front.drain("r3", std::chrono::seconds(60));
    front.drain("r1", std::chrono::seconds(60));
  });
  CHECK(service.replica().is_released());
  CHECK(status_of(service).versions_size() == 1);
  CHECK(first_number(request(service.port, "POST", kInfer, infer_body("x", 1))) == 2);
  CHECK_FALSE(service.has_ended());
  service.on_loop([](Front& front) { front.drain("r2", std::chrono::seconds(60)); });
  service.wait_end();
  CHECK(two.is_released());
}

TEST_CASE("a front ends when its only version comes back with another address") {
  ServiceOptions options;
  options.name = "adder";
  Service service(options);
  ServiceOptions other = options;
  other.address = "127.0.0.2";
  AdderReplica& again = service.add_unjoined();
  Status joined = service.join(again, "r2", other);
  REQUIRE_FALSE(joined.ok());
  CHECK_THAT(joined.error().message, Contains("has another `listen`"));
  joined = service.join(again, "r1", other);
  REQUIRE_FALSE(joined.ok());
  CHECK(joined.error().kind == ErrorKind::interrupted);
  service.wait_end();
  CHECK(service.replica().is_released());
  CHECK_THAT(service.logged().back(), Contains("version r1 was resumed with other options"));
}
