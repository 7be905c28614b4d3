#include "engine/cluster/session/secret.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "engine/base/files.hpp"

namespace flow::cluster {
namespace {

using Catch::Matchers::Contains;

const std::string kText = "00112233445566778899aabbccddeeff000102030405060708090A0B0C0D0E0F\n";

struct Folder {
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "flow-secret-XXXXXX";
    path = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const std::string& text, mode_t mode = 0600) const {
    std::string name = path + "/secret";
    std::ofstream(name, std::ios::binary) << text;
    ::chmod(name.c_str(), mode);
    return name;
  }
  size_t files() const {
    auto all = std::filesystem::directory_iterator(path);
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }
  std::string path;
};

TEST_CASE("a secret has 64 digits of either case and a newline") {
  Folder folder;
  auto secret = read_secret(folder.file(kText));
  REQUIRE(secret.ok());
  CHECK(secret->bytes[0] == 0);
  CHECK(secret->bytes[1] == 0x11);
  CHECK(secret->bytes[15] == 0xff);
  CHECK(secret->bytes[31] == 0x0f);
}

TEST_CASE("any other form is rejected with its description and the expected form") {
  Folder folder;
  auto refusal = [&](const std::string& text) {
    auto secret = read_secret(folder.file(text));
    REQUIRE_FALSE(secret.ok());
    CHECK_THAT(secret.error().message,
               Contains("`" + folder.path + "/secret` is not a secret of a cluster"));
    CHECK_THAT(secret.error().message,
               Contains("64 hexadecimal digits, as `openssl rand -hex 32` prints"));
    return secret.error().message;
  };
  CHECK_THAT(refusal(""), Contains("it has nothing"));
  CHECK_THAT(refusal(std::string(32, '\x9c')), Contains("it has 32 raw bytes"));
  CHECK_THAT(refusal(kText.substr(0, 63)), Contains("it has 63 bytes"));
  CHECK_THAT(refusal(kText.substr(1)), Contains("it has "));
  CHECK_THAT(refusal(kText + "\n"), Contains("more than 65 bytes"));
  CHECK_THAT(refusal("g" + kText.substr(1)), Contains("other characters"));
  CHECK_THAT(refusal(kText.substr(0, 64) + " "), Contains("other characters"));
  CHECK_THAT(refusal(kText.substr(0, 63) + std::string("\0\n", 2)), Contains("other characters"));
  CHECK_THAT(refusal("hunter2\n"), Contains("it has 8 bytes"));
}

TEST_CASE("the newline of a secret is optional, and may be that of Windows") {
  Folder folder;
  auto plain = read_secret(folder.file(kText));
  REQUIRE(plain.ok());
  std::string digits = kText.substr(0, 64);
  for (const std::string& text : {digits, digits + "\r\n", digits + "\r"}) {
    auto secret = read_secret(folder.file(text));
    REQUIRE(secret.ok());
    CHECK(secret->bytes == plain->bytes);
  }
}

TEST_CASE("a secret that others may access is rejected with the command that fixes it") {
  Folder folder;
  for (mode_t mode : {0640, 0604, 0620, 0601, 0666}) {
    auto secret = read_secret(folder.file(kText, mode));
    REQUIRE_FALSE(secret.ok());
    CHECK_THAT(secret.error().message, Contains("may be read or written by others: `chmod 600 " +
                                                folder.path + "/secret`"));
  }
  CHECK(read_secret(folder.file(kText, 0400)).ok());
  CHECK(read_secret(folder.file(kText, 0440)).ok());  // a volume for the group of a pod
}

TEST_CASE("a path that is not a regular file is rejected at once") {
  Folder folder;
  CHECK_THAT(read_secret(folder.path).error().message, Contains("is not a file"));
  std::string pipe = folder.path + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THAT(read_secret(pipe).error().message, Contains("is not a file"));
  CHECK_THAT(read_secret(folder.path + "/none").error().message,
             Contains("No such file or directory. The head makes one"));
}

TEST_CASE("a link to a secret is followed, because mounted secrets are links") {
  Folder folder;
  std::string link = folder.path + "/link";
  REQUIRE(::symlink(folder.file(kText).c_str(), link.c_str()) == 0);
  CHECK(read_secret(link).ok());
}

TEST_CASE("the head creates a secret once, readable only by its owner") {
  Folder folder;
  std::string path = folder.path + "/secret";
  auto made = read_or_make_secret(path);
  REQUIRE(made.ok());
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 07777) == 0600);
  CHECK(info.st_size == 65);
  CHECK(made->bytes != Secret{}.bytes);
  auto again = read_or_make_secret(path);
  REQUIRE(again.ok());
  CHECK(again->bytes == made->bytes);
  CHECK(folder.files() == 1);
}

TEST_CASE("an existing file is never replaced, valid or not") {
  Folder folder;
  std::string path = folder.file("mine\n");
  CHECK_FALSE(read_or_make_secret(path).ok());
  CHECK(*read_file(path) == "mine\n");
}

TEST_CASE("a secret cannot be created in a missing folder, and the error says so") {
  Folder folder;
  auto made = read_or_make_secret(folder.path + "/none/secret");
  REQUIRE_FALSE(made.ok());
  CHECK_THAT(made.error().message, Contains("cannot make the cluster's secret `" + folder.path +
                                            "/none/secret`: No such file"));
}

TEST_CASE("heads that create a secret concurrently all get the same one") {
  Folder folder;
  std::string path = folder.path + "/secret";
  std::vector<Secret> secrets(8);
  std::vector<std::thread> threads;
  for (Secret& each : secrets)
    threads.emplace_back([&] {
      auto made = read_or_make_secret(path);
      if (made.ok()) each = *made;
    });
  for (auto& thread : threads) thread.join();
  for (const Secret& each : secrets) {
    CHECK(each.bytes == secrets[0].bytes);
    CHECK(each.bytes != Secret{}.bytes);
  }
  CHECK(folder.files() == 1);
}

}  // namespace
}  // namespace flow::cluster
