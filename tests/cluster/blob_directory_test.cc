// Which workers a request for a blob is directed to, and what is known about locations of blobs.
#include <catch2/catch.hpp>

#include "engine/cluster/transfer/blob_directory.hpp"

namespace flow::cluster {
namespace {

BlobInfo blob_of(const std::string& name, uint64_t size = 1 << 20) { return {sha256(name), size}; }

struct Story {
  BlobDirectory directory;
  std::map<std::string, BlobDirectory::WorkerKey> workers;

  void join(const std::string& name) {
    workers[name] = directory.enter();
    directory.join(workers[name], name, name + ":1");
  }
  void has(const std::string& name, const std::vector<BlobInfo>& here,
           const std::vector<Digest>& gone = {}) {
    directory.update(workers[name], {here, gone, {}});
  }
  Addresses locate(const std::string& name, const std::string& blob) {
    return directory.locate(workers[name], sha256(blob));
  }
};

TEST_CASE("a request is directed to workers that have the blob, and to no others") {
  Story story;
  for (const char* name : {"a", "b", "c"}) story.join(name);
  CHECK(story.locate("a", "x").empty());
  story.has("a", {blob_of("x")});
  CHECK(story.locate("a", "x").empty());  // it asks, so it no longer has the blob
  CHECK(story.locate("b", "x") == Addresses{"a:1"});
  story.has("b", {blob_of("x")});
  Addresses both = story.locate("c", "x");
  CHECK(std::set<std::string>(both.begin(), both.end()) == std::set<std::string>{"a:1", "b:1"});
  story.has("a", {}, {sha256("x")});
  CHECK(story.locate("c", "x") == Addresses{"b:1"});
  story.directory.leave(story.workers["b"]);
  CHECK(story.locate("c", "x").empty());
  story.directory.update(story.workers["b"],
                         {{blob_of("x")}, {}, {}});  // this report crossed the end of the request
  CHECK(story.locate("c", "x").empty());
  BlobDirectory::WorkerKey silent = story.directory.enter();
  story.directory.join(silent, "silent", "");
  story.directory.update(silent, {{blob_of("x")}, {}, {}});
  CHECK(story.locate("c", "x").empty());
}

TEST_CASE(
    "a blob that many request spreads from more and more workers, a few downloads from each") {
  Story story;
  story.join("maker");
  story.has("maker", {blob_of("x"), blob_of("y")});
  std::vector<std::string> names;
  for (int i = 0; i < 20; i++) names.push_back("w" + std::to_string(i));
  for (const std::string& name : names) story.join(name);
  size_t from_head = 0;
  for (const std::string& name : names) from_head += story.locate(name, "x").empty();
  CHECK(from_head == names.size() - kDownloadsPerSourceMax);
  CHECK_FALSE(story.locate("w0", "y").empty());  // a worker already downloads there
  CHECK(story.locate("w9", "y").empty());
  for (size_t i = 0; i < kDownloadsPerSourceMax; i++) story.has(names[i], {blob_of("x")});
  std::map<std::string, size_t> asked;
  for (size_t i = kDownloadsPerSourceMax; i < names.size(); i++) {
    Addresses named = story.locate(names[i], "x");
    REQUIRE_FALSE(named.empty());
    CHECK(named.size() <= kRedirectSourcesMax);
    asked[named.front()]++;
  }
  CHECK(asked.size() == kDownloadsPerSourceMax + 1);
  for (const auto& [address, count] : asked) CHECK(count <= kDownloadsPerSourceMax);
}

TEST_CASE("a worker that leaves or exceeds its request limit does not block others") {
  Story story;
  story.join("maker");
  std::vector<BlobInfo> many;
  for (size_t i = 0; i <= kDownloadsMax; i++) many.push_back(blob_of(std::to_string(i)));
  story.has("maker", many);
  for (size_t i = 0; i < kDownloadsPerSourceMax; i++) {
    story.join("w" + std::to_string(i));
    CHECK_FALSE(story.locate("w" + std::to_string(i), "0").empty());
  }
  story.join("late");
  CHECK(story.locate("late", "0").empty());
  story.directory.leave(story.workers["w0"]);
  CHECK_FALSE(story.locate("late", "0").empty());
  story.directory.leave(story.workers["maker"]);
  story.join("maker");
  story.has("maker", many);
  for (const char* name : {"w1", "w2", "w3", "late"}) CHECK_FALSE(story.locate(name, "0").empty());
  story.join("last");
  story.join("other");
  CHECK(story.locate("last", "0").empty());
  std::vector<BlobInfo> others;
  for (size_t i = 0; i < kDownloadsMax; i++) others.push_back(blob_of("other" + std::to_string(i)));
  story.has("other", others);
  for (size_t i = 0; i < kDownloadsMax; i++)
    CHECK_FALSE(story.locate("w1", "other" + std::to_string(i)).empty());
  CHECK(story.locate("last", "0") == Addresses{"maker:1"});  // w1's download failed
}

TEST_CASE("the size of a task's inputs per worker is known, within a bound") {
  Story story;
  for (const char* name : {"a", "b"}) story.join(name);
  story.has("a", {blob_of("x", 300'000), blob_of("y", 500'000)});
  story.has("b", {blob_of("y", 500'000)});
  BlobDirectory::ByteCounts bytes =
      story.directory.bytes_of({blob_of("x"), blob_of("y"), blob_of("unknown")});
  CHECK(bytes.all == 800'000);
  CHECK(bytes.at == std::vector<std::pair<std::string, uint64_t>>{{"a", 800'000}, {"b", 500'000}});

  for (size_t round = 0; round < kHoldingsMax / kInventoryDeltaMax; round++) {
    std::vector<BlobInfo> here;
    for (size_t i = 0; i < kInventoryDeltaMax; i++)
      here.push_back(blob_of(std::to_string(round) + "/" + std::to_string(i)));
    story.has("b", here);
    CHECK(story.locate("b", "x") == Addresses{"a:1"});  // requested, therefore still known
  }
  CHECK(story.directory.bytes_of({blob_of("y")}).all == 0);
  CHECK(story.directory.bytes_of({blob_of("x")}).all == 300'000);
}

TEST_CASE("transfer totals of a worker are known while it is connected") {
  Story story;
  story.join("a");
  Traffic traffic{{1, 2}, {3, 4}, {5, 6}};
  story.directory.update(story.workers["a"], {{}, {}, traffic});
  CHECK(story.directory.traffic_of("a") == traffic);
  CHECK(story.directory.traffic_of("b") == Traffic{});
  story.directory.leave(story.workers["a"]);
  CHECK(story.directory.traffic_of("a") == Traffic{});
}

}  // namespace
}  // namespace flow::cluster
