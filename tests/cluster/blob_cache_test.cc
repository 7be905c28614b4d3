// The blob cache of a worker: retention, eviction, and recovery after a crash.
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "tests/cluster/transfer_pair.hpp"

namespace flow::cluster {
namespace {

using Catch::Matchers::Contains;

constexpr uint64_t kPiece = 1000, kFour = 4 * kPiece;

std::string piece(uint64_t number) { return random_bytes_of(kPiece, number); }
Digest digest_of(uint64_t number) { return sha256(piece(number)); }

std::shared_ptr<BlobCache> open_store(const TestFolder& folder, uint64_t bytes_max = kFour) {
  auto opened = BlobCache::open(folder.path, bytes_max);
  REQUIRE(opened.ok());
  return *opened;
}

/// As it comes from the head.
Status take(BlobCache& store, uint64_t number) {
  auto incoming = store.begin(digest_of(number), kPiece);
  if (!incoming.ok()) return incoming.error();
  (*incoming)->hash(piece(number));
  REQUIRE((*incoming)->write(piece(number)).ok());
  REQUIRE((*incoming)->matches_digest());
  return (*incoming)->commit();
}

std::vector<uint64_t> held(const TestFolder& folder) {
  std::vector<uint64_t> numbers;
  for (uint64_t i = 0; i < 20; i++)
    if (::access(blob_path(folder.path, digest_of(i)).c_str(), F_OK) == 0) numbers.push_back(i);
  return numbers;
}

using Numbers = std::vector<uint64_t>;

TEST_CASE("the least recently used blobs are evicted first, and only as many as necessary") {
  TestFolder folder;
  auto store = open_store(folder);
  for (uint64_t i = 0; i < 4; i++) REQUIRE(take(*store, i).ok());
  CHECK(store->usage().bytes == kFour);
  CHECK(store->usage().evicted == 0);
  CHECK(store->has({digest_of(0), kPiece}));  // used recently
  REQUIRE(take(*store, 4).ok());
  CHECK(held(folder) == Numbers{0, 2, 3, 4});
  REQUIRE(take(*store, 5).ok());
  CHECK(held(folder) == Numbers{0, 3, 4, 5});
  CHECK(store->usage().evicted_bytes == 2 * kPiece);
  CHECK(temporaries_in(folder.path) == 0);
}

TEST_CASE("pinned blobs are kept, and the space of new blobs is reserved") {
  TestFolder folder;
  auto store = open_store(folder);
  store->pin("a", {digest_of(0), digest_of(1)});
  store->pin("b", {digest_of(1), digest_of(2), digest_of(3)});
  for (uint64_t i = 0; i < 4; i++) REQUIRE(take(*store, i).ok());
  CHECK(store->usage().pinned_bytes == kFour);
  Status full = take(*store, 4);
  REQUIRE_FALSE(full.ok());
  CHECK_THAT(full.error().message,
             Contains("a blob of 1000 bytes does not fit into `" + folder.path +
                      "`: of its 4000 bytes 4000 belong to running attempts"));
  store->unpin("a");
  REQUIRE(take(*store, 4).ok());
  CHECK(held(folder) == Numbers{1, 2, 3, 4});
  auto coming = store->begin(digest_of(5), kPiece);  // instead of blob 4
  REQUIRE(coming.ok());
  CHECK_FALSE(store->begin(digest_of(6), kPiece).ok());
  coming->reset();
  CHECK(store->begin(digest_of(6), kPiece).ok());
  store->unpin("nobody");
  store->unpin("b");
  CHECK(store->usage().pinned_bytes == 0);
}

TEST_CASE("blobs that an attempt creates or finds are kept until it has ended") {
  TestFolder folder;
  auto store = open_store(folder);
  REQUIRE(take(*store, 0).ok());
  REQUIRE(take(*store, 1).ok());
  ::usleep(20'000);  // the file system's clock has a coarse resolution
  store->pin("attempt", {});
  put_object(folder.path, piece(2));                                 // created
  REQUIRE(refresh_blob(blob_path(folder.path, digest_of(0))).ok());  // found
  bool was_seen = GENERATE(false, true);
  for (uint64_t i : {0u, 2u}) {
    if (!was_seen) continue;  // in a download, or at the request of the head
    CHECK(store->has({digest_of(i), kPiece}));
    CHECK(store->open_reader(digest_of(i)).ok());
  }
  for (uint64_t i = 3; i < 10; i++) REQUIRE(take(*store, i).ok());
  CHECK(held(folder) == (was_seen ? Numbers{0, 2, 8, 9} : Numbers{0, 2, 7, 8, 9}));
  store->unpin("attempt");
  ::usleep(20'000);
  store->pin("next", {});
  for (uint64_t i = 10; i < 14; i++) REQUIRE(take(*store, i).ok());
  // unknown, and does not prevent eviction
  if (!was_seen) CHECK(held(folder) == Numbers{2, 10, 11, 12, 13});
  store->pin("next", {digest_of(10), digest_of(11), digest_of(12), digest_of(13)});
  CHECK_FALSE(take(*store, 14).ok());
  CHECK(held(folder) == Numbers{10, 11, 12, 13});
}

TEST_CASE("after a crash complete blobs are found and incomplete ones removed") {
  TestFolder folder;
  {
    auto store = open_store(folder);
    for (uint64_t i = 0; i < 3; i++) REQUIRE(take(*store, i).ok());
  }
  put_object(folder.path, piece(3));
  std::string target = blob_path(folder.path, digest_of(4));
  REQUIRE(make_dirs(std::filesystem::path(target).parent_path().string()).ok());
  for (const std::string& name :
       {folder / "objects/tmp-x1y2z3", target + ".tmp-abc", folder / "objects/notes"})
    REQUIRE(write_file_atomic(name, "half").ok());
  auto store = open_store(folder);
  CHECK(store->usage().bytes == kFour);
  CHECK(held(folder) == Numbers{0, 1, 2, 3});
  for (const auto& each : std::filesystem::recursive_directory_iterator(folder / "objects"))
    CHECK((each.is_directory() || each.file_size() == kPiece));
  REQUIRE(take(*store, 5).ok());
  CHECK(held(folder) == Numbers{1, 2, 3, 5});  // the oldest was evicted
}

// Downloaded blobs are not synced: the name may survive a power failure without the bytes.
TEST_CASE(
    "a blob that a power failure damaged is missing after a restart and is downloaded again") {
  TestFolder folder;
  {
    auto store = open_store(folder);
    for (uint64_t i = 0; i < 3; i++) REQUIRE(take(*store, i).ok());
  }
  for (auto [number, bytes] :
       {std::pair{0u, std::string(kPiece, '\0')}, std::pair{1u, std::string()}}) {
    std::string path = blob_path(folder.path, digest_of(number));
    REQUIRE(::chmod(path.c_str(), 0600) == 0);
    std::ofstream(path) << bytes;
  }
  auto store = open_store(folder);
  for (uint64_t i : {0u, 1u}) {
    CHECK_FALSE(store->has({digest_of(i), std::nullopt}));
    REQUIRE(take(*store, i).ok());
    CHECK(store->has({digest_of(i), kPiece}));
  }
  CHECK(store->has({digest_of(2), kPiece}));
}

TEST_CASE("stores a blob, for the next test", "[.takes_in]") {
  const char *dir = ::getenv("FLOW_TEST_DIR"), *is_state = ::getenv("FLOW_TEST_IS_STATE");
  REQUIRE(dir != nullptr);
  auto store =
      is_state != nullptr ? BlobCache::of_state(dir, nullptr) : *BlobCache::open(dir, kFour);
  REQUIRE(take(*store, 0).ok());
}

// A failpoint, which a process reads once, is placed after the sync.
TEST_CASE("a head's state syncs stored blobs, and a worker does not") {
  TestFolder folder;
  auto is_killed = [&](const std::string& settings) {
    std::string command = "FLOW_TEST_DIR=" + folder.path + " " + settings + " exec " +
                          std::filesystem::read_symlink("/proc/self/exe").string() +
                          " [.takes_in] >/dev/null";
    int status = std::system(command.c_str());
    bool is_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    CHECK((is_well || WTERMSIG(status) == SIGKILL));
    return !is_well;
  };
  CHECK_FALSE(is_killed("FLOW_FAILPOINT=blob-after-sync"));
  CHECK_FALSE(is_killed("FLOW_TEST_IS_STATE=yes"));
  CHECK(is_killed("FLOW_TEST_IS_STATE=yes FLOW_FAILPOINT=blob-after-sync"));
}

TEST_CASE("a checkpoint file that a power failure damaged is not accepted") {
  TestFolder folder;
  const std::string place = "checkpoints/run/task/1.safetensors";
  {
    auto store = open_store(folder);
    store->will_place(digest_of(1));
    REQUIRE(take(*store, 1).ok());
    REQUIRE(store->link_to(digest_of(1), place).ok());
    store->was_placed(digest_of(1));
  }
  REQUIRE(::chmod((folder / place).c_str(), 0600) == 0);
  std::ofstream(folder / place) << std::string(kPiece, '\0');
  auto store = open_store(folder);
  CHECK(store->adopt_placed(digest_of(1), place));
  CHECK_FALSE(store->has({digest_of(1), kPiece}));
  REQUIRE(take(*store, 1).ok());
  REQUIRE(store->link_to(digest_of(1), place).ok());
  CHECK((*read_file(folder / place) == piece(1)));
}

TEST_CASE("a blob exists only if its bytes match its name") {
  TestFolder folder;
  auto store = open_store(folder);
  REQUIRE(take(*store, 0).ok());
  std::string path = store->path_of(digest_of(0));
  CHECK(store->has({digest_of(0), kPiece}));
  CHECK(store->has({digest_of(0), std::nullopt}));
  CHECK_FALSE(store->has({digest_of(0), kPiece + 1}));
  CHECK_FALSE(store->has({digest_of(1), std::nullopt}));
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  REQUIRE(::truncate(path.c_str(), 10) == 0);
  CHECK_FALSE(store->has({digest_of(0), std::nullopt}));
  store->drop_if_damaged(digest_of(0));
  CHECK(held(folder).empty());
  CHECK(store->usage().bytes == 0);
  REQUIRE(take(*store, 0).ok());
  store->drop_if_damaged(digest_of(0));
  CHECK(held(folder) == Numbers{0});
}

TEST_CASE("a blob that does not fit on the disk is rejected before it is transferred") {
  TestFolder folder;
  auto store = BlobCache::of_state(folder.path, nullptr);
  std::filesystem::create_directories(folder.path + "/objects");
  uint64_t size = std::filesystem::space(folder.path).available * 2;
  auto incoming = store->begin(sha256("more than there is"), size);
  REQUIRE_FALSE(incoming.ok());
  CHECK_THAT(incoming.error().message,
             Contains("does not fit on the disk of `" + folder.path + "`, which has"));
  CHECK(std::filesystem::is_empty(folder.path + "/objects"));
}

TEST_CASE(
    "on a full disk the least recently used blobs are evicted, unless that would not suffice") {
  TestFolder folder;
  if (::mount("flow-test", folder.path.c_str(), "tmpfs", 0, "size=16k") != 0) {
    WARN("skipped: mounting a small disk needs root");
    return;
  }
  {
    auto store = open_store(folder, 0);
    for (uint64_t number = 1; number <= 5; number++) REQUIRE(take(*store, number).ok());
    CHECK(held(folder) == Numbers{2, 3, 4, 5});
    CHECK_FALSE(store->begin(digest_of(6), 20'000).ok());
    CHECK(held(folder) == Numbers{2, 3, 4, 5});
    store->pin("an attempt", {digest_of(2)});
    REQUIRE(take(*store, 6).ok());
    CHECK(held(folder) == Numbers{2, 4, 5, 6});
  }
  CHECK(::umount2(folder.path.c_str(), MNT_DETACH) == 0);
}

TEST_CASE("a head's state has no limit and evicts nothing") {
  TestFolder folder;
  auto state = BlobCache::of_state(folder.path, nullptr);
  for (uint64_t i = 0; i < 8; i++) REQUIRE(take(*state, i).ok());
  CHECK(held(folder).size() == 8);
  CHECK(state->usage().bytes_max == 0);
  CHECK_FALSE(state->open_reader(digest_of(9)).ok());
  auto source = state->open_reader(digest_of(3));
  REQUIRE(source.ok());
  std::string bytes(kPiece, '\0');
  REQUIRE(source->read(0, bytes.data(), kPiece).ok());
  CHECK((bytes == piece(3)));
  CHECK_FALSE(source->read(1, bytes.data(), kPiece).ok());  // beyond its end
}

std::string all_of(const BlobReader& source) {
  std::string bytes(source.size(), '\0');
  REQUIRE(source.read(0, bytes.data(), bytes.size()).ok());
  return bytes;
}

TEST_CASE("all unused blobs are evicted for a blob that does not fit on the disk") {
  TestFolder folder;
  auto store = open_store(folder);
  store->pin("a", {digest_of(1), digest_of(2)});
  for (uint64_t i = 0; i < 4; i++) REQUIRE(take(*store, i).ok());
  CHECK((store->pinned_by("a") == std::vector<Digest>{digest_of(1), digest_of(2)}));
  CHECK(store->pinned_by("b").empty());
  store->evict_unpinned();
  CHECK(held(folder) == Numbers{1, 2});
  store->unpin("a");
  CHECK(store->pinned_by("a").empty());
  store->evict_unpinned();
  CHECK(held(folder).empty());
  CHECK(store->usage().bytes == 0);
}

TEST_CASE("an external file serves as a blob while it is registered") {
  TestFolder folder;
  auto store = open_store(folder);
  REQUIRE(write_file_atomic(folder / "input", piece(1)).ok());
  REQUIRE(write_file_atomic(folder / "other", piece(1)).ok());
  store->lend("a", digest_of(1), folder / "input", true);
  store->lend("a", digest_of(1), folder / "input", true);
  store->lend("b", digest_of(1), folder / "other", false);
  auto source = store->open_reader(digest_of(1));
  REQUIRE(source.ok());
  CHECK((all_of(*source) == piece(1)));
  CHECK(source->source_path().empty());
  store->unpin("b");
  source = store->open_reader(digest_of(1));
  REQUIRE(source.ok());
  CHECK(source->source_path() == folder / "input");
  store->unpin("a");
  CHECK_FALSE(store->open_reader(digest_of(1)).ok());
  store->lend("c", digest_of(1), folder / "nothing", true);
  CHECK_THAT(store->open_reader(digest_of(1)).error().message, Contains("nothing"));
  REQUIRE(take(*store, 1).ok());
  CHECK(store->open_reader(digest_of(1)).ok());
}

TEST_CASE("a blob that is registered at several places is read from one that still exists") {
  TestFolder folder;
  auto store = open_store(folder);
  for (const char* name : {"first", "second", "third"})
    REQUIRE(write_file_atomic(folder / name, piece(1)).ok());
  store->lend("a", digest_of(1), folder / "first", true);
  store->lend("b", digest_of(1), folder / "second", true);
  std::filesystem::remove(folder / "second");
  auto source = store->open_reader(digest_of(1));
  REQUIRE(source.ok());
  CHECK(source->source_path() == folder / "first");
  store->lend("a", digest_of(1), folder / "third", true);  // instead of the first
  std::filesystem::remove(folder / "third");
  CHECK_FALSE(store->open_reader(digest_of(1)).ok());
}

TEST_CASE(
    "a blob that is downloaded for several places stays an object until it is at the last one") {
  TestFolder folder;
  auto store = open_store(folder);
  store->will_place(digest_of(1));
  store->will_place(digest_of(1));
  REQUIRE(take(*store, 1).ok());
  REQUIRE(store->link_to(digest_of(1), "checkpoints/a").ok());
  store->was_placed(digest_of(1));
  REQUIRE(store->link_to(digest_of(1), "checkpoints/b").ok());
  CHECK(store->has({digest_of(1), {}}));
  store->was_placed(digest_of(1));
  CHECK_FALSE(store->has({digest_of(1), {}}));
  CHECK((*read_file(folder / "checkpoints/a") == piece(1)));
  CHECK((*read_file(folder / "checkpoints/b") == piece(1)));
}

TEST_CASE("a blob has a second name at the path of a checkpoint") {
  TestFolder folder;
  auto store = open_store(folder);
  for (uint64_t i = 0; i < 2; i++) REQUIRE(take(*store, i).ok());
  for (uint64_t i : {0u, 1u, 1u}) {
    REQUIRE(store->link_to(digest_of(i), "checkpoints/run/task/1.safetensors").ok());
    CHECK((*read_file(folder / "checkpoints/run/task/1.safetensors") == piece(i)));
  }
  for (uint64_t i = 2; i < 6; i++) REQUIRE(take(*store, i).ok());
  CHECK(held(folder) == Numbers{2, 3, 4, 5});
  CHECK((*read_file(folder / "checkpoints/run/task/1.safetensors") == piece(1)));
  CHECK(std::distance(std::filesystem::directory_iterator(folder / "checkpoints/run/task"), {}) ==
        1);
  CHECK_THAT(store->link_to(digest_of(9), "x").error().message, Contains("cannot link"));
}

TEST_CASE(
    "a blob reader reads a regular file or bytes and reports whether others may write to it") {
  TestFolder folder;
  REQUIRE(write_file_atomic(folder / "file", "content").ok());
  auto file = BlobReader::of_file(folder / "file", true);
  REQUIRE(file.ok());
  CHECK(file->size() == 7);
  CHECK(file->source_path() == folder / "file");
  CHECK(BlobReader::of_file(folder / "file", false)->source_path().empty());
  CHECK_THAT(BlobReader::of_file(folder.path, true).error().message,
             Contains("not a regular file"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THAT(BlobReader::of_file(folder / "pipe", true).error().message,
             Contains("not a regular file"));
  CHECK_FALSE(BlobReader::of_file(folder / "nothing", true).ok());
  REQUIRE(::truncate((folder / "file").c_str(), 3) == 0);
  char bytes[7];
  CHECK_THAT(file->read(0, bytes, 7).error().message, Contains("became shorter while it was read"));
  BlobReader text = BlobReader::of_bytes("text");
  REQUIRE(text.read(1, bytes, 3).ok());
  CHECK(std::string_view(bytes, 3) == "ext");
  REQUIRE(BlobReader::of_bytes("").read(0, bytes, 0).ok());
}

}  // namespace
}  // namespace flow::cluster
