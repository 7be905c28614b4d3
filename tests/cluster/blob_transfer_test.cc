// Blobs are transferred from one folder to another: complete, verified, once, or not at all.
#include <unistd.h>

#include <deque>

#include "tests/cluster/transfer_pair.hpp"
#include "transports/inproc/inproc.hpp"
#include "transports/ucx/ucx.hpp"

namespace flow::cluster {
namespace {

using Catch::Matchers::Contains;

constexpr size_t kMib = size_t{1} << 20;
const auto kNames =
    FLOW_TEST_UCX ? std::vector<std::string>{"inproc", "ucx"} : std::vector<std::string>{"inproc"};

std::unique_ptr<Transport> transport_of(const std::string& name) {
  if (name == "inproc") return make_inproc_transport();
  auto made = make_ucx_transport({}, true);
  REQUIRE(made.ok());
  return std::move(*made);
}

TransferOptions options_of(std::shared_ptr<BlobCache> store) {
  TransferOptions options;
  options.store = std::move(store);
  return options;
}

/// A head's state and a worker's folder, connected by a session.
struct Story {
  explicit Story(const std::string& name = "inproc", uint64_t bytes_max = 0,
                 BlobCache::Resolve resolve = nullptr)
      : state(BlobCache::of_state(head_folder.path, std::move(resolve))),
        transport(transport_of(name)) {
    auto opened = BlobCache::open(worker_folder.path, bytes_max);
    REQUIRE(opened.ok());
    store = std::move(*opened);
  }
  void connect(bool encrypt = false) {
    TransferOptions a = options_of(state), b = options_of(store);
    a.thread_pool = head_pool;
    b.thread_pool = worker_pool;
    if (encrypt) {
      Key one = random_key(), other = random_key();
      a.seal.emplace(one, other);
      b.seal.emplace(other, one);
      a.encrypts = [] { return true; };
    }
    pair.emplace(*transport, a, b);
  }
  BlobInfo at_head(std::string_view bytes) { return put_object(head_folder.path, bytes); }
  BlobInfo at_worker(std::string_view bytes) { return put_object(worker_folder.path, bytes); }
  Side& head() { return *pair->head; }
  Side& worker() { return *pair->worker; }
  void check_sound() {
    CHECK_FALSE(head().is_broken);
    CHECK_FALSE(worker().is_broken);
  }

  TestFolder head_folder, worker_folder;
  std::shared_ptr<BlobCache> state, store;
  std::unique_ptr<Transport> transport;
  ThreadPool* head_pool = nullptr;  // null: that of its Side
  ThreadPool* worker_pool = nullptr;
  std::optional<TransferPair> pair;
};

std::string error_of(const Status& status) { return status.ok() ? "" : status.error().message; }

TEST_CASE(
    "blobs of any size are transferred in both directions and are durable under their names") {
  std::string name = GENERATE(from_range(kNames));
  bool is_sealed = GENERATE(false, true);
  Story story(name);
  story.connect(is_sealed);
  for (size_t size : {size_t{0}, size_t{1}, size_t{65'535}, size_t{65'536}, size_t{65'537},
                      kChunkBytes - 1, kChunkBytes, kChunkBytes + 1, 7 * kChunkBytes + 3}) {
    CAPTURE(size);
    std::string bytes = random_bytes_of(size, size);
    BlobInfo down = story.at_head(bytes), up = story.at_worker(bytes + "up");
    CHECK(error_of(story.worker().fetch(down)).empty());
    CHECK(error_of(story.head().fetch(up)).empty());
    CHECK((*read_file(story.store->path_of(down.digest)) == bytes));
    CHECK((*read_file(story.state->path_of(up.digest)) == bytes + "up"));
    CHECK(::access(story.store->path_of(down.digest).c_str(), W_OK) == (::geteuid() == 0 ? 0 : -1));
  }
  TransferCounters counters = story.worker().transfer->counters();
  CHECK(counters.fetched == 9);
  CHECK(counters.failed + counters.found == 0);
  CHECK(story.head().transfer->counters().fetched == 9);
  story.check_sound();
}

/// A transfer without a peer, which seals once `is_notified` is set.
struct Alone final : Link {
  Alone() : store(*BlobCache::open(folder.path, 0)) {
    TransferOptions options = options_of(store);
    options.thread_pool = &thread_pool;
    options.link = std::shared_ptr<Link>(std::shared_ptr<void>(), this);
    options.send = [this](std::string_view bytes) {
      std::lock_guard lock(mutex);
      blob_protocol::Message& message = said.emplace_back();
      CHECK(message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
      came.notify_all();
    };
    options.peer = "node `other`";
    options.seal.emplace(random_key(), random_key());
    options.encrypts = [this] { return is_notified.load(); };
    transfer.emplace(options);
  }
  ~Alone() override { transfer.reset(); }
  blob_protocol::Message says(size_t number) {
    std::unique_lock lock(mutex);
    bool has_said =
        came.wait_for(lock, std::chrono::seconds(60), [&] { return said.size() > number; });
    REQUIRE(has_said);
    return said[number];
  }
  bool hears(const blob_protocol::Message& message) {
    return transfer->on_message(message.SerializeAsString());
  }
  void send(std::string) override {}
  size_t unsent_bytes() const override { return 0; }
  void post_receive(uint64_t, Region, std::function<void(Result<size_t>)>) override { puts++; }
  void cancel_receive(uint64_t) override {}
  void put(uint64_t, Region, std::function<void(Status)> done) override {
    std::lock_guard lock(mutex);
    puts++;
    dones.push_back(std::move(done));
    came.notify_all();
  }
  /// Waits for `count` messages, and for one that must not arrive.
  bool puts_only(int count) {
    std::unique_lock lock(mutex);
    auto reaches = [&](int least) { return [this, least] { return puts >= least; }; };
    return came.wait_for(lock, std::chrono::seconds(60), reaches(count)) &&
           !came.wait_for(lock, std::chrono::milliseconds(200), reaches(count + 1));
  }
  void finish_put() {
    std::function<void(Status)> done;
    {
      std::lock_guard lock(mutex);
      done = std::move(dones.front());
      dones.pop_front();
    }
    done({});
  }
  void close(int64_t) override {}
  std::string description() const override { return "nowhere"; }

  TestFolder folder;
  std::shared_ptr<BlobCache> store;
  std::atomic<bool> is_notified{true};
  std::atomic<int> puts{0};
  std::mutex mutex;
  std::condition_variable came;
  std::vector<blob_protocol::Message> said;
  std::deque<std::function<void(Status)>> dones;
  ThreadPool thread_pool{transfer_threads(1)};
  std::optional<BlobTransfer> transfer;
};

TEST_CASE("a downloader that must encrypt rejects unsealed offers with a message") {
  Alone alone;
  BlobInfo blob = blob_of("weights");
  std::promise<Status> done;
  alone.transfer->fetch(blob, [&](const Status& status) { done.set_value(status); });
  blob_protocol::Message want = alone.says(0);
  CHECK(want.request().sealed());
  blob_protocol::Message offer;
  offer.mutable_offer()->set_id(want.request().id());
  offer.mutable_offer()->set_size(7);
  CHECK(alone.hears(offer));
  CHECK_THAT(error_of(done.get_future().get()),
             Contains("node `other` offers the blob") && Contains("without encryption"));
  CHECK_FALSE(alone.says(1).done().received());
  CHECK(alone.puts == 0);
}

TEST_CASE(
    "an uploader that must encrypt sends nothing unsealed, whatever was requested or offered "
    "before") {
  Alone alone;
  BlobInfo blob = put_object(alone.folder.path, "weights");
  blob_protocol::Message want, ready;
  want.mutable_request()->set_id(1);
  want.mutable_request()->set_digest(std::string(blob.digest.view()));
  alone.is_notified = false;
  CHECK(alone.hears(want));
  CHECK_FALSE(alone.says(0).offer().sealed());
  alone.is_notified = true;
  ready.mutable_ready()->set_id(1);
  ready.mutable_ready()->set_tag(9);
  ready.mutable_ready()->set_size(7);
  CHECK(alone.hears(ready));
  CHECK_THAT(alone.says(1).missing().why(), Contains("encryption"));
  CHECK(alone.puts == 0);
  want.mutable_request()->set_id(2);
  CHECK(alone.hears(want));
  CHECK(alone.says(2).offer().sealed());
}

TEST_CASE("requested blobs are read only a few chunks ahead of the peer's progress") {
  Alone alone;
  alone.is_notified = false;
  size_t chunk = GENERATE(as<size_t>{}, kChunkBytes, kChunkBytes / 4, 700'000);
  int ahead = static_cast<int>(3 * kChunkBytes / chunk), asked = ahead + 4;
  BlobInfo blob =
      put_object(alone.folder.path, random_bytes_of(chunk * static_cast<size_t>(asked)));
  blob_protocol::Message want;
  want.mutable_request()->set_id(1);
  want.mutable_request()->set_digest(std::string(blob.digest.view()));
  CHECK(alone.hears(want));
  CHECK(alone.says(0).offer().size() == *blob.size);
  for (int i = 0; i < asked; i++) {
    blob_protocol::Message ready;
    ready.mutable_ready()->set_id(1);
    ready.mutable_ready()->set_tag(9 + static_cast<uint64_t>(i));
    ready.mutable_ready()->set_offset(chunk * static_cast<size_t>(i));
    ready.mutable_ready()->set_size(static_cast<uint32_t>(chunk));
    CHECK(alone.hears(ready));
  }
  CHECK(alone.puts_only(ahead));
  alone.finish_put();
  CHECK(alone.puts_only(ahead + 1));
  for (int i = 0; i < 3; i++) alone.finish_put();
  CHECK(alone.puts_only(asked));
}

TEST_CASE("the number of a peer's requests is bounded, and excess ones are ignored") {
  constexpr int kMost = 64;
  Alone alone;
  alone.is_notified = false;
  BlobInfo blob = put_object(alone.folder.path, random_bytes_of(kMost * kMib));
  auto wants = [&](uint64_t id) {
    blob_protocol::Message want;
    want.mutable_request()->set_id(id);
    want.mutable_request()->set_digest(std::string(blob.digest.view()));
    CHECK(alone.hears(want));
    CHECK(alone.says(id - 1).offer().id() == id);
  };
  auto asks = [&](uint64_t id) {
    blob_protocol::Message ready;
    ready.mutable_ready()->set_id(id);
    ready.mutable_ready()->set_size(static_cast<uint32_t>(kMib));
    return alone.hears(ready);
  };
  wants(1);
  for (int i = 0; i < kMost; i++) CHECK(asks(1));
  CHECK(alone.puts_only(3));
  blob_protocol::Message done;
  done.mutable_done()->set_id(1);
  CHECK(alone.hears(done));
  wants(2);
  for (int i = 0; i < kMost - 3; i++) CHECK(asks(2));
  CHECK(alone.puts_only(3));
  CHECK_FALSE(asks(2));
}

TEST_CASE("100 MiB are transferred while messages pass between the chunks") {
  std::string name = GENERATE(from_range(kNames));
  Story story(name);
  BlobInfo large = story.at_head(random_bytes_of(100 * kMib));
  story.connect();
  story.head().ping_after = 4;  // the request, and three chunks
  CHECK(error_of(story.worker().fetch(large)).empty());
  CHECK(story.worker().ping_came_at < 60 * kMib);
  CHECK(story.worker().transfer->counters().bytes_in == 100 * kMib);
  story.check_sound();
}

TEST_CASE(
    "many concurrent blobs are transferred, and a blob with many requests is transferred once") {
  std::string name = GENERATE(from_range(kNames));
  Story story(name);
  constexpr int kCount = 200;
  std::vector<BlobInfo> all;
  uint64_t bytes = 0;
  for (int i = 0; i < kCount; i++) {
    size_t size = static_cast<size_t>(i) * 1'111;
    all.push_back(story.at_head(random_bytes_of(size, static_cast<uint64_t>(i) + 1)));
    bytes += size;
  }
  story.connect();
  std::vector<std::future<Status>> dones;
  for (int times = 0; times < 3; times++)
    for (const BlobInfo& each : all) dones.push_back(story.worker().begin_fetch(each));
  for (auto& done : dones) CHECK(error_of(done.get()).empty());
  for (const BlobInfo& each : all) CHECK(story.store->has(each));
  TransferCounters counters = story.worker().transfer->counters();
  CHECK(counters.fetched == kCount);
  CHECK(counters.bytes_in == bytes);
  CHECK(error_of(story.worker().fetch(all[7])).empty());
  CHECK(story.worker().transfer->counters().bytes_in == bytes);
  story.check_sound();
}

TEST_CASE("a missing blob is reported, and the session continues") {
  Story story;
  story.connect();
  BlobInfo blob = blob_of("nowhere");
  CHECK_THAT(error_of(story.worker().fetch(blob)),
             Contains("the peer cannot send the blob " + blob.digest.hex()) &&
                 Contains("collected or lost"));
  CHECK(error_of(story.worker().fetch(story.at_head("here"))).empty());
  CHECK(story.worker().transfer->counters().failed == 1);
  story.check_sound();
}

TEST_CASE("a blob is read in place or from an alternative file, and a change there is reported") {
  std::string good = random_bytes_of(3 * kMib), other = random_bytes_of(3 * kMib, 2);
  TestFolder inputs;
  std::string path = inputs / "input.bin";
  Digest in_place = sha256(good), row = sha256("a row");
  Story story("inproc", 0, [&](const Digest& digest) -> std::optional<Result<BlobReader>> {
    if (digest == in_place) return BlobReader::of_file(path, true);
    if (digest == row) return BlobReader::of_bytes("a row");
    return std::nullopt;
  });
  story.connect();
  CHECK(error_of(story.worker().fetch(blob_of("a row"))).empty());
  for (const std::string& now : {other, good + "longer"}) {
    REQUIRE(write_file_atomic(path, now).ok());
    CHECK_THAT(error_of(story.worker().fetch(blob_of(good))),
               Contains("input changed: `" + path + "`") && Contains("start the run again"));
  }
  CHECK_FALSE(story.store->has(blob_of(good)));
  REQUIRE(write_file_atomic(path, good).ok());
  CHECK(error_of(story.worker().fetch(blob_of(good))).empty());
  std::filesystem::remove(path);
  CHECK(error_of(story.worker().fetch(blob_of(good))).empty());  // it exists here
  story.check_sound();
}

bool is_ready(const std::future<Status>& fetch) {
  return fetch.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

// A pool without threads, so that its jobs wait until the test runs them.
TEST_CASE("a transfer fails while too many jobs of transfers wait, and later ones succeed") {
  bool is_upload = GENERATE(false, true);
  ThreadPool full({.name = "test", .threads_max = 0, .queue_max = 2});
  std::vector<BlobInfo> blobs;
  std::vector<std::future<Status>> fetches;
  {
    Story story;
    (is_upload ? story.head_pool : story.worker_pool) = &full;
    story.connect();
    constexpr int kBlobs = 100;  // more than may be under way at a time
    for (int i = 0; i < kBlobs; i++) blobs.push_back(story.at_head(random_bytes_of(10, i + 1)));
    for (const BlobInfo& blob : blobs) fetches.push_back(story.worker().begin_fetch(blob));
    // Several threads send the requests of the downloads, so any two may be those that wait.
    std::vector<std::future<Status>*> waiting;
    for (auto& fetch : fetches) waiting.push_back(&fetch);
    const std::string overload = "this machine has too many transfers at a time: 2 jobs";
    while (waiting.size() > 2) {
      std::erase_if(waiting, [&](std::future<Status>* fetch) {
        if (!is_ready(*fetch)) return false;
        CHECK_THAT(error_of(fetch->get()), Contains(overload));
        return true;
      });
      std::this_thread::yield();
    }
    for (std::future<Status>* fetch : waiting) {
      while (!is_ready(*fetch)) {
        full.run_waiting();
        std::this_thread::yield();
      }
      CHECK(error_of(fetch->get()).empty());
    }
    auto again = story.worker().begin_fetch(blobs.back());
    while (!is_ready(again)) {
      full.run_waiting();
      std::this_thread::yield();
    }
    CHECK(error_of(again.get()).empty());
    story.check_sound();
  }
}

TEST_CASE("a damaged blob is rejected by the receiver and removed by the sender") {
  Story story;
  BlobInfo blob = story.at_worker(random_bytes_of(2 * kMib));
  std::string path = story.store->path_of(blob.digest);
  std::filesystem::remove(path);
  REQUIRE(write_file_atomic(path, random_bytes_of(2 * kMib, 2), 0400).ok());
  story.connect();
  CHECK_THAT(error_of(story.head().fetch(blob)), Contains("is damaged there, or was changed"));
  CHECK_FALSE(story.state->has(blob));
  CHECK(temporaries_in(story.head_folder.path) == 0);
  while (::access(path.c_str(), F_OK) == 0) ::usleep(1000);
  CHECK_THAT(error_of(story.head().fetch(blob)), Contains("collected or lost"));
  story.check_sound();
}

TEST_CASE("a blob that is damaged here is downloaded again") {
  Story story;
  std::string bytes = random_bytes_of(kMib);
  BlobInfo blob = story.at_head(bytes);
  story.at_worker(bytes);
  std::string path = story.store->path_of(blob.digest);
  std::filesystem::remove(path);
  REQUIRE(write_file_atomic(path, bytes.substr(0, kMib / 2), 0400).ok());
  story.connect();
  CHECK(error_of(story.worker().fetch(blob)).empty());
  CHECK((*read_file(path) == bytes));
}

TEST_CASE("a blob without space is rejected, and pinned blobs are kept") {
  Story story("inproc", 4 * kMib);
  BlobInfo a = story.at_head(random_bytes_of(2 * kMib, 1)),
           b = story.at_head(random_bytes_of(2 * kMib, 2)),
           c = story.at_head(random_bytes_of(2 * kMib, 3)),
           large = story.at_head(random_bytes_of(5 * kMib));
  story.connect();
  CHECK_THAT(error_of(story.worker().fetch(large)), Contains("4194304 (--content-max)"));
  story.store->pin("attempt 1", {a.digest});
  for (const BlobInfo& each : {a, b, c}) CHECK(error_of(story.worker().fetch(each)).empty());
  CHECK(story.store->has(a));
  CHECK_FALSE(story.store->has(b));
  CHECK(story.store->has(c));
  story.store->pin("attempt 2", {c.digest});
  CHECK_THAT(error_of(story.worker().fetch(b)), Contains("4194304 belong to running attempts"));
  story.store->unpin("attempt 1");
  CHECK(error_of(story.worker().fetch(b)).empty());
  CHECK_FALSE(story.store->has(a));
  CHECK(temporaries_in(story.worker_folder.path) == 0);
  story.check_sound();
}

TEST_CASE("the end of a session fails every download, and the next session downloads again") {
  std::string name = GENERATE(from_range(kNames));
  Story story(name);
  std::string bytes = random_bytes_of(60 * kMib);
  BlobInfo large = story.at_head(bytes);
  std::vector<BlobInfo> all;
  for (uint64_t i = 0; i < 40; i++) all.push_back(story.at_head(random_bytes_of(kMib, i)));
  story.connect();
  std::vector<std::future<Status>> dones;
  dones.push_back(story.worker().begin_fetch(large));
  for (const BlobInfo& each : all) dones.push_back(story.worker().begin_fetch(each));
  while (story.worker().transfer->counters().bytes_in < 3 * kMib) ::usleep(1000);
  story.head().link->close(0);
  int failed = 0;
  for (auto& done : dones) failed += !done.get().ok();
  CHECK(failed > 0);
  CHECK_THAT(error_of(story.worker().fetch(large)), !Catch::Matchers::Equals(""));
  story.pair.reset();
  story.transport = transport_of(name);  // the old session has released everything
  CHECK(temporaries_in(story.worker_folder.path) == 0);
  story.connect();
  CHECK(error_of(story.worker().fetch(large)).empty());
  for (const BlobInfo& each : all) CHECK(error_of(story.worker().fetch(each)).empty());
  CHECK((*read_file(story.store->path_of(large.digest)) == bytes));
}

/// A head that redirects to other workers, and a worker that follows.
struct Elsewhere : Story {
  using Story::Story;
  void connect() {
    TransferOptions a = options_of(state), b = options_of(store);
    a.locate = [this](const Digest&) {
      located++;
      return named;
    };
    b.follow_redirect = [this](const BlobInfo& blob, const Addresses& from, OnFetched done) {
      asked.set_value({blob, from, std::move(done)});
    };
    b.on_transferred = [this](bool is_out, const BlobInfo& blob) {
      if (!is_out) moved += *blob.size;
    };
    pair.emplace(*transport, a, b);
  }
  struct Asked {
    BlobInfo blob;
    Addresses from;
    OnFetched done;
  };
  Addresses named{"10.0.0.1:1", "10.0.0.2:2"};
  std::promise<Asked> asked;
  std::atomic<int> located{0};
  std::atomic<uint64_t> moved{0};
};

TEST_CASE("a redirected download is done once for all requests, and not from the head") {
  Elsewhere story;
  std::string bytes = random_bytes_of(3 * kMib);
  BlobInfo blob = story.at_head(bytes);
  story.connect();
  auto first = story.worker().begin_fetch(blob), second = story.worker().begin_fetch(blob);
  Elsewhere::Asked asked = story.asked.get_future().get();
  CHECK(asked.blob.digest == blob.digest);
  CHECK(asked.from == story.named);
  story.at_worker(bytes);
  asked.done({});
  CHECK(first.get().ok());
  CHECK(second.get().ok());
  CHECK(story.located == 1);
  CHECK(story.moved == 0);
  CHECK(story.worker().transfer->counters().bytes_in == 0);
  story.check_sound();
}

TEST_CASE("if redirected workers do not deliver, the blob comes from the head") {
  Elsewhere story;
  BlobInfo blob = story.at_head(random_bytes_of(3 * kMib));
  story.connect();
  auto fetch = story.worker().begin_fetch(blob);
  story.asked.get_future().get().done(environment_error("gone"));
  CHECK(error_of(fetch.get()).empty());
  CHECK(story.store->has(blob));
  CHECK(story.located == 1);
  CHECK(story.moved == 3 * kMib);
  story.check_sound();
}

TEST_CASE("a redirected download ends with its session") {
  Elsewhere story;
  BlobInfo blob = story.at_head(random_bytes_of(kMib));
  story.connect();
  auto fetch = story.worker().begin_fetch(blob);
  Elsewhere::Asked asked = story.asked.get_future().get();
  story.worker().transfer->end(environment_error("cut"));
  CHECK(error_of(fetch.get()) == "cut");
  asked.done({});  // no request waits for it
}

TEST_CASE(
    "without other workers, or if more than the blob was requested, the blob comes from the peer") {
  Elsewhere story;
  story.named.clear();
  BlobInfo blob = story.at_head(random_bytes_of(kMib)), up = story.at_worker("up");
  story.connect();
  CHECK(story.worker().fetch(blob).ok());
  CHECK(story.head().fetch(up).ok());
  CHECK(story.located == 1);
  blob_protocol::Message named;
  named.mutable_redirect()->set_id(1);
  CHECK_FALSE(
      story.worker().transfer->on_message(named.SerializeAsString()));  // without alternatives
  named.mutable_redirect()->add_addresses("10.0.0.1:1");
  CHECK(story.worker().transfer->on_message(named.SerializeAsString()));  // it has ended
  named.mutable_redirect()->set_id(2);
  CHECK_FALSE(story.worker().transfer->on_message(named.SerializeAsString()));
  named.mutable_redirect()->set_id(1);
  named.mutable_redirect()->add_addresses(std::string(kAddressBytesMax + 1, 'a'));
  CHECK_FALSE(story.worker().transfer->on_message(named.SerializeAsString()));
}

}  // namespace
}  // namespace flow::cluster
