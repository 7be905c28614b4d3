// Compiled kernels as files: complete or ignored, shared by many processes.
#include "kernels/jit/cache.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/kernels/jit/folder.hpp"

using namespace flow;
using namespace flow::jit;
namespace fs = std::filesystem;

namespace {

const KernelImage kImage{false, "_Z5saxpyfPKf", std::string("code\0code", 9)};

void write(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

TEST_CASE("an image is read back from its bytes, and from no others") {
  Digest key = sha256("key");
  std::string bytes = encode_image(key, kImage);
  auto back = decode_image(key, bytes);
  REQUIRE(back);
  CHECK(back->entry == kImage.entry);
  CHECK(back->bytes == kImage.bytes);
  CHECK_FALSE(back->is_ptx);
  CHECK(decode_image(key, encode_image(key, {true, "f", "text"}))->is_ptx);
  CHECK_FALSE(decode_image(sha256("another"), bytes));
  for (size_t at = 0; at < bytes.size(); at++) {
    CHECK_FALSE(decode_image(key, std::string_view(bytes).substr(0, at)));
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    CHECK_FALSE(decode_image(key, flipped));
  }
  CHECK_FALSE(decode_image(key, bytes + "x"));
  CHECK_FALSE(decode_image(key, encode_image(key, {false, "", "code"})));
  CHECK_FALSE(decode_image(key, encode_image(key, {false, "f", ""})));
  CHECK_FALSE(
      decode_image(key, encode_image(key, {false, std::string(kEntryMax + 1, 'f'), "code"})));
  CHECK(decode_image(key, encode_image(key, {false, std::string(kEntryMax, 'f'), "code"})));
}

TEST_CASE("a key covers everything that the compiler is given") {
  CompileRequest order{"f", "text", {}, 90};
  Digest key = key_of(order, "13.0", {"-arch", "-D"});
  CHECK(key == key_of(order, "13.0", {"-arch", "-D"}));
  CHECK_FALSE(key == key_of(order, "13.1", {"-arch", "-D"}));
  CHECK_FALSE(key == key_of(order, "13.0", {"-arch-D"}));
  CHECK_FALSE(key == key_of({"g", "text", {}, 90}, "13.0", {"-arch", "-D"}));
  CHECK_FALSE(key == key_of({"f", "text ", {}, 90}, "13.0", {"-arch", "-D"}));
}

TEST_CASE("a broken file is ignored and replaced") {
  Folder folder;
  Cache cache(folder.path + "/kernels");
  Digest key = sha256("key");
  CHECK_FALSE(cache.find(key));
  cache.keep(key, kImage);
  REQUIRE(cache.find(key));
  fs::path file = fs::path(folder.path) / "kernels" / key.hex();
  for (std::string_view bytes : {"", "half", "flow-kernel\1"}) {
    write(file, bytes);
    CHECK_FALSE(cache.find(key));
    cache.keep(key, kImage);
    CHECK(cache.find(key));
  }
  CHECK(std::distance(fs::directory_iterator(file.parent_path()), {}) == 1);
  fs::remove(file);
  fs::create_directory(file);  // a folder is ignored too
  CHECK_FALSE(cache.find(key));
  fs::remove(file);
  REQUIRE(mkfifo(file.c_str(), 0600) == 0);
  CHECK_FALSE(cache.find(key));
  fs::path elsewhere = fs::path(folder.path) / "elsewhere";
  write(elsewhere, encode_image(key, kImage));
  fs::remove(file);
  fs::create_symlink(elsewhere, file);
  CHECK_FALSE(cache.find(key));
  write(elsewhere, "mine");
  cache.keep(key, kImage);
  CHECK(cache.find(key));
  CHECK(fs::file_size(elsewhere) == 4);
  CHECK_FALSE(fs::is_symlink(file));
  Cache nowhere(folder.path + "/none/kernels");  // cannot be created
  nowhere.keep(key, kImage);
  CHECK_FALSE(nowhere.find(key));
}

TEST_CASE("processes that write and read at once see complete files") {
  Folder folder;
  Cache cache(folder.path + "/kernels");
  Digest key = sha256("key");
  KernelImage image{false, "f", std::string(300'000, 'c')};
  std::vector<pid_t> children;
  for (int child = 0; child < 4; child++) {
    children.push_back(fork());
    REQUIRE(children.back() >= 0);
    if (children.back() > 0) continue;
    bool whole = true;
    for (int i = 0; i < 100; i++) {
      cache.keep(key, image);
      auto found = cache.find(key);
      whole = whole && found && found->bytes == image.bytes;
    }
    _exit(whole ? 0 : 1);
  }
  for (pid_t child : children) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  CHECK(std::distance(fs::directory_iterator(folder.path + "/kernels"), {}) == 1);
}

TEST_CASE("of too many files the least recently used are removed") {
  Folder folder;
  Cache cache(folder.path);
  auto key_at = [](size_t i) { return sha256(std::to_string(i)); };
  cache.keep(key_at(0), kImage);
  auto hour = std::chrono::hours(1);
  for (size_t i = 1; i < kCachedMax; i++) {
    fs::path file = fs::path(folder.path) / key_at(i).hex();
    write(file, "old");
    fs::last_write_time(file, fs::file_time_type::clock::now() - hour * static_cast<int>(i));
  }
  REQUIRE(cache.find(key_at(0)));
  cache.keep(key_at(kCachedMax), kImage);
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == static_cast<int>(kCachedMax));
  CHECK_FALSE(fs::exists(fs::path(folder.path) / key_at(kCachedMax - 1).hex()));
  CHECK(fs::exists(fs::path(folder.path) / key_at(kCachedMax - 2).hex()));
  CHECK(cache.find(key_at(0)));
}
