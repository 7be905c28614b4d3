// Blobs between workers: they come from the first named worker that delivers, and a failing worker
// is not waited for.
#include "engine/cluster/worker/peer_fetcher.hpp"
#include "tests/cluster/pair.hpp"
#include "tests/cluster/transfer_pair.hpp"
#include "tests/transports/faulty.hpp"
#include "transports/inproc/inproc.hpp"
#include "transports/ucx/ucx.hpp"

namespace flow::cluster {
namespace {

using Catch::Matchers::Contains;

std::unique_ptr<Transport> transport_of(const std::string& name) {
  if (name == "inproc") return make_inproc_transport();
  auto made = make_ucx_transport({}, true);
  REQUIRE(made.ok());
  return std::move(*made);
}

/// The process of a worker, as others see it.
struct TestPeer {
  explicit TestPeer(Transport& transport, PeerFetcherOptions options = {},
                    std::shared_ptr<const Secret> secret = secret_of(7))
      : sessions(std::make_unique<Sessions>(transport, options_of(Role::worker, secret), nullptr)) {
    auto opened = BlobCache::open(folder.path, 0);
    REQUIRE(opened.ok());
    options.store = store = *opened;
    options.on_transferred = [this](bool is_out, const BlobInfo& blob) {
      (is_out ? bytes_out : bytes_in) += *blob.size;
    };
    fetcher = std::make_shared<PeerBlobFetcher>(*sessions, thread_pool, options);
    listening = fetcher->listen("127.0.0.1:0");
  }
  ~TestPeer() {
    fetcher->end();
    sessions.reset();
  }
  std::string fetch(const BlobInfo& blob, Addresses from) {
    std::promise<Status> ended;
    fetcher->fetch(blob, std::move(from), [&](Status status) { ended.set_value(status); });
    Status status = ended.get_future().get();
    return status.ok() ? "" : status.error().message;
  }
  bool has(const BlobInfo& blob) const { return store->has(blob); }

  TestFolder folder;
  std::shared_ptr<BlobCache> store;
  ThreadPool thread_pool{transfer_threads(2)};
  std::unique_ptr<Sessions> sessions;
  std::shared_ptr<PeerBlobFetcher> fetcher;
  Status listening;
  std::atomic<uint64_t> bytes_in{0}, bytes_out{0};
};

/// Offers every requested blob and never sends it.
struct StallingPeer {
  class User final : public SessionUser {
   public:
    explicit User(std::shared_ptr<SessionLink> link) : link_(std::move(link)) {}
    void on_open(const SessionPeer&) override {}
    void on_message(std::string bytes) override {
      blob_protocol::Message said, offer;
      if (!said.ParseFromString(bytes) || !said.has_request()) return;
      offer.mutable_offer()->set_id(said.request().id());
      offer.mutable_offer()->set_size(1 << 20);
      (void)link_->send(offer.SerializeAsString());
    }
    void on_suspect(const std::string&) override {}
    void on_recovered() override {}
    void on_end(EndKind, const Error&) override { link_.reset(); }

   private:
    std::shared_ptr<SessionLink> link_;
  };
  explicit StallingPeer(Transport& transport)
      : sessions(transport, options_of(Role::worker), nullptr) {
    auto opened =
        sessions.listen("127.0.0.1:0", [](const SessionPeer&, std::shared_ptr<SessionLink> link) {
          return std::make_shared<User>(std::move(link));
        });
    REQUIRE(opened.ok());
    listener = std::move(*opened);
  }
  Sessions sessions;
  std::unique_ptr<Listener> listener;
};

void until(const std::function<bool()>& holds) {
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!holds()) {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

const auto kNames =
    FLOW_TEST_UCX ? std::vector<std::string>{"inproc", "ucx"} : std::vector<std::string>{"inproc"};

TEST_CASE("a blob comes from a peer in the requested amount, and both sides count it") {
  auto transport = transport_of(GENERATE(from_range(kNames)));
  TestPeer holder(*transport), asker(*transport);
  REQUIRE(holder.listening.ok());
  std::vector<BlobInfo> blobs;
  uint64_t bytes = 0;
  for (size_t i = 0; i < 40; i++) {
    std::string made = random_bytes_of((i + 1) * 50'000, i);
    blobs.push_back(put_object(holder.folder.path, made));
    bytes += made.size();
  }
  std::vector<std::future<Status>> fetches;
  for (const BlobInfo& blob : blobs) {
    auto ended = std::make_shared<std::promise<Status>>();
    fetches.push_back(ended->get_future());
    asker.fetcher->fetch(blob, {holder.fetcher->address()},
                         [ended](Status status) { ended->set_value(status); });
  }
  for (auto& fetch : fetches) CHECK(fetch.get().ok());
  for (const BlobInfo& blob : blobs) CHECK(asker.has(blob));
  CHECK(asker.bytes_in == bytes);
  until([&] { return holder.bytes_out >= bytes; });  // reported a moment later
  CHECK(holder.bytes_out == bytes);
  CHECK(holder.bytes_in + asker.bytes_out == 0);
}

TEST_CASE("peers that are unreachable, or whose blob is missing or damaged, are skipped") {
  auto transport = transport_of(GENERATE(from_range(kNames)));
  TestPeer without(*transport), spoiled(*transport), holder(*transport), asker(*transport);
  std::string bytes = random_bytes_of(3 << 20);
  BlobInfo blob = put_object(holder.folder.path, bytes);
  bytes[5]++;
  std::string path = blob_path(spoiled.folder.path, blob.digest);
  REQUIRE(make_dirs(std::filesystem::path(path).parent_path().string()).ok());
  REQUIRE(write_file_atomic(path, bytes, 0400).ok());
  TestPeer gone(*transport);
  std::string nowhere = gone.fetcher->address();
  gone.fetcher->end();
  gone.sessions.reset();
  CHECK(asker.fetch(blob, {"no address", nowhere, without.fetcher->address(),
                           spoiled.fetcher->address(), holder.fetcher->address()}) == "");
  CHECK(asker.has(blob));
  until([&] { return !std::filesystem::exists(path); });  // the peer is notified of the damage
  BlobInfo other = blob_of("nobody has this");
  CHECK_THAT(asker.fetch(other, {nowhere}), Contains("a moment ago"));
  CHECK_THAT(asker.fetch(other, {without.fetcher->address()}), Contains("is not stored here"));
  CHECK_THAT(asker.fetch(other, {}), Contains("no worker is known to hold it"));
}

TEST_CASE("a peer that stalls during a transfer is skipped, and then avoided") {
  auto transport = make_inproc_transport();
  PeerFetcherOptions quick;
  quick.stall_ms = 1'000;
  TestPeer holder(*transport), asker(*transport, quick);
  StallingPeer idler(*transport);
  BlobInfo blob = put_object(holder.folder.path, random_bytes_of(1 << 20));
  BlobInfo other = put_object(holder.folder.path, random_bytes_of(1 << 20, 2));
  CHECK(asker.fetch(blob, {idler.listener->address(), holder.fetcher->address()}) == "");
  CHECK(asker.has(blob));
  CHECK_THAT(asker.fetch(other, {idler.listener->address()}), Contains("a moment ago"));
  CHECK(asker.fetch(other, {holder.fetcher->address()}) == "");
}

TEST_CASE("an unused session ends, and the next download opens another") {
  FaultyTransport transport(make_inproc_transport(), {});
  PeerFetcherOptions quick;
  quick.idle_ms = 1;
  TestPeer holder(transport), asker(transport, quick);
  uint64_t i = 0;
  until([&] {
    BlobInfo blob = put_object(holder.folder.path, random_bytes_of(1 << 10, i++));
    CHECK(asker.fetch(blob, {holder.fetcher->address()}) == "");
    return transport.links() >= 6;  // both ends of three
  });
}

TEST_CASE("a worker that ends cancels its downloads, and an unauthenticated process gets nothing") {
  auto transport = make_inproc_transport();
  TestPeer holder(*transport), asker(*transport), stranger(*transport, {}, secret_of(9));
  StallingPeer idler(*transport);
  BlobInfo blob = put_object(holder.folder.path, random_bytes_of(1 << 20));
  CHECK_THAT(stranger.fetch(blob, {holder.fetcher->address()}), Contains("secret"));
  CHECK_FALSE(stranger.has(blob));
  std::promise<Status> ended;
  asker.fetcher->fetch(blob, {idler.listener->address()},
                       [&](Status status) { ended.set_value(status); });
  asker.fetcher->end();
  CHECK_FALSE(ended.get_future().get().ok());
  CHECK_THAT(asker.fetch(blob, {holder.fetcher->address()}), Contains("this worker ends"));
}

TEST_CASE("without a secret a worker serves only its own machine") {
  auto transport = make_inproc_transport();
  TestPeer open(*transport, {}, nullptr);
  CHECK(open.listening.ok());
  Status wide = open.fetcher->listen("10.0.0.7:0");
  REQUIRE_FALSE(wide.ok());
  CHECK_THAT(wide.error().message, Contains("without a secret"));
}

}  // namespace
}  // namespace flow::cluster
