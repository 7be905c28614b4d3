// Checkpoints of a worker: at their paths while a rank needs them, then ordinary blobs; of a gang's
// checkpoints that were saved elsewhere, the newest.
#include "engine/cluster/worker/checkpoint_replicas.hpp"
#include "tests/cluster/transfer_pair.hpp"

namespace flow::cluster {
namespace {

namespace fs = std::filesystem;

RankId rank_of(uint32_t attempt, uint32_t rank = 0) { return {{"run", 3, attempt, 1}, rank}; }

struct Worker1 {
  Worker1() : store(*BlobCache::open(folder.path, 0)), placed(store) {}
  /// Saves a file like an executor.
  PlacedCheckpoints::PlacedCheckpoint save(const std::string& name, const std::string& bytes) {
    std::string file = "checkpoints/run/task/" + name;
    REQUIRE(make_dirs(folder / "checkpoints/run/task").ok());
    REQUIRE(write_file_atomic(folder / file, bytes, 0400).ok());
    return {sha256(bytes), file};
  }
  bool is_at_place(const std::string& name) const {
    return fs::exists(folder / ("checkpoints/run/task/" + name));
  }
  bool has(const std::string& bytes) const { return store->has(blob_of(bytes)); }

  TestFolder folder;
  std::shared_ptr<BlobCache> store;
  PlacedCheckpoints placed;
};

TEST_CASE(
    "a rank's checkpoint is a blob after the rank has ended, and is released when no attempt needs "
    "it") {
  Worker1 worker;
  CHECK_FALSE(worker.placed.place(rank_of(1), worker.save("a-1", "one")));
  CHECK(worker.placed.place(rank_of(1), worker.save("a-2", "two")) == sha256("one"));
  CHECK(worker.placed.has(sha256("two")));
  auto left = worker.placed.end_rank(rank_of(1), false);
  CHECK(left.kept == sha256("two"));
  CHECK_FALSE(left.digest);
  CHECK_FALSE(worker.is_at_place("a-2"));
  CHECK(worker.has("two"));

  worker.placed.place(rank_of(2), worker.save("b-3", "three"));
  auto gone = worker.placed.end_rank(rank_of(2), true);
  CHECK(gone.digest == sha256("three"));
  CHECK(fs::exists(gone.path));
  CHECK_FALSE(worker.is_at_place("b-3"));
  CHECK_FALSE(worker.has("three"));
  CHECK(worker.placed.end_rank(rank_of(2), true).path.empty());
}

TEST_CASE("a checkpoint that another rank uses is kept when the first rank ends") {
  Worker1 worker;
  auto one = worker.save("a-1", "one");
  worker.placed.place(rank_of(1), one);
  worker.placed.place(rank_of(2), one);  // it began before the end of the first was acknowledged
  CHECK(worker.placed.end_rank(rank_of(1), false).path.empty());
  CHECK(worker.is_at_place("a-1"));
  CHECK_FALSE(worker.placed.place(rank_of(2, 1), one));
  CHECK_FALSE(worker.placed.place(rank_of(2, 1), worker.save("b-2", "two")));
  CHECK(worker.placed.end_rank(rank_of(2), true).digest == sha256("one"));
  CHECK_FALSE(worker.is_at_place("a-1"));
  CHECK(worker.is_at_place("b-2"));
}

TEST_CASE("a damaged checkpoint is detected when it is used") {
  Worker1 worker;
  auto one = worker.save("a-1", "one");
  fs::permissions(worker.folder / one.file, fs::perms::owner_all);
  REQUIRE(write_file_atomic(worker.folder / one.file, "eno", 0400).ok());
  worker.placed.place(rank_of(1), one);
  worker.placed.end_rank(rank_of(1), false);
  CHECK_FALSE(worker.has("one"));
  worker.placed.place(rank_of(2), {sha256("lost"), "checkpoints/run/task/lost"});
  CHECK(worker.placed.end_rank(rank_of(2), false).digest == sha256("lost"));
}

TEST_CASE(
    "the newest checkpoint of a gang is fetched, one at a time, and older ones are released") {
  CheckpointReplicas replicas;
  core::AttemptId of{"run", 1, 1, 1}, other{"run", 2, 1, 1};
  Digest one = sha256("1"), two = sha256("2"), three = sha256("3");
  CHECK(replicas.should_fetch(of, one));
  CHECK(replicas.should_fetch(other, one));
  CHECK_FALSE(replicas.should_fetch(of, two));
  CHECK_FALSE(replicas.should_fetch(of, three));  // instead of the one that is no longer needed
  auto next = replicas.on_fetched(of, one, true);
  CHECK(next.fetch == three);
  CHECK(next.evict.empty());
  next = replicas.on_fetched(of, three, true);
  CHECK_FALSE(next.fetch);
  CHECK(next.evict == std::vector<Digest>{one});

  CHECK(replicas.should_fetch(of, two));
  next = replicas.on_fetched(of, two, false);  // the existing one is kept
  CHECK((!next.fetch && next.evict.empty()));
  CHECK(replicas.should_fetch(of, three));  // saved again unchanged
  CHECK(replicas.on_fetched(of, three, true).evict.empty());
  of.attempt = 2;
  CHECK(replicas.drop(of) == std::vector<Digest>{three});
  CHECK(replicas.drop(of).empty());

  CHECK(replicas.keep(of, one).empty());  // an attempt left it here
  CHECK(replicas.keep(of, one).empty());
  CHECK(replicas.keep(of, two) == std::vector<Digest>{one});
  CHECK(replicas.drop(of) == std::vector<Digest>{two});

  CHECK(replicas.drop(other).empty());  // still being downloaded
  CHECK(replicas.on_fetched(other, one, true).evict == std::vector<Digest>{one});
}

TEST_CASE("the records of ended gangs are bounded") {
  CheckpointReplicas replicas;
  for (uint32_t unit = 0; unit < 3 * CheckpointReplicas::kMax; unit++) {
    core::AttemptId of{"run", unit, 1, 1};
    REQUIRE(replicas.should_fetch(of, sha256("1")));
    replicas.on_fetched(of, sha256("1"), true);
  }
  CHECK(replicas.drop({"run", 0, 1, 1}).empty());
  CHECK(replicas.drop({"run", 3 * CheckpointReplicas::kMax - 1, 1, 1}).size() == 1);
  CHECK(replicas.should_fetch({"run-2", 0, 1, 1}, sha256("3")));
  CHECK(replicas.drop_run("run").size() > 1);
  CHECK(replicas.drop_run("run").empty());
  CHECK(replicas.drop_run("run-2").empty());  // still being downloaded
  auto next = replicas.on_fetched({"run-2", 0, 1, 1}, sha256("3"), true);
  CHECK(next.evict == std::vector<Digest>{sha256("3")});
}

}  // namespace
}  // namespace flow::cluster
