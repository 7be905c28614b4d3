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

/// A folder on a disk that fills up.
class FillingFolder final : public SpoolFolder {
 public:
  FillingFolder(const std::string& dir, const bool& is_full)
      : folder_(open_spool_folder(dir)), is_full_(is_full) {}
  Result<std::vector<std::string>> names() override { return folder_->names(); }
  Result<std::unique_ptr<SpoolFile>> open(const std::string& name) override {
    return folder_->open(name);
  }
  Result<std::unique_ptr<SpoolFile>> create(const std::string& name) override {
    if (is_full_) return environment_error("the disk is full");
    auto file = folder_->create(name);
    FLOW_TRY(file);
    return std::unique_ptr<SpoolFile>(std::make_unique<File>(std::move(*file), is_full_));
  }
  Status replace(const std::string& name, std::string_view content) override {
    return folder_->replace(name, content);
  }
  void remove(const std::string& name) override { folder_->remove(name); }
  std::string boot_id() const override { return folder_->boot_id(); }

 private:
  class File final : public SpoolFile {
   public:
    File(std::unique_ptr<SpoolFile> file, const bool& is_full)
        : file_(std::move(file)), is_full_(is_full) {}
    uint64_t size() const override { return file_->size(); }
    Result<std::string> read(uint64_t offset, size_t size) const override {
      return file_->read(offset, size);
    }
    Status write(uint64_t offset, std::string_view bytes) override {
      Status written = file_->write(offset, bytes.substr(0, is_full_ ? 3 : bytes.size()));
      return is_full_ ? Status(environment_error("the disk is full")) : written;
    }
    Status truncate(uint64_t size) override { return file_->truncate(size); }

   private:
    const std::unique_ptr<SpoolFile> file_;
    const bool& is_full_;
  };
  const std::shared_ptr<SpoolFolder> folder_;
  const bool& is_full_;
};

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

TEST_CASE("a number that was in memory only is not used again under the same id") {
  Folder folder;
  bool is_full = false;
  auto open_filling = [&] {
    auto spool = ReportSpool::open(std::make_shared<FillingFolder>(folder.path, is_full));
    REQUIRE(spool.ok());
    return std::move(*spool);
  };
  auto spool = open_filling();
  std::string id = spool->id();
  CHECK(spool->append("one") == 1);
  is_full = true;
  CHECK(spool->append("two") == 2);
  CHECK(spool->problem() == "the disk is full");
  CHECK(all(*spool) == Entries{"1:one", "2:two"});
  SECTION("the process ends: the head may have the report that is lost") {
    is_full = false;
    spool.reset();
    spool = open_filling();
    CHECK(spool->id() != id);
    CHECK(all(*spool) == Entries{"1:one"});
    CHECK(spool->append("another") == 2);
  }
  SECTION("all are acknowledged before it ends") {
    bool is_full_for_longer = GENERATE(false, true);
    is_full = is_full_for_longer;
    spool->acknowledge(2);
    is_full = false;
    CHECK(spool->append("three") == 3);
    spool.reset();
    spool = open_filling();
    CHECK(spool->id() == id);
    CHECK(all(*spool) == Entries{"3:three"});
  }
}
