// What a worker fetches, tells its head of its blobs, and forgets when runs have ended.
#include <map>

#include "tests/cluster/transfer_pair.hpp"
#include "tests/cluster/worker_wire.hpp"

namespace flow::cluster {
namespace {

TEST_CASE("a worker requests blobs only after its head has announced whether they are encrypted") {
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

}  // namespace
}  // namespace flow::cluster
