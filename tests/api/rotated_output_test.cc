// The bound of a file that several processes append to.
#include "engine/api/rotated_output.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "tests/api/temp_folder.hpp"

using namespace flow;

namespace {

/// A descriptor whose output goes to the file, as that of one of several processes.
struct RotatedWriter {
  explicit RotatedWriter(const std::string& path)
      : descriptor(::open("/dev/null", O_WRONLY)),
        options{path, {descriptor}, 1000, std::chrono::milliseconds(1)} {
    REQUIRE(RotatedOutput::redirect(options).ok());
    output.emplace(options);
  }
  ~RotatedWriter() {
    output.reset();
    ::close(descriptor);
  }
  void write(size_t size) const {
    std::string text(size, 'a');
    CHECK(::write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(size));
  }

  int descriptor;
  RotatedOutputOptions options;
  std::optional<RotatedOutput> output;
};

uintmax_t rotated_size(const std::string& path) {
  std::error_code failed;
  auto size = std::filesystem::file_size(path, failed);
  return failed ? 0 : size;
}

}  // namespace

TEST_CASE("a log that several processes append to is renamed once when it is full") {
  test::TempFolder folder;
  const std::string path = (folder.path / "out.log").string(), before = path + ".1";
  RotatedWriter one(path), two(path);
  one.write(300);
  two.write(300);
  CHECK(rotated_size(path) == 600);
  one.write(500);
  while (rotated_size(before) != 1100) std::this_thread::yield();
  // Both follow.
  while (rotated_size(path) == 0) {
    two.write(1);
    std::this_thread::yield();
  }
  auto two_wrote = rotated_size(path);
  while (rotated_size(path) == two_wrote) {
    one.write(1);
    std::this_thread::yield();
  }
  CHECK(std::filesystem::exists(before));
}
