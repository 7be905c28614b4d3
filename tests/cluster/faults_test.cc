// A head and two workers over links that delay, repeat, reorder and lose frames and puts. Each
// report is still taken once and in order, and blobs are correct.
#include <random>
#include <set>
#include <thread>

#include "engine/cluster/worker/worker_process.hpp"
#include "engine/crypto/file_digest.hpp"
#include "engine/head/worker_listener.hpp"
#include "tests/cluster/pair.hpp"
#include "tests/cluster/transfer_pair.hpp"
#include "tests/transports/faulty.hpp"
#include "transports/inproc/inproc.hpp"

namespace flow::cluster {
namespace {

constexpr uint32_t kOrders = 24, kLines = 6;  // log lines per order, for each worker
constexpr auto kLong = std::chrono::seconds(120);

Tensor tensor_of(const std::string& bytes) {
  Tensor tensor;
  tensor.digest = sha256(bytes);
  tensor.dtype = DType::u8;
  tensor.shape = {static_cast<int64_t>(bytes.size())};
  return tensor;
}

AttemptOrder order_of(uint32_t unit, const std::string& input) {
  static const auto bundle = std::make_shared<const std::string>("the bundle");
  static const auto environment =
      std::make_shared<const std::vector<std::pair<std::string, std::string>>>();
  AttemptOrder order;
  order.id = {"run", unit, 1, 1};
  order.task = "task";
  order.bundle_bytes = bundle;
  order.bundle = sha256(*bundle);
  order.environment = environment;
  order.args = encode_value(Value::list({Value(tensor_of(input))}));
  return order;
}

std::string result_of(uint32_t unit) { return random_bytes_of(1000 + unit * 40'001, unit); }

/// Starts no process: a released order immediately reports its log lines and its result.
class ReportingWorker final : public Worker {
 public:
  ReportingWorker(std::string folder, OnReport on_report)
      : folder_(std::move(folder)), on_report_(std::move(on_report)) {}
  void stage(std::vector<AttemptOrder> orders, uint64_t commit) override {
    std::lock_guard lock(mutex_);
    for (AttemptOrder& order : orders) staged_.emplace_back(commit, std::move(order));
    begin();
  }
  void release(uint64_t commit) override {
    std::lock_guard lock(mutex_);
    released_ = std::max(released_, commit);
    begin();
  }
  void exchange_addresses(const core::AttemptId&, const std::vector<std::string>&) override {}
  void stop(const core::AttemptId&, bool) override {}
  void ack_saved(const core::AttemptId&, const std::string&, bool) override {}
  void ack_logs(size_t) override {}

 private:
  void begin() {
    for (auto& [commit, order] : std::exchange(staged_, {})) {
      if (commit > released_)
        staged_.emplace_back(commit, std::move(order));
      else
        say(order);
    }
  }
  void say(const AttemptOrder& order) {
    for (uint32_t line = 0; line < kLines; line++)
      on_report_({{order.id, 0, 0, LogLines{0, "line " + std::to_string(line)}}});
    std::string result = result_of(order.id.unit);
    const Tensor made = tensor_of(result);
    bool is_made = write_object(made.digest, result);
    // Its blobs are here and complete.
    const Tensor input = decode_value(order.args)->as_table().list[0].as_tensor();
    auto read = sha256_file(blob_path(folder_, input.digest));
    bool has_input = read.ok() && read->digest == input.digest;
    TaskFinished finished;
    finished.outcome =
        is_made && has_input ? TaskFinished::Outcome::succeeded : TaskFinished::Outcome::failed;
    finished.value = encode_value(Value(made));
    on_report_({{order.id, 0, 0, std::move(finished)}});
  }
  bool write_object(const Digest& digest, const std::string& bytes) const {
    std::string path = blob_path(folder_, digest);
    return make_dirs(std::filesystem::path(path).parent_path().string()).ok() &&
           write_file_atomic(path, bytes, 0400).ok();
  }

  const std::string folder_;
  const OnReport on_report_;
  std::mutex mutex_;
  uint64_t released_ = 0;
  std::vector<std::pair<uint64_t, AttemptOrder>> staged_;
};

/// The part of an engine that assigns orders to workers: an order that a worker lacks is sent
/// again.
class Engine final : public WorkerListenerUser {
 public:
  Engine(std::string folder, std::string input)
      : folder_(std::move(folder)), input_(std::move(input)) {}

  std::string on_join(std::shared_ptr<WorkerConnection> host, JoinRequest request) override {
    std::lock_guard lock(mutex_);
    Side& side = sides_[request.worker.name];
    if (auto former = std::exchange(side.host, host))
      former->disconnect("it joined over another connection");
    side.joins++;
    if (side.spool.empty()) side.spool = request.spool;
    wrong_ += side.spool != request.spool;
    std::set<core::AttemptId> has;
    for (const RankOffer& offer : request.ranks) has.insert(offer.rank.attempt);
    uint32_t first = request.worker.name == "a" ? 0 : kOrders;
    std::vector<AttemptOrder> orders;
    for (uint32_t unit = first; unit < first + kOrders; unit++) {
      AttemptOrder order = order_of(unit, input_);
      if (!has.contains(order.id) && !ended_.contains(unit)) orders.push_back(std::move(order));
    }
    host->stage(std::move(orders), 1);
    host->accept_join(side.taken);
    host->release(1);
    return "";
  }
  void on_draining(WorkerConnection&, const std::string&) override {}
  void on_gpu_failed(WorkerConnection&, const std::string&, const std::string&, bool) override {}
  void on_gpu_sample(WorkerConnection&, GpuSample) override {}
  void on_report(WorkerConnection& host, ReceivedReport taken) override {
    std::lock_guard lock(mutex_);
    uint32_t unit = taken.report.id.unit;
    Side& side = sides_[unit < kOrders ? "a" : "b"];
    if (side.host.get() != &host) return;  // the next session reports it again
    wrong_ += taken.number != ++side.taken;
    host.ack_reports(taken.number);
    if (const auto* lines = taken.report.as<LogLines>()) {
      wrong_ += lines->text != "line " + std::to_string(lines_[unit]++);
      return;
    }
    const auto& finished = std::get<TaskFinished>(taken.report.body);
    bool is_good = finished.outcome == TaskFinished::Outcome::succeeded && !taken.is_replaced;
    const Digest made = sha256(result_of(unit));
    auto result = sha256_file(blob_path(folder_, made));
    bool has_result = result.ok() && result->digest == made;
    if (!is_good) failures_ += finished.failure.message + "\n";
    wrong_ += !is_good || !has_result || lines_[unit] != kLines || !ended_.insert(unit).second;
    changed_.notify_all();
  }
  void on_rank_address(Report) override {}
  void on_disconnected(WorkerConnection&, bool, const std::string&) override {}

  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLong, [this] { return ended_.size() == 2 * kOrders; });
  }
  uint64_t joins() {
    std::lock_guard lock(mutex_);
    return sides_["a"].joins + sides_["b"].joins;
  }
  int wrong() {
    std::lock_guard lock(mutex_);
    return wrong_;
  }
  std::string failures() {
    std::lock_guard lock(mutex_);
    return failures_;
  }

 private:
  struct Side {
    std::shared_ptr<WorkerConnection> host;  // of its newest session
    std::string spool;
    uint64_t taken = 0, joins = 0;
  };
  const std::string folder_, input_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Side> sides_;
  std::map<uint32_t, uint32_t> lines_;
  std::set<uint32_t> ended_;
  int wrong_ = 0;
  std::string failures_;  // of attempts
};

struct FaultRates {
  const char* name;
  Faults faults;
  bool breaks;  // whether it breaks sessions
};
const FaultRates kWeathers[] = {
    {"calm", {}, false},
    {"late", {.late = 0.3, .put_late = 0.3}, false},
    {"lost", {.lost = 0.01}, true},
    {"twice", {.twice = 0.01}, true},
    {"swapped", {.swapped = 0.01}, true},
    {"broken", {.late = 0.05, .broken = 0.005, .put_late = 0.2, .put_lost = 0.01}, true},
    {"everything",
     {.late = 0.1,
      .lost = 0.003,
      .twice = 0.003,
      .swapped = 0.003,
      .broken = 0.003,
      .put_late = 0.1,
      .put_lost = 0.003},
     true},
};

/// For sessions whose lost frames are noticed soon, including those of the handshake.
SessionOptions quick_options_of(Role role) {
  SessionOptions options = options_of(role);
  options.handshake_ms = 1'000;
  options.heartbeat_ms = 100;
  return options;
}

void play(const FaultRates& weather, uint64_t seed) {
  CAPTURE(weather.name, seed);
  Faults faults = weather.faults;
  faults.seed = seed;
  FaultyTransport transport(make_inproc_transport(), faults);
  TestFolder state, folders[2];
  std::string input = random_bytes_of(3 << 20);
  put_object(state.path, input);

  Engine engine(state.path, input);
  WorkerListenerOptions head_options;
  head_options.session = quick_options_of(Role::head);
  head_options.listen = "127.0.0.1:0";
  head_options.state_dir = state.path;
  head_options.on_note = [](std::string) {};
  auto head = WorkerListener::start(transport, head_options, engine);
  REQUIRE(head.ok());
  std::vector<std::unique_ptr<WorkerProcess>> nodes;
  for (int i = 0; i < 2; i++) {
    const std::string& folder = folders[i].path;
    WorkerProcessOptions options;
    options.session = quick_options_of(Role::worker);
    options.session.name = i == 0 ? "a" : "b";
    options.head = (*head)->address();
    options.agent.spool_dir = folder + "/spool";
    options.agent.store = *BlobCache::open(folder, 0);
    options.agent.worker.name = options.session.name;
    auto node =
        WorkerProcess::start(transport, std::move(options), [&](Worker::OnReport on_report) {
          return Result<std::unique_ptr<Worker>>(
              std::make_unique<ReportingWorker>(folder, std::move(on_report)));
        });
    REQUIRE(node.ok());
    nodes.push_back(std::move(*node));
  }
  CHECK(engine.wait());
  CHECK(engine.wrong() == 0);
  CHECK(engine.failures() == "");
  if (!weather.breaks) CHECK(engine.joins() == 2);
  nodes.clear();
  head->reset();
}

TEST_CASE("with any network faults each report is taken once and in order, with its blobs") {
  play(GENERATE(from_range(std::begin(kWeathers), std::end(kWeathers))), GENERATE(1, 2));
}

}  // namespace
}  // namespace flow::cluster
