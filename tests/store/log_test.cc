// A log after a kill, a power failure, or a changed bit: synced data is kept, partial writes are
// not damage, and no data is dropped silently.
#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <random>

#include "engine/base/files.hpp"
#include "engine/store/damage.hpp"
#include "engine/store/log_files.hpp"
#include "engine/store/log_records.hpp"
#include "engine/store/store.hpp"
#include "tests/store/temp_folder.hpp"

using namespace flow;
namespace fs = std::filesystem;

namespace {

constexpr int kSynced = 30, kLater = 4;

std::string key_of(int i) { return "key" + std::to_string(i); }

/// From a few bytes to more than a block, without zero bytes.
std::string value_of(int i) {
  static constexpr size_t kSizes[] = {10, 300, 5'000, 70'000, 900, 33'000};
  return std::string(kSizes[static_cast<size_t>(i) % std::size(kSizes)],
                     static_cast<char>('a' + i % 26));
}

void put(Store& store, int i, bool sync) {
  Batch batch;
  batch.put(Family::kv, key_of(i), value_of(i));
  REQUIRE(store.commit(batch, sync).ok());
}

/// Copies `from` to `to`. An open store may shorten or remove a file meanwhile, which fs::copy
/// reports as an error.
void copy_state(const fs::path& from, const fs::path& to) {
  fs::remove_all(to);
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(from)) {
    fs::path there = to / entry.path().filename();
    if (entry.is_directory()) {
      copy_state(entry.path(), there);
    } else if (auto bytes = read_file(entry.path().string()); bytes.ok()) {
      std::ofstream(there, std::ios::binary) << *bytes;
    }
  }
}

/// A state as a kill leaves it: batches that were synced individually, and later ones that were
/// not.
struct KilledState {
  TempFolder temp;
  fs::path whole = temp.path / "killed", again = temp.path / "again";
  std::string log;     // its bytes
  size_t durable = 0;  // number of synced bytes
  size_t written = 0;

  KilledState() {
    auto store = open_store(temp.state());
    REQUIRE(store.ok());
    for (int i = 0; i < kSynced; i++) put(**store, i, true);
    durable = written_size(newest_log(temp.state()));
    for (int i = kSynced; i < kSynced + kLater; i++) put(**store, i, false);
    written = written_size(newest_log(temp.state()));
    copy_state(temp.state(), whole);
    log = *read_file(newest_log(whole.string()));
    REQUIRE(durable < written);
    REQUIRE(written < log.size());
  }

  Result<std::unique_ptr<Store>> open_with(const std::string& bytes, bool read_only = false) {
    copy_state(whole, again);
    std::ofstream(newest_log(again.string()), std::ios::binary) << bytes;
    return open_store(again.string(), {.read_only = read_only});
  }
};

/// Overwrites written data as if it had not reached the disk.
void unwrite(std::string& log, size_t from, size_t to) {
  std::string fill(log.size(), '\0');
  fill_unwritten(fill, 0);
  log.replace(from, to - from, fill, from, to - from);
}

void flip(const fs::path& path, size_t at) {
  std::string bytes = *read_file(path.string());
  bytes[at] = static_cast<char>(bytes[at] ^ 4);
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Number of batches that are present. Each is complete, and none follows a missing one.
int batches_in(const Store& store) {
  int count = 0;
  bool is_gone = false;
  for (int i = 0; i < kSynced + kLater; i++) {
    auto value = store.get(Family::kv, key_of(i));
    REQUIRE(value.ok());
    if (value->has_value()) {
      CHECK_FALSE(is_gone);
      CHECK(**value == value_of(i));
      count++;
    } else {
      is_gone = true;
    }
  }
  return count;
}

}  // namespace

TEST_CASE("a log that was open ends after its last write, for writers and readers") {
  KilledState killed;
  for (bool read_only : {true, false}) {
    auto store = killed.open_with(killed.log, read_only);
    REQUIRE(store.ok());
    CHECK(batches_in(**store) == kSynced + kLater);
  }
  auto store = open_store(killed.again.string());
  REQUIRE(store.ok());
  CHECK(batches_in(**store) == kSynced + kLater);
}

TEST_CASE(
    "a closed log ends after its last write, and unwritten space does not count for its size") {
  TempFolder temp;
  uint64_t while_open = 0;
  {
    auto store = open_store(temp.state());
    REQUIRE(store.ok());
    put(**store, 0, true);
    CHECK(fs::file_size(newest_log(temp.state())) > 100'000);
    while_open = (*store)->bytes();
  }
  fs::path log = newest_log(temp.state());
  CHECK(fs::file_size(log) == written_size(log));
  uint64_t after = 0;
  for (const auto& entry : fs::recursive_directory_iterator(temp.state()))
    after += entry.is_regular_file() ? entry.file_size() : 0;
  CHECK(while_open < after + 1000);  // RocksDB records its end
}

TEST_CASE("after a power failure synced data is present, whichever sectors reached the disk",
          "[one-thread]") {
  KilledState killed;
  unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  for (int round = 0; round < 40; round++) {
    INFO("seed " << seed << " round " << round);
    std::string log = killed.log;
    int percent_lost = static_cast<int>(random() % 100);
    for (size_t at = killed.durable; at < killed.written;) {
      size_t next = std::min(killed.written, at - at % kSector + kSector);
      if (static_cast<int>(random() % 100) < percent_lost) unwrite(log, at, next);
      at = next;
    }
    bool read_only = round % 2 == 0;
    auto store = killed.open_with(log, read_only);
    if (!store.ok()) FAIL(store.error().message);
    CHECK(batches_in(**store) >= kSynced);
  }
}

TEST_CASE("after a kill during a write synced data is present") {
  KilledState killed;
  unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  for (int round = 0; round < 30; round++) {
    size_t end = killed.durable + random() % (killed.written - killed.durable);
    INFO("seed " << seed << " end " << end);
    // A write consists of parts, each of which is present or missing.
    std::string log = killed.log;
    unwrite(log, std::max(end - end % 4096, killed.durable), log.size());
    auto store = killed.open_with(log);
    if (!store.ok()) FAIL(store.error().message);
    CHECK(batches_in(**store) >= kSynced);
  }
}

TEST_CASE("a changed bit of a log is reported or has no effect", "[one-thread]") {
  KilledState killed;
  unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  int told = 0;
  constexpr int kRounds = 60;
  for (int round = 0; round < kRounds; round++) {
    size_t at = random() % (round % 4 == 0 ? killed.log.size() : killed.written);
    INFO("seed " << seed << " byte " << at);
    std::string log = killed.log;
    log[at] = static_cast<char>(log[at] ^ (1 << random() % 8));
    auto store = killed.open_with(log, round % 2 == 0);
    if (store.ok()) {
      CHECK(batches_in(**store) == kSynced + kLater);
      continue;
    }
    told++;
    CHECK(store.error().kind == ErrorKind::environment);
    CHECK_THAT(store.error().message, Catch::Contains(".log") && Catch::Contains("offset"));
  }
  CHECK(told > kRounds / 2);
}

TEST_CASE("a changed bit in a last batch of zeros is reported") {
  TempFolder temp;
  fs::path whole = temp.path / "killed";
  {
    auto store = open_store(temp.state());
    REQUIRE(store.ok());
    Batch batch;
    batch.put(Family::kv, "zeros", std::string(20'000, '\0'));
    REQUIRE((*store)->commit(batch).ok());
    copy_state(temp.state(), whole);
  }
  size_t written = end_of_whole(*read_file(newest_log(whole.string())), 0);
  for (size_t back : {size_t{100}, size_t{5'000}, size_t{19'900}}) {
    INFO(back);
    fs::path again = temp.path / "again";
    copy_state(whole, again);
    flip(newest_log(again.string()), written - back);
    auto store = open_store(again.string());
    REQUIRE_FALSE(store.ok());
    CHECK_THAT(store.error().message, Catch::Contains("offset"));
  }
}

TEST_CASE("a last record with a zeroed header only is damage") {
  KilledState killed;
  size_t last = 0;
  end_of_whole(killed.log, 0, [&](size_t at) { last = at; });
  std::string log = killed.log;
  std::fill(&log[last], &log[last + kRecordHeader], '\0');
  CHECK_FALSE(killed.open_with(log).ok());
  std::fill(&log[last], &log[killed.written], '\0');
  CHECK_FALSE(killed.open_with(log).ok());
}

TEST_CASE("a record whose ends reached the disk partly is not damage, and one that is missing is") {
  KilledState killed;
  auto is_damaged = [&](std::initializer_list<std::pair<size_t, int>> changes) {
    std::string log = killed.log;
    for (auto [at, bits] : changes) log[at] = static_cast<char>(log[at] ^ bits);
    return first_wrong_record(log, 4) != std::string_view::npos;
  };
  size_t at = killed.written, sector = at - at % kSector + kSector;
  CHECK_FALSE(is_damaged({{at, 0x13}}));
  CHECK_FALSE(is_damaged({{at, 0x10}, {at + 1, 0x70}, {at + 2, 0x01}}));
  CHECK_FALSE(is_damaged({{sector, 0x13}}));
  CHECK_FALSE(is_damaged({{at, 0x21}, {sector, 0x13}, {sector + 3, 0x55}}));
  CHECK(is_damaged({{sector, 0x10}}));
  CHECK(is_damaged({{sector + 9, 0x13}}));
  CHECK(is_damaged({{sector + 200, 0x7f}, {sector + 201, 0x7f}}));
}

TEST_CASE("missing sectors of the fill are not damage") {
  KilledState killed;
  unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  for (int round = 0; round < 10; round++) {
    INFO("seed " << seed << " round " << round);
    std::string log = killed.log;
    size_t first = killed.written - killed.written % kSector + kSector;
    for (size_t at = first; at + kSector <= log.size(); at += kSector) {
      if (random() % 2 == 0) std::fill(&log[at], &log[at] + kSector, '\0');
    }
    auto store = killed.open_with(log, round % 2 == 0);
    if (!store.ok()) FAIL(store.error().message);
    CHECK(batches_in(**store) == kSynced + kLater);
  }
}

TEST_CASE("a manifest that ends in zeros opens") {
  TempFolder temp;
  { REQUIRE(open_store(temp.state()).ok()); }
  for (const auto& entry : fs::directory_iterator(temp.state() + "/db")) {
    if (entry.path().filename().string().starts_with("MANIFEST"))
      fs::resize_file(entry.path(), entry.file_size() + 60);
  }
  CHECK(open_store(temp.state(), {.read_only = true}).ok());
  CHECK(open_store(temp.state()).ok());
}

TEST_CASE("a log is durable before the next one begins, and the next one records its size") {
  TempFolder temp;
  auto progress = std::make_shared<SyncProgress>();
  auto files = make_log_files(progress);
  std::unique_ptr<rocksdb::FSWritableFile> first, second;
  auto make = [&](const char* name, std::unique_ptr<rocksdb::FSWritableFile>& file) {
    REQUIRE(files->NewWritableFile((temp.path / name).string(), {}, &file, nullptr).ok());
  };
  make("000007.log", first);
  REQUIRE(first->Append("some bytes", {}, nullptr).ok());
  make("000009.log", second);
  CHECK(progress->marks().newest.log == 0);
  REQUIRE(second->Append("others", {}, nullptr).ok());
  CHECK(progress->marks().newest.log == 7);
  CHECK(progress->marks().newest.size == 10);
  REQUIRE(second->Sync({}, nullptr).ok());
  CHECK(progress->marks().newest.log == 9);
  CHECK(progress->marks().newest.size == 6);
  CHECK(progress->marks().before.log == 7);
  CHECK(progress->marks().before.size == 10);
}

TEST_CASE("a missing part of a log that has a successor is damage") {
  constexpr int kBatches = 700;  // more than a memtable, so a second log begins
  TempFolder temp;
  fs::path whole = temp.path / "killed", again = temp.path / "again";
  {
    auto store = open_store(temp.state());
    REQUIRE(store.ok());
    for (int i = 0; i < kBatches; i++) {
      Batch batch;
      batch.put(Family::kv, key_of(i), std::string(30'000, 'x'));
      REQUIRE((*store)->commit(batch, i % 50 == 0).ok());
    }
    copy_state(temp.state(), whole);
  }
  fs::path older;
  for (const auto& entry : fs::directory_iterator(whole / "db")) {
    bool is_older =
        entry.path().extension() == ".log" && entry.path() != newest_log(whole.string());
    if (is_older) older = entry.path().filename();
  }
  if (older.empty()) {
    WARN("skipped: the older log is gone already");
    return;
  }
  size_t written = written_size((whole / "db" / older).string());
  for (size_t end : {written - 1, written - 40'000, written / 2, size_t{10}}) {
    INFO(end);
    copy_state(whole, again);
    fs::resize_file(again / "db" / older, end);
    auto store = open_store(again.string());
    REQUIRE_FALSE(store.ok());
    CHECK_THAT(store.error().message, Catch::Contains(older.string()));
  }
  auto store = open_store(whole.string());
  REQUIRE(store.ok());
  for (int i = 0; i < kBatches; i++) CHECK((*store)->get(Family::kv, key_of(i))->has_value());
}

TEST_CASE("a missing sector of synced data is damage") {
  KilledState killed;
  unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  for (int round = 0; round < 20; round++) {
    size_t at = random() % killed.durable;
    at -= at % kSector;
    INFO("seed " << seed << " sector at " << at);
    std::string log = killed.log;
    std::fill(&log[at], &log[at + kSector], '\0');
    auto store = killed.open_with(log);
    REQUIRE_FALSE(store.ok());
    CHECK_THAT(store.error().message, Catch::Contains("offset"));
  }
}

TEST_CASE("a batch that appears twice in a log is damage") {
  KilledState killed;
  size_t size = record_size(killed.log, 0);
  std::string again = killed.log.substr(0, killed.written) + killed.log.substr(0, size);
  REQUIRE(left_in_block(killed.written) > size);  // the copy is a complete record
  for (bool read_only : {false, true}) {
    auto store = killed.open_with(again, read_only);
    REQUIRE_FALSE(store.ok());
    CHECK_THAT(store.error().message, Catch::Contains("offset " + std::to_string(killed.written)));
  }
  CHECK(killed.open_with(killed.log.substr(0, killed.written)).ok());
}

TEST_CASE("a log that appears again under a later number is damage") {
  KilledState killed;
  copy_state(killed.whole, killed.again);
  fs::path log = newest_log(killed.again.string());
  fs::copy_file(log, log.parent_path() / "999999.log");
  auto store = open_store(killed.again.string());
  REQUIRE_FALSE(store.ok());
  CHECK_THAT(store.error().message, Catch::Contains(log.string()));
}

namespace {

/// Replaces an open file by something that cannot be synced (EINVAL).
void fail_syncs_of(const std::string& path) {
  int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  REQUIRE(null >= 0);
  int count = 0;
  std::vector<fs::path> links;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) links.push_back(entry.path());
  for (const fs::path& link : links) {
    std::error_code gone;  // of the listing
    if (fs::read_symlink(link, gone) != path) continue;
    REQUIRE(::dup3(null, std::stoi(link.filename().string()), O_CLOEXEC) >= 0);
    count++;
  }
  ::close(null);
  REQUIRE(count > 0);
}

}  // namespace

TEST_CASE("a log whose sync failed at its close reports the reason to later writes") {
  TempFolder temp;
  std::string log = (temp.path / "000001.log").string();
  auto files = make_log_files(std::make_shared<SyncProgress>());
  std::unique_ptr<rocksdb::FSWritableFile> before, after;
  REQUIRE(files->NewWritableFile(log, {}, &before, nullptr).ok());
  fail_syncs_of(log);
  REQUIRE(before->Append("closed", {}, nullptr).ok());
  before.reset();
  std::string next = (temp.path / "000002.log").string();
  REQUIRE(files->NewWritableFile(next, {}, &after, nullptr).ok());
  for (int try_number = 1; try_number <= 2; try_number++) {
    INFO(try_number);
    errno = ENOENT;  // of an unrelated call
    auto status = after->Append("next", {}, nullptr);
    CHECK(status.ToString() == "IO error: sync of a log: Invalid argument");
  }
  after.reset();
  CHECK(fs::file_size(next) == 0);  // no write was done before its predecessor
}
