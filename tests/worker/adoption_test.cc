// Executors that serve without an engine: their lease, and how a worker takes them over.
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <mutex>

#include "engine/base/files.hpp"
#include "engine/protocol/replica_record.hpp"
#include "tests/worker/temp_folder.hpp"

using namespace flow;
using test::TempFolder;

namespace {

AttemptOrder order_of_service(const TempFolder& temp, uint32_t attempt, int64_t lease_ms) {
  AttemptOrder order = test::lua_order(0, R"(
    local flow = require "flow"
    local web = flow.service("web", { port = 0 }, function(ctx)
      return { predict = function(inputs) return { y = inputs.x } end }
    end)
    return flow.pipeline("p", {}, function() return { web = web() } end)
  )",
                                       {});
  order.id = {"r", 0, attempt, attempt};
  order.kind = TaskKind::service;
  order.task = order.task_name = "web";
  order.key = sha256("key");
  order.front = temp / "state/fronts/web";
  order.front_lease_ms = lease_ms;
  order.grace_ms = 2000;
  return order;
}

/// What a worker reports of its services.
struct Reports {
  std::mutex mutex;
  std::promise<std::string> url;  // of the first that is ready
  bool has_url = false;

  Worker::OnReport receiver() {
    return [this](std::vector<Report> reports) {
      std::lock_guard lock(mutex);
      for (Report& report : reports) {
        auto* ready = report.as<ServiceReported>();
        if (ready != nullptr && !std::exchange(has_url, true)) url.set_value(ready->url);
      }
    };
  }
};

struct ServedService {
  ReplicaRecord record;
  std::string url;
  int pidfd = -1;
  ~ServedService() { ::close(pidfd); }
  bool has_ended(int within_ms) const {
    pollfd ended{pidfd, POLLIN, 0};
    return ::poll(&ended, 1, within_ms) > 0;
  }
};

std::vector<ReplicaRecord> records_in(const TempFolder& temp) {
  std::vector<ReplicaRecord> records;
  for (const auto& file : test::fs::directory_iterator(temp / "state/scratch/slots")) {
    if (file.path().extension() != kReplicaSuffix) continue;
    auto record = parse_replica_record(*read_file(file.path().string()));
    if (record) records.push_back(*record);
  }
  return records;
}

/// A service whose engine was killed.
std::unique_ptr<ServedService> serve_without_engine(const TempFolder& temp, int64_t lease_ms) {
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  pid_t engine = ::fork();
  if (engine == 0) {
    Reports reports;
    auto worker = test::worker_in(temp, reports.receiver());
    worker->start({order_of_service(temp, 1, lease_ms)});
    std::string url = reports.url.get_future().get();
    (void)!::write(ready[1], url.data(), url.size());
    ::pause();
    ::_exit(1);
  }
  char url[100];
  ssize_t size = ::read(ready[0], url, sizeof url);
  REQUIRE(size > 0);
  ::close(ready[0]);
  ::close(ready[1]);
  auto served = std::make_unique<ServedService>();
  served->url.assign(url, static_cast<size_t>(size));
  auto records = records_in(temp);
  REQUIRE(records.size() == 1);
  served->record = records[0];
  served->pidfd = static_cast<int>(::syscall(SYS_pidfd_open, served->record.pid, 0));
  ::kill(engine, SIGKILL);
  ::waitpid(engine, nullptr, 0);
  return served;
}

/// Waits until the front has removed its files.
void wait_front_ended(const TempFolder& temp) {
  while (test::fs::exists(temp / "state/fronts/web/front.pid")) ::usleep(1000);
}

bool has_executor() { return ::getenv("FLOW_TEST_EXECUTOR") != nullptr; }

}  // namespace

TEST_CASE("a service is taken over with its process and its URL, and ends with its new worker") {
  if (!has_executor()) return;
  TempFolder temp;
  auto served = serve_without_engine(temp, 60'000);
  {
    Reports reports;
    auto worker = test::worker_in(temp, reports.receiver());
    CHECK(is_alive(served->record));
    worker->start({order_of_service(temp, 2, 60'000)});
    CHECK(reports.url.get_future().get() == served->url);
    CHECK(is_alive(served->record));
  }
  CHECK(served->has_ended(10'000));
  CHECK(records_in(temp).empty());
  wait_front_ended(temp);
}

TEST_CASE("a service of another key is not taken over: a new process replaces it") {
  if (!has_executor()) return;
  TempFolder temp;
  auto served = serve_without_engine(temp, 60'000);
  Reports reports;
  auto worker = test::worker_in(temp, reports.receiver());
  AttemptOrder order = order_of_service(temp, 2, 60'000);
  order.key = sha256("another");
  worker->start({order});
  CHECK(reports.url.get_future().get() == served->url);
  CHECK(served->has_ended(0));
  worker.reset();
  wait_front_ended(temp);
}

TEST_CASE("a service of other options is not taken over: a new process replaces it") {
  if (!has_executor()) return;
  TempFolder temp;
  auto served = serve_without_engine(temp, 60'000);
  Reports reports;
  auto worker = test::worker_in(temp, reports.receiver());
  AttemptOrder order = order_of_service(temp, 2, 60'000);
  order.service.queue_max = 7;
  worker->start({order});
  CHECK(reports.url.get_future().get() == served->url);
  CHECK(served->has_ended(0));
  worker.reset();
  wait_front_ended(temp);
}

TEST_CASE("a replica that is not wanted any more has ended before one of other code serves") {
  if (!has_executor()) return;
  TempFolder temp;
  auto served = serve_without_engine(temp, 60'000);
  Reports reports;
  auto worker = test::worker_in(temp, reports.receiver());
  AttemptOrder order = order_of_service(temp, 2, 60'000);
  order.id.unit = 1;
  order.key = sha256("another");
  worker->start({order});
  CHECK(reports.url.get_future().get() == served->url);
  CHECK(served->has_ended(0));
  worker.reset();
  wait_front_ended(temp);
}

TEST_CASE("a service that has another place in a new plan is taken over there") {
  if (!has_executor()) return;
  TempFolder temp;
  auto served = serve_without_engine(temp, 60'000);
  Reports reports;
  auto worker = test::worker_in(temp, reports.receiver());
  worker->move_replicas("another", {});
  worker->move_replicas("r", {{0, 1}});
  AttemptOrder order = order_of_service(temp, 2, 60'000);
  order.id.unit = 1;
  worker->start({order});
  CHECK(reports.url.get_future().get() == served->url);
  CHECK(is_alive(served->record));
  auto records = records_in(temp);
  REQUIRE(records.size() == 1);
  CHECK(records[0].pid == served->record.pid);
  CHECK(records[0].unit == 1);
  worker.reset();
  wait_front_ended(temp);
}

TEST_CASE("a service is taken over at another place if the engine died before it was moved") {
  if (!has_executor()) return;
  TempFolder temp;
  auto served = serve_without_engine(temp, 60'000);
  Reports reports;
  auto worker = test::worker_in(temp, reports.receiver());
  // Another service has the place that this one had in the plan before.
  AttemptOrder other = order_of_service(temp, 2, 60'000);
  other.front = temp / "state/fronts/other";
  AttemptOrder order = order_of_service(temp, 3, 60'000);
  order.id.unit = 1;
  worker->start({other, order});
  reports.url.get_future().wait();
  CHECK(is_alive(served->record));
  worker.reset();
  CHECK(served->has_ended(10'000));
  wait_front_ended(temp);
}

TEST_CASE("a service that a new plan lacks has ended at once") {
  if (!has_executor()) return;
  TempFolder temp;
  auto served = serve_without_engine(temp, 60'000);
  Reports reports;
  auto worker = test::worker_in(temp, reports.receiver());
  worker->move_replicas("r", {{1, 0}});
  CHECK(served->has_ended(0));
  CHECK(records_in(temp).empty());
  worker.reset();
  ::kill(std::atoi(read_file(temp / "state/fronts/web/front.pid")->c_str()), SIGTERM);
  wait_front_ended(temp);
}

TEST_CASE("a service ends at the end of its lease, and the next worker removes its files") {
  if (!has_executor()) return;
  TempFolder temp;
  auto served = serve_without_engine(temp, 200);
  CHECK(served->has_ended(20'000));
  Reports reports;
  auto worker = test::worker_in(temp, reports.receiver());
  CHECK(records_in(temp).empty());
  CHECK_FALSE(test::fs::exists(replica_socket_path(served->record.front, served->record.pid)));
  wait_front_ended(temp);
}

TEST_CASE("the record of a replica is complete, or none") {
  ReplicaRecord record;
  record.boot = "1dfd0ec5-4f57-4b8e-9a7c-0b1d6c1c8a11";
  record.start_ticks = 12345;
  record.pid = 4711;
  record.slot = "k3f9x2mbek2m";
  record.run = "20261121-051700-3fk3f9x";
  record.unit = 3;
  record.key = sha256("key");
  record.options = sha256("options");
  record.gpus = {"GPU-1", "MIG-2"};
  record.front = "/a folder/.flow/fronts/0123456789abcdef";
  std::string text = encode_replica_record(record);
  auto parsed = parse_replica_record(text);
  REQUIRE(parsed);
  CHECK(encode_replica_record(*parsed) == text);
  CHECK(parsed->options == record.options);
  CHECK(parsed->gpus == record.gpus);
  CHECK(parsed->front == record.front);
  record.gpus.clear();
  parsed = parse_replica_record(encode_replica_record(record));
  REQUIRE(parsed);
  CHECK(parsed->gpus.empty());
  for (size_t size = 0; size < text.size(); size++)
    CHECK_FALSE(parse_replica_record(std::string_view(text).substr(0, size)));
  CHECK_FALSE(parse_replica_record("boot 1 1 slot run 0 " + record.key.hex() + " - /front\n"));
  CHECK_FALSE(is_alive(record));
}
