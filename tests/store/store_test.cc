// The state on disk: committed data is present, uncommitted data is not, and damage is reported,
// never dropped silently.
#include <fcntl.h>
#include <rocksdb/db.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <thread>

#include "engine/store/lock.hpp"
#include "engine/store/open_lock.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/store/rows.hpp"
#include "engine/store/store.hpp"
#include "tests/store/temp_folder.hpp"

using namespace flow;
namespace fs = std::filesystem;

namespace {

std::unique_ptr<Store> opened(const std::string& dir, bool read_only = false) {
  StoreOptions options;
  options.read_only = read_only;
  auto store = open_store(dir, options);
  if (!store.ok()) FAIL(store.error().message);
  return std::move(*store);
}

void put(Store& store, const std::string& key, const std::string& value) {
  Batch batch;
  batch.put(Family::kv, key, value);
  REQUIRE(store.commit(batch).ok());
}

std::optional<std::string> read(const Store& store, const std::string& key) {
  auto value = store.get(Family::kv, key);
  REQUIRE(value.ok());
  return *value;
}

}  // namespace

TEST_CASE("committed data is present and complete after a reopen") {
  TempFolder temp;
  {
    auto store = opened(temp.state());
    Batch batch;
    batch.put(Family::runs, "a", "1");
    batch.put(Family::kv, "b", std::string("\0x", 2));
    REQUIRE(store->commit(batch).ok());
    Batch change;
    change.erase(Family::runs, "a");
    REQUIRE(store->commit(change).ok());
  }
  auto store = opened(temp.state());
  CHECK(read(*store, "b") == std::string("\0x", 2));
  CHECK_FALSE((*store->get(Family::runs, "a")).has_value());
  struct stat info {};
  REQUIRE(::stat(temp.state().c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
}

TEST_CASE("a scan visits a prefix in order, from the given start until it is stopped") {
  auto store = make_memory_store();
  for (const char* key : {"a1", "b1", "b2", "b3", "c1"}) put(*store, key, key);
  std::string seen;
  REQUIRE(store
              ->scan(Family::kv, "b", "b2",
                     [&](std::string_view key, std::string_view) {
                       seen += std::string(key) + " ";
                       return true;
                     })
              .ok());
  CHECK(seen == "b2 b3 ");
  int count = 0;
  REQUIRE(store
              ->scan(Family::kv, "", "",
                     [&](std::string_view, std::string_view) { return ++count < 2; })
              .ok());
  CHECK(count == 2);
}

TEST_CASE("rows by digest are found individually, in groups, and in order") {
  constexpr int kRows = 3000, kErased = 7;
  TempFolder temp;
  std::vector<Digest> digests;
  auto check = [&](const Store& store) {
    std::vector<std::string> keys;
    REQUIRE(store
                .scan(Family::blobs, "", "",
                      [&](std::string_view key, std::string_view) {
                        keys.emplace_back(key);
                        return true;
                      })
                .ok());
    CHECK(keys.size() == kRows - kErased);
    CHECK(std::is_sorted(keys.begin(), keys.end()));
    std::vector<std::string_view> asked;
    for (const Digest& digest : digests) asked.push_back(digest.view());
    auto rows = store.get_many(Family::blobs, asked);
    REQUIRE(rows.ok());
    for (int i = 0; i < kRows; i++) {
      INFO(i);
      bool is_there = i >= kErased;
      CHECK((*rows)[i].has_value() == is_there);
      if (is_there) CHECK(*(*rows)[i] == std::to_string(i));
      auto one = store.get(Family::blobs, digests[i].view());
      REQUIRE(one.ok());
      CHECK(one->has_value() == is_there);
    }
  };
  {
    auto store = opened(temp.state());
    Batch batch;
    for (int i = 0; i < kRows; i++) {
      digests.push_back(sha256(std::to_string(i)));
      batch.put(Family::blobs, std::string(digests.back().view()), std::to_string(i));
    }
    REQUIRE(store->commit(batch).ok());
    Batch change;
    for (int i = 0; i < kErased; i++) change.erase(Family::blobs, std::string(digests[i].view()));
    REQUIRE(store->commit(change).ok());
    check(*store);
    check(*opened(temp.state(), true));
  }
  check(*opened(temp.state()));
}

TEST_CASE("a reader works while a writer writes") {
  TempFolder temp;
  auto writer = opened(temp.state());
  put(*writer, "first", "1");
  auto reader = opened(temp.state(), true);
  CHECK(read(*reader, "first") == "1");
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    for (int i = 0; !stop; i++)
      put(*writer, "busy" + std::to_string(i % 100), std::string(10'000, 'x'));
  });
  for (int i = 0; i < 5; i++) CHECK(read(*opened(temp.state(), true), "first") == "1");
  stop = true;
  busy.join();
}

TEST_CASE("several readers can open a state, but only one writer") {
  TempFolder temp;
  fs::create_directories(temp.state() + "/db");
  auto reader = std::make_unique<OpenLock>(temp.state(), OpenLock::Access::reader);
  { OpenLock another(temp.state(), OpenLock::Access::reader); }
  std::atomic<bool> is_over{false}, was_over{false};
  std::thread writer([&] {
    OpenLock alone(temp.state(), OpenLock::Access::writer);
    was_over = is_over.load();
  });
  std::this_thread::sleep_for(
      std::chrono::milliseconds(50));  // it would be inside if it did not wait
  is_over = true;
  reader.reset();
  writer.join();
  CHECK(was_over);
}

TEST_CASE("a truncated log opens at its last complete batch") {
  TempFolder temp;
  {
    auto store = opened(temp.state());
    for (int i = 0; i < 10; i++) {
      Batch batch;
      batch.put(Family::kv, "left" + std::to_string(i), "x");
      batch.put(Family::runs, "right" + std::to_string(i), "x");
      REQUIRE(store->commit(batch).ok());
    }
  }
  fs::path log = newest_log(temp.state());
  fs::resize_file(log, fs::file_size(log) - 3);
  auto store = opened(temp.state());
  CHECK(read(*store, "left8").has_value());
  CHECK_FALSE(read(*store, "left9").has_value());
  CHECK_FALSE((*store->get(Family::runs, "right9")).has_value());
}

TEST_CASE("a flipped byte in the log is an error that names the file, and no data is dropped") {
  TempFolder temp;
  {
    auto store = opened(temp.state());
    for (int i = 0; i < 200; i++) put(*store, "key" + std::to_string(i), std::string(500, 'v'));
  }
  fs::path log = newest_log(temp.state());
  std::string before;
  {
    std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(30'000);
    char byte = 0;
    file.read(&byte, 1);
    file.seekp(30'000);
    byte = static_cast<char>(byte ^ 1);
    file.write(&byte, 1);
  }
  uintmax_t size = fs::file_size(log);
  auto store = open_store(temp.state());
  REQUIRE_FALSE(store.ok());
  CHECK(store.error().kind == ErrorKind::environment);
  CHECK_THAT(store.error().message,
             Catch::Contains(log.filename().string()) && Catch::Contains("offset"));
  CHECK(fs::file_size(log) == size);
}

TEST_CASE("a state of a newer format is left unchanged") {
  TempFolder temp;
  {
    auto store = opened(temp.state());
    Batch batch;
    batch.put(Family::meta, "format", "99");
    REQUIRE(store->commit(batch).ok());
  }
  auto store = open_store(temp.state());
  REQUIRE_FALSE(store.ok());
  CHECK_THAT(store.error().message, Catch::Contains("newer") && Catch::Contains("99"));
}

TEST_CASE(
    "a state whose creation was interrupted does not exist for a reader and is completed by a "
    "writer") {
  TempFolder temp;
  fs::create_directories(temp.state());
  {
    rocksdb::Options options;
    options.create_if_missing = true;
    rocksdb::DB* db = nullptr;
    REQUIRE(rocksdb::DB::Open(options, temp.state() + "/db", &db).ok());
    delete db;
  }
  auto reader = open_store(temp.state(), {.read_only = true});
  REQUIRE_FALSE(reader.ok());
  CHECK(reader.error().kind == ErrorKind::user);
  CHECK_THAT(reader.error().message, Catch::Contains("there is no state"));
  put(*opened(temp.state()), "a", "1");
  CHECK(read(*opened(temp.state(), true), "a") == "1");
}

TEST_CASE("a full disk fails the commit with the free space in the error, and loses no data") {
  TempFolder temp;
  fs::path small = temp.path / "small";
  fs::create_directory(small);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=8m") != 0) {
    WARN("skipped: a tmpfs can't be mounted here");
    return;
  }
  struct Unmount {
    fs::path path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } unmount{small};
  std::string dir = (small / "state").string();
  int committed = 0;
  {
    auto store = opened(dir);
    for (; committed < 1000; committed++) {
      Batch batch;
      batch.put(Family::kv, "key" + std::to_string(committed),
                std::string(100'000, static_cast<char>('a' + committed % 26)));
      Status done = store->commit(batch);
      if (done.ok()) continue;
      CHECK(done.error().kind == ErrorKind::environment);
      CHECK_THAT(done.error().message, Catch::Contains("free") && Catch::Contains(dir));
      break;
    }
  }
  REQUIRE(committed < 1000);
  REQUIRE(::mount("tmpfs", small.c_str(), "tmpfs", MS_REMOUNT, "size=64m") == 0);
  auto store = opened(dir);
  for (int i = 0; i < committed; i++) CHECK(read(*store, "key" + std::to_string(i)).has_value());
}

TEST_CASE("small blobs are stored inline, larger ones as read-only files") {
  TempFolder temp;
  auto store = opened(temp.state());
  Blobs blobs(*store, temp.state());
  for (size_t size :
       {size_t{0}, size_t{1}, kInlineBlobMax - 1, kInlineBlobMax, kInlineBlobMax + 1}) {
    std::string bytes(size, 'b');
    Batch batch;
    auto digest = blobs.put(bytes, batch);
    REQUIRE(digest.ok());
    CHECK(*digest == sha256(bytes));
    REQUIRE(store->commit(batch).ok());
    CHECK(blobs.has(*digest));
    CHECK(*blobs.get(*digest) == bytes);
    bool is_file = fs::exists(blobs.path_of(*digest));
    CHECK(is_file == (size > kInlineBlobMax));
    auto path = blobs.materialize(*digest);
    REQUIRE(path.ok());
    CHECK(fs::file_size(*path) == size);
    struct stat info {};
    REQUIRE(::stat(path->c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0400);
  }
}

TEST_CASE("a damaged blob is detected by its digest") {
  TempFolder temp;
  auto store = opened(temp.state());
  Blobs blobs(*store, temp.state());
  Batch batch;
  auto digest = blobs.put(std::string(100'000, 'q'), batch);
  REQUIRE(digest.ok());
  std::string path = blobs.path_of(*digest);
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  std::ofstream(path, std::ios::app) << "!";
  auto bytes = blobs.get(*digest);
  REQUIRE_FALSE(bytes.ok());
  CHECK_THAT(bytes.error().message, Catch::Contains("damaged"));
}

TEST_CASE("one process holds the lock until it ends") {
  TempFolder temp;
  auto first = StateLock::acquire(temp.state());
  REQUIRE(first.ok());
  REQUIRE(*first);
  CHECK(state_is_locked(temp.state()));
  CHECK_THAT(lock_holder(temp.state()), Catch::Contains(std::to_string(getpid())));
  auto second = StateLock::acquire(temp.state());
  REQUIRE(second.ok());
  CHECK_FALSE(*second);
  first->reset();
  CHECK_FALSE(state_is_locked(temp.state()));
  auto third = StateLock::acquire(temp.state());
  REQUIRE(third.ok());
  CHECK(*third);
}

TEST_CASE("keys of a run are found by their run") {
  Digest digest = sha256("k");
  CHECK(run_of_key(Family::kv, archive_key("r1")) == "r1");
  CHECK(run_of_key(Family::kv, step_prefix("r1", "t", digest) + "name") == "r1");
  CHECK(run_of_key(Family::kv, checkpoint_key("r1", "t", digest)) == "r1");
  CHECK(run_of_key(Family::logs, log_key("r1", 3, 1, 9)) == "r1");
  CHECK_FALSE(run_of_key(Family::kv, param_digest_key("/a/b")).has_value());
  CHECK(is_progress_key(step_prefix("r1", "t", digest)));
  CHECK_FALSE(is_progress_key(archive_key("r1")));
  CHECK(log_key("r", 1, 1, 255) < log_key("r", 1, 1, 256));
  CHECK(journal_key(255) < journal_key(256));
}

TEST_CASE("rows survive encoding and decoding") {
  RunRecord record;
  record.id = "20261121-051700-aaaa";
  record.name = "n\xff";
  record.pipeline = "p";
  record.status = "failed";
  record.submitted = 5;
  record.finished = 9;
  record.counts = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  record.retried = 3;
  record.params = "\xa0";
  record.has_result = true;
  record.result = sha256("r");
  record.plan_digest = sha256("p");
  record.bundle_digest = sha256("b");
  record.fail_fast = true;
  auto back = decode_run_record(encode_run_record(record));
  REQUIRE(back.ok());
  CHECK(encode_run_record(*back) == encode_run_record(record));
  CHECK(back->name == record.name);
  CHECK(back->counts.waiting == 9);
  CHECK(back->fail_fast);
  CHECK_FALSE(decode_run_record("nonsense").ok());
  CacheEntry entry{sha256("r"), true, sha256("f"), "run", true, true, 70'000, true, "\x01"};
  auto entry_back = decode_cache_entry(encode_cache_entry(entry));
  REQUIRE(entry_back.ok());
  CHECK(entry_back->fragment == entry.fragment);
  CHECK(entry_back->has_wait);
  CHECK(entry_back->refers_to_blobs);
  CHECK(entry_back->size == 70'000);
  CHECK(entry_back->value == "\x01");
  auto log = decode_log(encode_log({2, 1, 99, "text\xff"}));
  REQUIRE(log.ok());
  CHECK(log->text == "text\xff");
}

namespace {

size_t count_tables(const std::string& dir) {
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator(dir + "/db"))
    count += entry.path().extension() == ".sst" ? 1 : 0;
  return count;
}

/// The files of a folder with their bytes.
std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().filename().string()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return files;
}

/// A process that adds a row to each of these families, with keys after all existing ones.
void add_rows(const std::string& dir, int number) {
  auto store = opened(dir);
  Batch batch;
  std::string key = journal_key(static_cast<uint64_t>(number) + 1);
  for (Family family : {Family::runs, Family::snapshots, Family::logs, Family::kv})
    batch.put(family, key, "row " + std::to_string(number));
  REQUIRE(store->commit(batch).ok());
}

}  // namespace

TEST_CASE("the number of tables does not grow with the number of processes") {
  constexpr int kProcesses = 80;
  constexpr size_t kTablesMax = 4 * 33 + 2;  // a family's tables are merged above this number
  TempFolder temp;
  for (int i = 0; i < kProcesses; i++) add_rows(temp.state(), i);
  CHECK(count_tables(temp.state()) < kTablesMax);
  int rows = 0;
  auto count = [&](std::string_view, std::string_view value) {
    CHECK(value == "row " + std::to_string(rows));
    rows++;
    return true;
  };
  REQUIRE(opened(temp.state(), true)->scan(Family::logs, "", "", count).ok());
  CHECK(rows == kProcesses);
}

TEST_CASE("a reader opens more tables than its file limit") {
  TempFolder temp;
  for (int i = 0; i < 30; i++) add_rows(temp.state(), i);
  constexpr rlim_t kFiles = 90;
  REQUIRE(count_tables(temp.state()) > kFiles);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = {kFiles, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  StoreOptions options;
  options.read_only = true;
  auto store = open_store(temp.state(), options);
  int rows = 0;
  if (store.ok()) {
    for (int i = 0; i < 29; i++) {
      auto row = (*store)->get(Family::runs, journal_key(static_cast<uint64_t>(i) + 1));
      rows += row.ok() && *row == "row " + std::to_string(i) ? 1 : 0;
    }
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  REQUIRE(store.ok());
  CHECK(rows == 29);
}

TEST_CASE("a database without its CURRENT is damaged, not missing") {
  TempFolder temp;
  for (int i = 0; i < 2; i++) add_rows(temp.state(), i);
  auto before = files_of(temp.state() + "/db");
  std::string kept = temp.state() + ".current";
  fs::rename(temp.state() + "/db/CURRENT", kept);
  StoreOptions options;
  options.read_only = true;
  auto store = open_store(temp.state(), options);
  REQUIRE_FALSE(store.ok());
  CHECK(store.error().kind == ErrorKind::environment);
  CHECK_THAT(store.error().message, Catch::Contains("CURRENT is missing"));
  for (int i = 0; i < 2;
       i++) {  // the first pass must not create what the second would take for the state
    auto writer = open_store(temp.state());
    REQUIRE_FALSE(writer.ok());
    CHECK_THAT(writer.error().message, Catch::Contains("CURRENT is missing"));
  }
  fs::rename(kept, temp.state() + "/db/CURRENT");
  CHECK(files_of(temp.state() + "/db") == before);
  CHECK(open_store(temp.state()).ok());
}

TEST_CASE("a folder with the log of a future worker may become its state") {
  TempFolder temp;
  fs::create_directories(temp.state());
  std::ofstream(temp.state() + "/log") << "";
  CHECK(StateLock::acquire(temp.state()).ok());
}

TEST_CASE("a folder with other files is rejected as a state and stays unchanged") {
  TempFolder temp;
  fs::create_directories(temp.state());
  std::ofstream(temp.state() + "/notes.txt") << "mine";
  fs::permissions(temp.state(), fs::perms(0755));
  auto lock = StateLock::acquire(temp.state());
  REQUIRE_FALSE(lock.ok());
  CHECK_THAT(lock.error().message, Catch::Contains("`notes.txt`"));
  CHECK(fs::status(temp.state()).permissions() == fs::perms(0755));
  CHECK(std::distance(fs::directory_iterator(temp.state()), fs::directory_iterator()) == 1);
  fs::remove(temp.state() + "/notes.txt");
  CHECK(StateLock::acquire(temp.state()).ok());
}
