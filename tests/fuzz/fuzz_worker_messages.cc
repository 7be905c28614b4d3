// Between a head and a worker: any message is rejected or accepted, an order survives encoding, and
// a blob matches its digest.
#include <google/protobuf/stubs/logging.h>

#include <filesystem>

#include "engine/base/ids.hpp"
#include "engine/cluster/transfer/blob_directory.hpp"
#include "engine/cluster/worker/worker_agent.hpp"
#include "engine/head/remote_worker.hpp"

namespace {

using namespace flow;
using namespace flow::cluster;

const auto kQuiet = google::protobuf::SetLogHandler(nullptr);

class Checker final : public Worker {
 public:
  void stage(std::vector<AttemptOrder> orders, uint64_t commit) override {
    for (AttemptOrder& order : orders) {
      FLOW_CHECK(order.bundle_bytes && sha256(*order.bundle_bytes) == order.bundle);
      FLOW_CHECK(order.environment != nullptr);
      worker_protocol::Order out, again;
      put_order(order, commit, out);
      AttemptOrder back;
      std::string bytes = out.SerializeAsString();
      FLOW_CHECK(get_order(out, back));
      put_order(back, commit, again);
      FLOW_CHECK(again.SerializeAsString() == bytes);
    }
  }
  void release(uint64_t) override {}
  void exchange_addresses(const core::AttemptId&, const std::vector<std::string>&) override {}
  void stop(const core::AttemptId&, bool) override {}
  void ack_saved(const core::AttemptId&, const std::string&, bool) override {}
  void ack_logs(size_t) override {}
};

class NoLink final : public Link {
 public:
  void send(std::string) override {}
  size_t unsent_bytes() const override { return 0; }
  void post_receive(uint64_t, Region, std::function<void(Result<size_t>)> done) override {
    done(Result<size_t>(environment_error("nowhere")));
  }
  void cancel_receive(uint64_t) override {}
  void put(uint64_t, Region, std::function<void(Status)> done) override {
    done(environment_error("nowhere"));
  }
  void close(int64_t) override {}
  std::string description() const override { return "nowhere"; }
};

}  // namespace

// The input consists of parts with a length of two bytes: to the worker, and to the head.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  WorkerAgent::Options options;
  static const struct Folder {
    std::string path = "/dev/shm/flow-fuzz-nodes-" + random_name();
    ~Folder() { std::filesystem::remove_all(path); }
  } own;
  const std::string& folder = own.path;
  std::filesystem::remove_all(folder);
  options.spool_dir = folder + "/spool";
  options.store = *BlobCache::open(folder, 0);
  auto agent = WorkerAgent::start(std::move(options), [](Worker::OnReport) {
    return Result<std::unique_ptr<Worker>>(std::unique_ptr<Worker>(new Checker));
  });
  (*agent)->connect([](std::string_view) {}, std::make_shared<NoLink>(), BulkSeal(Key{}, Key{}),
                    "the head");
  RemoteWorkerCallbacks told;
  told.on_join = [](JoinRequest) { return true; };
  told.on_draining = [](const std::string&) {};
  told.on_gpu_failed = [](const std::string&, const std::string& fault, bool) {
    FLOW_CHECK(!fault.empty());
  };
  told.on_gpu_sample = [](const GpuSample& sample) {
    FLOW_CHECK(!sample.uuid.empty() && sample.index < kSampledGpusMax);
  };
  told.on_rank_address = [](Report report) { FLOW_CHECK(report.is<RankAddressReported>()); };
  told.on_order = [](const AttemptOrder&) {};
  told.on_blob_message = [](std::string_view) { return true; };
  BlobDirectory directory;
  BlobDirectory::WorkerKey worker = directory.enter(), other = directory.enter();
  directory.join(worker, "w", "127.0.0.1:1");
  told.on_inventory_delta = [&](const BlobInventoryDelta& delta) {
    directory.update(worker, delta);
    for (const BlobInfo& blob : delta.added)
      FLOW_CHECK(directory.locate(other, blob.digest) == Addresses{"127.0.0.1:1"});
    FLOW_CHECK(directory.locate(worker, sha256("")).empty());
  };
  told.on_report = [](Report report, uint64_t number) {
    FLOW_CHECK(number > 0);
    std::visit(
        [](const auto& body) {
          if constexpr (requires { body.blobs; })
            for (const auto& [digest, bytes] : body.blobs) FLOW_CHECK(sha256(bytes) == digest);
        },
        report.body);
  };
  RemoteWorker head([](std::string_view) {}, told, [](const std::string&) {});
  bool worker_takes = true, head_takes = true;
  while (rest.size() >= 2) {
    auto length =
        static_cast<size_t>(static_cast<uint8_t>(rest[0]) | static_cast<uint8_t>(rest[1]) << 8);
    std::string_view piece = rest.substr(2, length);
    rest.remove_prefix(2 + piece.size());
    worker_takes = worker_takes && (*agent)->on_message(piece);
    head_takes = head_takes && head.on_message(piece);
  }
  return 0;
}
