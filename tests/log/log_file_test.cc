#include "engine/log/log_file.hpp"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdint>

#include "tests/log/temp_folder.hpp"

using namespace flow;
using flow::log::LogFile;
namespace fs = std::filesystem;

namespace {

/// Simulates a full disk: no file of this process grows beyond `bytes` during its lifetime.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

ErrorKind kind_of_error(const std::string& path) {
  auto file = LogFile::open(path);
  REQUIRE(!file.ok());
  CHECK(file.error().message.find("the log file `" + path + "`") != std::string::npos);
  return file.error().kind;
}

}  // namespace

TEST_CASE("lines are appended to a file that exists") {
  TempFolder folder;
  for (const char* line : {"one", "two"}) {
    auto file = LogFile::open(folder / "flow.log");
    REQUIRE(file.ok());
    CHECK((*file)->write(line).empty());
    CHECK(read_file(folder / "flow.log").ends_with(std::string(line) + "\n"));
  }
  CHECK(read_file(folder / "flow.log") == "one\ntwo\n");
}

TEST_CASE("a full file is renamed, and five files are kept") {
  TempFolder folder;
  auto file = LogFile::open(folder / "flow.log", 100);
  REQUIRE(file.ok());
  std::string line(49, 'x');
  for (int i = 0; i < 40; i++) REQUIRE((*file)->write(line).empty());
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path)) {
    names.push_back(entry.path().filename().string());
    CHECK(entry.file_size() == 100);
  }
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"flow.1.log", "flow.2.log", "flow.3.log", "flow.4.log",
                                          "flow.log"});
}

TEST_CASE("a folder, a pipe and a device are rejected") {
  TempFolder folder;
  ::mkfifo((folder / "pipe").c_str(), 0600);
  CHECK(kind_of_error(folder.path) == ErrorKind::user);
  CHECK(kind_of_error(folder / "pipe") == ErrorKind::user);
  CHECK(kind_of_error("/dev/null") == ErrorKind::user);
  CHECK(kind_of_error(folder / "none/flow.log") == ErrorKind::environment);
  CHECK(!fs::exists(folder / "none"));
}

TEST_CASE("a file has one log per process, whatever its path") {
  TempFolder folder;
  auto first = LogFile::open(folder / "flow.log");
  REQUIRE(first.ok());
  auto second = LogFile::open(folder / "./flow.log");
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().message.find("is in use by another engine or worker of this process") !=
        std::string::npos);
  first->reset();
  CHECK(LogFile::open(folder / "flow.log").ok());
}

TEST_CASE("a line that does not fit on the disk leaves no partial line") {
  TempFolder folder;
  auto file = LogFile::open(folder / "flow.log");
  REQUIRE(file.ok());
  REQUIRE((*file)->write("one").empty());
  {
    FileSizeLimit limit(10);
    CHECK(!(*file)->write("a line that is too long").empty());
    CHECK(!(*file)->write("another one of these").empty());
    CHECK((*file)->write("short").empty());
  }
  CHECK((*file)->write("the last line").empty());
  CHECK(read_file(folder / "flow.log") == "one\nshort\nthe last line\n");
}
