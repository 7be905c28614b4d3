// What `flow services` lists, from a state and the answers of fronts.
#include "engine/query/active_services.hpp"

#include <catch2/catch.hpp>

#include "engine/runs/front_folder.hpp"

using namespace flow;

namespace {

/// The state with the run "r1" of one task and the service `digits`, which is up if `url` is given.
core::State serving_state(const std::string& name, const std::string& url) {
  auto plan = std::make_shared<Plan>();
  plan->pipeline = "p";
  plan->defs.resize(1);
  plan->nodes.resize(1);
  plan->defs[0].name = plan->nodes[0].name = "digits";
  plan->defs[0].kind = TaskKind::service;
  core::State state;
  core::Run& run = state.runs["r1"];
  run.id = "r1";
  run.name = name;
  run.status = url.empty() ? core::RunStatus::running : core::RunStatus::serving;
  run.plan = plan;
  run.units.resize(1);
  core::Unit& unit = run.units[0];
  unit.status = core::UnitStatus::running;
  unit.phase = core::Phase::running;
  auto detail = std::make_shared<core::UnitDetail>();
  detail->url = url;
  unit.detail = detail;
  run.services = {0};
  return state;
}

RunRecord record_with(const std::string& name, const std::string& status) {
  RunRecord record;
  record.id = "r1";
  record.name = name;
  record.status = status;
  return record;
}

front::Status front_of(const std::string& version) {
  front::Status status;
  status.set_url("http://127.0.0.1:8080");
  status.set_is_ready(true);
  front::VersionStatus& each = *status.add_versions();
  each.set_version(version);
  each.set_percent(10);
  each.set_requests(7);
  each.set_errors(1);
  each.set_requests_per_second(3.5);
  each.set_p50_us(1'200);
  each.set_p99_us(9'000);
  each.set_queue_us(2'500);
  each.set_refused(4);
  each.set_queued(2);
  each.set_running(1);
  front::ReplicaStatus& replica = *each.add_replicas();
  replica.set_replica("digits");
  replica.set_pid(41);
  replica.set_gpus("GPU-a,GPU-b");
  replica.set_is_busy(true);
  return status;
}

std::string json_of(const std::vector<ServiceInfo>& services) {
  std::string json;
  for (const ServiceInfo& service : services) json += service.json() + "\n";
  return json;
}

Result<front::Status> no_front(const std::string&) { return environment_error("none"); }

}  // namespace

TEST_CASE("a service has the traffic and the replicas that its front reports") {
  core::State state = serving_state("prod", "http://127.0.0.1:8080");
  std::string asked;
  auto services = active_services(state, {record_with("prod", "serving")}, "/s",
                                  [&](const std::string& folder) -> Result<front::Status> {
                                    asked = folder;
                                    return front_of("r1");
                                  });
  CHECK(asked == front_folder("/s", "prod", "digits"));
  CHECK(
      json_of(services) ==
      "{\"name\":\"prod\",\"status\":\"serving\",\"ready\":true,\"draining\":false,\"percent\":10,"
      "\"requests\":7,\"errors\":1,\"refused\":4,\"requests_per_second\":3.5,\"p50_ms\":1.2,\"p99_"
      "ms\":9,"
      "\"queue_ms\":2.5,\"queued\":2,\"running\":1,\"latency\":[],\"service\":\"digits\","
      "\"version\":\"r1\","
      "\"url\":\"http://"
      "127.0.0.1:8080\",\"access_log\":null,\"scaling\":null,\"replicas\":[{\"name\":\"digits\","
      "\"status\":\"busy\","
      "\"pid\":41,\"worker\":\"local\",\"gpus\":[\"GPU-a\",\"GPU-b\"]}]}\n");
}

TEST_CASE("without an answer of the front a service has what the state knows") {
  std::string asked;
  auto services = active_services(serving_state("", ""), {record_with("", "running")}, "/s",
                                  [&](const std::string& folder) {
                                    asked = folder;
                                    return no_front(folder);
                                  });
  CHECK(asked == front_folder("/s", "r1", "digits"));
  CHECK(json_of(services) ==
        "{\"name\":null,\"status\":\"running\",\"ready\":null,\"draining\":null,\"percent\":null,"
        "\"requests\":null,\"errors\":null,\"refused\":null,\"requests_per_second\":null,\"p50_"
        "ms\":null,"
        "\"p99_ms\":null,\"queue_ms\":null,\"queued\":null,\"running\":null,\"latency\":null,"
        "\"service\":\"digits\","
        "\"version\":\"r1\",\"url\":null,\"access_log\":null,\"scaling\":null,\"replicas\":[{"
        "\"name\":\"digits\","
        "\"status\":\"starting\",\"pid\":null,\"worker\":\"local\",\"gpus\":[]}]}\n");
}

TEST_CASE("a service whose replicas scale is listed without those that it does not need") {
  auto plan = std::make_shared<Plan>();
  plan->defs.resize(1);
  plan->nodes.resize(1);
  plan->defs[0].name = plan->nodes[0].name = "digits";
  plan->defs[0].kind = TaskKind::service;
  plan->defs[0].service.scaling.max = 3;
  core::State state;
  std::vector<core::Command> none;
  core::apply(state, {1, 1, core::EngineStarted{1, 1000, 1 << 20}}, none);
  core::apply(state, {2, 2, core::RunSubmitted{"r1", "prod", {}, plan}}, none);
  auto scaling_of = [&] {
    auto services = active_services(state, {record_with("prod", "serving")}, "/s", no_front);
    REQUIRE(services.size() == 1);
    std::string text;
    for (const ReplicaInfo& replica : services[0].replicas) text += replica.name + " ";
    return text + services[0].json().substr(services[0].json().find("\"scaling\""), 38);
  };
  CHECK(scaling_of() == "digits[0] \"scaling\":{\"min\":1,\"max\":3,\"wanted\":1}");
  core::apply(state, {3, 3, core::ReplicasScaled{"r1", 0, 2}}, none);
  CHECK(scaling_of() == "digits[0] digits[1] \"scaling\":{\"min\":1,\"max\":3,\"wanted\":2}");
}

TEST_CASE("a service of an interrupted run is listed while its replicas still serve") {
  core::State state = serving_state("prod", "http://127.0.0.1:8080");
  std::vector<RunRecord> records = {record_with("prod", "interrupted")};
  auto with_front = [](const std::string& version) {
    return [version](const std::string&) -> Result<front::Status> { return front_of(version); };
  };
  CHECK(active_services(state, records, "/s", no_front).empty());
  CHECK(active_services(state, records, "/s", with_front("r0")).empty());
  auto services = active_services(state, records, "/s", with_front("r1"));
  REQUIRE(services.size() == 1);
  CHECK(services[0].status == "interrupted");
  REQUIRE(services[0].replicas.size() == 1);
  CHECK(services[0].replicas[0].pid == 41);
  CHECK(active_services(state, {record_with("prod", "succeeded")}, "/s", with_front("r1")).empty());
}

TEST_CASE("a service of a run that could not be resumed is listed with the reason") {
  core::State state = serving_state("prod", "http://127.0.0.1:8080");
  auto why = [](const core::RunId& run) { return run == "r1" ? "it \"lacks\" a key" : ""; };
  auto services = active_services(state, {record_with("prod", "interrupted")}, "/s", no_front, why);
  REQUIRE(services.size() == 1);
  CHECK(services[0].not_resumed == "it \"lacks\" a key");
  CHECK(services[0].url.empty());
  CHECK(services[0].json().ends_with(R"(,"not_resumed":"it \"lacks\" a key"})"));
  services = active_services(state, {record_with("prod", "serving")}, "/s", no_front, why);
  REQUIRE(services.size() == 1);
  CHECK(services[0].not_resumed.empty());
}

TEST_CASE("the latency of a service is the histogram that the front has of the version") {
  front::Status status = front_of("r1");
  for (auto [up_to_us, requests] : {std::pair{500, 3}, {1'000'000, 0}, {0, 2}}) {
    front::DurationBucket& bucket = *status.mutable_versions(0)->add_durations();
    bucket.set_up_to_us(up_to_us);
    bucket.set_requests(static_cast<uint64_t>(requests));
  }
  core::State state = serving_state("prod", "http://127.0.0.1:8080");
  auto services =
      active_services(state, {record_with("prod", "serving")}, "/s",
                      [&](const std::string&) -> Result<front::Status> { return status; });
  REQUIRE(services.size() == 1);
  CHECK(services[0].json().find(R"("latency":[{"up_to_ms":0.5,"requests":3},{"up_to_ms":1000,)"
                                R"("requests":0},{"up_to_ms":null,"requests":2}])") !=
        std::string::npos);
}
