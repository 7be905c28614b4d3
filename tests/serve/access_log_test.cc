// The log of requests: its lines, its samples and its files, and what a front writes to it.
#include "engine/front/access_log.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "adder.hpp"
#include "engine/base/size_units.hpp"
#include "engine/base/temporary_folder.hpp"

using namespace flow;
using Catch::Contains;

namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kTraceparent = "traceparent: 00-" + kTrace + "-00f067aa0ba902b7-01\r\n";

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

struct LogFolder {
  Result<std::shared_ptr<const std::string>> folder = make_temporary_folder();
  std::string path(const std::string& name = "access.log") const { return **folder + "/" + name; }
  std::vector<std::string> lines(const std::string& name = "access.log") const {
    return lines_of(path(name));
  }
};

/// A log whose loop has ended when it is destroyed, so that all lines are written.
struct LogWriter {
  explicit LogWriter(AccessLogOptions options) : log(loop, std::move(options)) {
    log.set_on(true, 1);
  }
  ~LogWriter() { loop.stop(); }
  void add(const RequestRecord& record) {
    loop.run([&] { log.add(record); });
  }
  EventLoop loop{"flow-http", {}};
  AccessLog log;
};

bool has_line(const std::vector<std::string>& lines, const std::string& with) {
  return std::ranges::any_of(
      lines, [&](const std::string& line) { return line.find(with) != std::string::npos; });
}

RequestRecord record_with(int status, const std::string& path = "/v2") {
  RequestRecord record;
  record.client = "127.0.0.1";
  record.method = "GET";
  record.path = path;
  record.status = status;
  return record;
}

Value line_value(const std::string& line) {
  auto value = from_json(line);
  INFO(line);
  REQUIRE(value.ok());
  return *value;
}

std::string text_in(const Value& line, const std::string& name) {
  const Value* field = line.find(name);
  bool is_text = field != nullptr && field->kind() == Value::Kind::string;
  return is_text ? field->as_string() : "";
}

double number_in(const Value& line, const std::string& name) {
  const Value* field = line.find(name);
  bool is_number = field != nullptr &&
                   (field->kind() == Value::Kind::integer || field->kind() == Value::Kind::number);
  return is_number ? field->as_number() : -1;
}

/// The lines of a service's requests, after its end.
std::vector<Value> logged_by(ServiceOptions options, const std::function<void(Service&)>& ask) {
  LogFolder folder;
  {
    Service service(std::move(options), {.access_log = folder.path()});
    ask(service);
  }
  std::vector<Value> values;
  for (const std::string& line : folder.lines()) values.push_back(line_value(line));
  return values;
}

ServiceOptions logging(double fraction = 1) {
  ServiceOptions options;
  options.access_log = fraction;
  return options;
}

}  // namespace

TEST_CASE("the time of a line is that of its millisecond, in any order") {
  TimeText text;
  constexpr int64_t kAt = 1'700'000'000'000;
  for (int64_t at : {kAt, kAt + 7, kAt + 999, kAt + 1000, kAt + 60'050, kAt + 1000, int64_t{0}})
    CHECK(text.of(at) == format_time(at));
}

TEST_CASE("the line of a request is JSON of printable ASCII, whatever its client has chosen") {
  using std::chrono::microseconds;
  RequestRecord record = record_with(200, "/a\"b\\c\n\x1b[31m\xc3\xa9\x7f");
  record.arrived = RequestRecord::Clock::time_point(microseconds(1000));
  record.queue_time = microseconds(50);
  record.rows = 4;
  record.bytes_in = 120;
  record.bytes_out = 90;
  record.version = "run-1";
  record.replica = "digits[0]";
  record.trace = kTrace;
  auto end = RequestRecord::Clock::time_point(microseconds(2234));
  CHECK(access_line(record, end, 1'700'000'000'123) ==
        R"({"time":"2023-11-14T22:13:20.123Z","protocol":"http","client":"127.0.0.1",)"
        R"("method":"GET","path":"/a\"b\\c\u000a\u001b[31m\u00c3\u00a9\u007f","status":200,)"
        R"("duration_ms":1.234,"queue_ms":0.050,"batch_rows":4,"bytes_in":120,"bytes_out":90,)"
        R"("version":"run-1","replica":"digits[0]","trace":"4bf92f3577b34da6a3ce929d0e0e4736",)"
        R"("broken":false})"
        "\n");
  record = record_with(404, std::string(5000, 'a'));
  std::string line = access_line(record, record.arrived, 0);
  CHECK_THAT(line, Contains(std::string(1024, 'a') + "...\",\"status\":404") &&
                       Contains(R"("queue_ms":null,"batch_rows":null)") &&
                       Contains(R"("version":null,"replica":null,"trace":null)"));
}

TEST_CASE("a part of the requests is logged, and each failed or broken one") {
  LogFolder folder;
  {
    LogWriter writer({.path = folder.path(), .seed = 7});
    RequestRecord good = record_with(200), failed = record_with(500), broken = record_with(200);
    good.fraction = failed.fraction = broken.fraction = 0.25;
    broken.is_broken = true;
    RequestRecord other = record_with(500);
    other.fraction = 0;  // of a version without a log
    for (int i = 0; i < 1000; i++) writer.add(good);
    for (int i = 0; i < 10; i++) writer.add(failed), writer.add(broken), writer.add(other);
  }
  auto lines = folder.lines();
  auto with = [&](const char* text) {
    return std::ranges::count_if(
        lines, [&](const std::string& line) { return line.find(text) != std::string::npos; });
  };
  CHECK(with("\"status\":500") == 10);
  CHECK(with("\"broken\":true") == 10);
  int sampled = static_cast<int>(with("\"status\":200")) - 10;
  CHECK(sampled > 200);
  CHECK(sampled < 300);
}

TEST_CASE("the file of a log is renamed when it is full, and few are kept") {
  LogFolder folder;
  {
    LogWriter writer({.path = folder.path(), .file_max = 100'000, .files = 3});
    for (int i = 0; i < 4000; i++) writer.add(record_with(200, "/" + std::to_string(i)));
  }
  CHECK(std::filesystem::exists(folder.path("access.log.1")));
  CHECK(std::filesystem::exists(folder.path("access.log.2")));
  CHECK_FALSE(std::filesystem::exists(folder.path("access.log.3")));
  for (const char* name : {"access.log", "access.log.1", "access.log.2"})
    CHECK(std::filesystem::file_size(folder.path(name)) <= 100'000);
  CHECK_THAT(folder.lines().back(), Contains("\"path\":\"/3999\""));
}

TEST_CASE("lines that the disk does not take in time are dropped and counted") {
  LogFolder folder;
  {
    LogWriter writer({.path = folder.path(), .pending_max = 2000});
    writer.loop.run([&] {  // nothing is written meanwhile
      for (int i = 0; i < 100; i++) writer.log.add(record_with(200));
    });
    while (!has_line(folder.lines(), "\"dropped\":")) {
      writer.add(record_with(201));
      std::this_thread::yield();
    }
  }
  auto lines = folder.lines();
  CHECK(lines.size() < 100);
  CHECK(has_line(lines, "\"status\":201"));
}

TEST_CASE("a front logs each request with its batch, its version, its replica and its trace") {
  ServiceOptions options = logging();
  options.keys = {"the-secret-key"};
  const std::string key = "Authorization: Bearer the-secret-key\r\n";
  auto lines = logged_by(options, [&](Service& service) {
    Client client(service.port);
    CHECK(
        client.post(std::string(kInfer) + "?api_key=hidden", infer_body("x", 1), key + kTraceparent)
            .status == 200);
    CHECK(client.post(kInfer, infer_body("boom", 1), key).status == 500);
    CHECK(client.post(kInfer, "{", key + "traceparent: 00-nonsense\r\n").status == 400);
    CHECK(client.get("/v2/health/ready").status == 200);
    CHECK(request(service.port, "POST", kInfer, infer_body("x", 1)).status == 401);
    CHECK(request(service.port, "GET", "/nowhere").status == 404);
    CHECK(send_raw(service.port, "GARBAGE\r\n\r\n").status == 400);
  });
  REQUIRE(lines.size() == 7);
  const Value& good = lines[0];
  CHECK(text_in(good, "client") == "127.0.0.1");
  CHECK(text_in(good, "method") == "POST");
  CHECK(text_in(good, "path") == kInfer);
  CHECK(number_in(good, "status") == 200);
  CHECK(number_in(good, "batch_rows") == 1);
  CHECK(number_in(good, "queue_ms") >= 0);
  CHECK(number_in(good, "duration_ms") >= number_in(good, "queue_ms"));
  CHECK(number_in(good, "bytes_in") == static_cast<double>(infer_body("x", 1).size()));
  CHECK(number_in(good, "bytes_out") > 50);
  CHECK(text_in(good, "version") == "r1");
  CHECK(text_in(good, "replica") == "adder[0]");
  CHECK(text_in(good, "trace") == kTrace);
  CHECK(number_in(lines[1], "status") == 500);
  CHECK(text_in(lines[1], "replica") == "adder[0]");
  CHECK(number_in(lines[2], "status") == 400);
  CHECK(text_in(lines[2], "trace").empty());
  CHECK(number_in(lines[2], "batch_rows") == -1);
  CHECK(text_in(lines[3], "path") == "/v2/health/ready");
  CHECK(text_in(lines[3], "version").empty());
  CHECK(number_in(lines[4], "status") == 401);
  CHECK(text_in(lines[4], "path") == kInfer);
  CHECK(number_in(lines[5], "status") == 404);
  CHECK(text_in(lines[5], "path") == "/nowhere");
  CHECK(number_in(lines[6], "status") == 400);
  for (const Value& line : lines) {
    CHECK_THAT(to_json(line), !Contains("secret-key") && !Contains("hidden"));
    CHECK_FALSE(text_in(line, "time").empty());
  }
}

TEST_CASE("a front logs failed requests whatever the sample") {
  auto lines = logged_by(logging(1e-9), [&](Service& service) {
    Client client(service.port);
    for (int i = 0; i < 20; i++) CHECK(client.post(kInfer, infer_body("x", 1)).status == 200);
    CHECK(client.post(kInfer, infer_body("boom", 1)).status == 500);
  });
  REQUIRE(lines.size() == 1);
  CHECK(number_in(lines[0], "status") == 500);
}

TEST_CASE("what is no request is logged by the sample, whatever its status") {
  auto send_all = [](Service& service) {
    auto status = [&](const std::string& text) { return send_raw(service.port, text).status; };
    CHECK(status("GET / HTTP/3.0\r\n\r\n") == 505);
    const std::string post = std::string("POST ") + kInfer + " HTTP/1.1\r\nHost: a\r\n";
    CHECK(status(post + "Transfer-Encoding: gzip\r\n\r\n") == 501);
  };
  CHECK(logged_by(logging(1e-9), send_all).empty());
  CHECK(logged_by(logging(), send_all).size() == 2);
}

TEST_CASE("a request whose client has left is logged with status 499") {
  LogFolder folder;
  Service service(logging(), {.access_log = folder.path()});
  service.hold();
  Client client(service.port);
  client.send(post_text(kInfer, infer_body("x", 1)));
  service.wait_calls(1);
  client.reset();
  while (!has_line(folder.lines(), "\"status\":499")) std::this_thread::yield();
  CHECK(folder.lines().size() == 1);
}

TEST_CASE("a log that another program has renamed or removed is opened again") {
  LogFolder folder;
  Service service(logging(), {.access_log = folder.path()});
  Client client(service.port);
  const std::string moved = folder.path() + ".moved";
  auto ask = [&] { CHECK(client.post(kInfer, infer_body("x", 1)).status == 200); };
  auto wait = [&] {
    while (folder.lines().size() != 1) std::this_thread::yield();
  };
  ask();
  wait();
  std::filesystem::rename(folder.path(), moved);
  ask();
  wait();  // in a new file
  std::filesystem::remove(folder.path());
  ask();
  wait();
  CHECK(lines_of(moved).size() == 1);
}

TEST_CASE("without the option a front logs no request") {
  LogFolder folder;
  {
    Service service({}, {.access_log = folder.path()});
    CHECK(request(service.port, "POST", kInfer, infer_body("boom", 1)).status == 500);
  }
  CHECK_FALSE(std::filesystem::exists(folder.path()));
}

TEST_CASE("a replica gets the rows, ids and traces of the requests of a batch") {
  Service service(batched(4));
  service.hold();
  Client first(service.port), second(service.port), third(service.port);
  first.send(post_text(kInfer, infer_body("x", 1)));
  service.wait_calls(1);
  second.send(post_text(
      kInfer,
      R"({"id":"seven","inputs":[{"name":"x","shape":[2,1],"datatype":"FP32","data":[2,3]}]})",
      kTraceparent));
  service.wait_metric("queue_length", 1);
  third.send(post_text(kInfer, infer_body("x", 4), "traceparent: 00-0-0-0\r\n"));
  service.wait_metric("queue_length", 2);
  service.release();
  service.wait_calls(2);
  auto requests = service.replica().requests();
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].id == "seven");
  CHECK(requests[0].rows == 2);
  CHECK_THAT(requests[0].traceparent, Contains(kTrace));
  CHECK(requests[1].id.empty());
  CHECK(requests[1].rows == 1);
  CHECK(requests[1].traceparent.empty());
  for (Client* each : {&first, &second, &third}) CHECK(each->read().status == 200);
}

TEST_CASE("the log of a failed request names its trace") {
  Service service;
  Client client(service.port);
  CHECK(client.post(kInfer, infer_body("boom", 1), kTraceparent).status == 500);
  CHECK(client.post(kInfer, infer_body("boom", 1)).status == 500);
  auto lines = service.replica().logged();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "request of the trace " + kTrace + " failed: boom: predict failed");
  CHECK(lines[1] == "request failed: boom: predict failed");
}
