// Between a head and a worker: whatever comes is refused or taken, an order is written again as it
// was read, and content is what its digest says.
#include <google/protobuf/stubs/logging.h>

#include "engine/cluster/nodes/agent.hpp"

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
      nodes::Order out, again;
      put_order(order, commit, out);
      AttemptOrder back;
      std::string bytes = out.SerializeAsString();
      FLOW_CHECK(get_order(out, back));
      put_order(back, commit, again);
      FLOW_CHECK(again.SerializeAsString() == bytes);
    }
  }
  void release(uint64_t) override {}
  void stop(const core::AttemptId&, bool) override {}
  void ack_saved(const core::AttemptId&, const std::string&, bool) override {}
  void took_logs(size_t) override {}
};

}  // namespace

// The input is pieces, each behind its length in two bytes: to the worker, and to the head.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  auto agent =
      Agent::start([](std::string_view) {}, {},
                   [](Worker::OnReport) {
                     return Result<std::unique_ptr<Worker>>(std::unique_ptr<Worker>(new Checker));
                   });
  RemoteWorker head([](std::string_view) {}, [](core::HostInfo) {},
                    [](std::vector<Report> reports) {
                      for (const Report& report : reports)
                        for (const auto& [digest, bytes] : report.blobs)
                          FLOW_CHECK(sha256(bytes) == digest);
                    });
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
