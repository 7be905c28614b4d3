// A spool returns its reports until they are acknowledged, also after a restart, and never reuses
// numbers.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "engine/base/ids.hpp"
#include "engine/cluster/worker/report_spool.hpp"

using namespace flow;
using namespace flow::cluster;

namespace fs = std::filesystem;

namespace {

struct Folder {
  std::string path = "/tmp/flow-spool-" + random_name();
  ~Folder() { fs::remove_all(path); }
};

std::unique_ptr<ReportSpool> open(const Folder& folder) {
  auto spool = ReportSpool::open(folder.path);
  REQUIRE(spool.ok());
  return std::move(*spool);
}

std::vector<std::string> all(ReportSpool& spool) {
  std::vector<std::string> found;
  spool.rewind();
  while (auto entry = spool.next())
    found.push_back(std::to_string(entry->number) + ":" + entry->bytes);
  return found;
}

using Entries = std::vector<std::string>;

fs::path newest_file(const Folder& folder) {
  fs::path newest;
  for (const auto& each : fs::directory_iterator(folder.path))
    if (each.path().extension() == ".reports") newest = std::max(newest, each.path());
  return newest;
}

}  // namespace

TEST_CASE("a spool returns unacknowledged reports again, also after a restart") {
  Folder folder;
  auto spool = open(folder);
  std::string id = spool->id();
  CHECK(spool->append("a") == 1);
  CHECK(spool->append(std::string("b\0\xff", 3)) == 2);
  CHECK(spool->append("") == 3);
  CHECK(all(*spool) == Entries{"1:a", std::string("2:b\0\xff", 5), "3:"});
  CHECK_FALSE(spool->has_next());
  spool->acknowledge(1);
  CHECK(spool->bytes() == 3);
  spool.reset();

  spool = open(folder);
  CHECK(spool->id() == id);
  // A file may still contain acknowledged reports; the head's acknowledgement is authoritative.
  CHECK(all(*spool).size() == 3);
  spool->acknowledge(2);
  CHECK(all(*spool) == Entries{"3:"});
  CHECK(spool->append("d") == 4);
  spool->acknowledge(4);
  CHECK(spool->bytes() == 0);
  spool.reset();

  spool = open(folder);
  CHECK(spool->append("e") == 5);
  spool->acknowledge(99);
  CHECK(spool->append("f") == 6);
  CHECK(spool->id() == id);
}

TEST_CASE("unneeded files are removed, and numbers continue") {
  Folder folder;
  auto spool = open(folder);
  std::string big(5u << 20, 'x');
  for (int i = 0; i < 40; i++) spool->append(big);  // 200 MiB: four files
  auto count = [&] {
    return std::distance(fs::directory_iterator(folder.path), fs::directory_iterator());
  };
  CHECK(count() == 1 + 4);
  CHECK(spool->bytes() == 40 * big.size());
  spool->rewind();
  for (uint64_t number = 1; number <= 40; number++) {
    auto entry = spool->next();
    REQUIRE(entry);
    CHECK(entry->number == number);
    CHECK(entry->bytes == big);
  }
  spool->acknowledge(39);
  CHECK(count() == 1 + 1);
  spool.reset();
  spool = open(folder);
  spool->acknowledge(40);
  CHECK(spool->append("next") == 41);
  CHECK(spool->problem().empty());
}

TEST_CASE("a report that was incomplete at a crash is dropped with its number") {
  Folder folder;
  auto spool = open(folder);
  std::string id = spool->id();
  for (const char* text : {"one", "two", "three"}) spool->append(text);
  spool.reset();
  SECTION("cut") { fs::resize_file(newest_file(folder), fs::file_size(newest_file(folder)) - 1); }
  SECTION("changed") {
    std::fstream file(newest_file(folder), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-2, std::ios::end);
    file << '#';
  }
  spool = open(folder);
  CHECK(all(*spool) == Entries{"1:one", "2:two"});
  CHECK(spool->id() != id);
  CHECK(spool->append("other") == 3);
  CHECK(all(*spool) == Entries{"1:one", "2:two", "3:other"});
  spool.reset();
  CHECK(all(*open(folder)) == Entries{"1:one", "2:two", "3:other"});
}

TEST_CASE("a spool of another boot has other numbers") {
  Folder folder;
  std::string id = open(folder)->id();
  std::ofstream(folder.path + "/id") << id << "\nanother-boot";
  CHECK(open(folder)->id() != id);
}
