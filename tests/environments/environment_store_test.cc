// Environments that are built once, found again and removed.
#include "engine/environments/environment_store.hpp"

#include <catch2/catch.hpp>
#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/base/temporary_folder.hpp"
#include "engine/blobs/folder.hpp"

namespace flow {

namespace {

const std::string kKey(64, 'a'), kOther(64, 'b');

std::string build(const std::string& environments, const std::string& key, const char* name) {
  std::string folder = environments + "/" + key + "." + name;
  REQUIRE(make_dirs(folder + "/prefix").ok());
  REQUIRE(write_file_atomic(folder + "/prefix/file", "12345").ok());
  return key + "." + name;
}

bool exists(const std::string& path) {
  return std::filesystem::exists(std::filesystem::symlink_status(path));
}

}  // namespace

TEST_CASE("an environment is found once it is published") {
  auto folder = make_temporary_folder();
  CHECK(finished_environment(**folder, kKey) == "");
  std::string name = build(**folder, kKey, "one");
  CHECK(finished_environment(**folder, kKey) == "");
  REQUIRE(publish_environment(**folder, kKey, name).ok());
  CHECK(finished_environment(**folder, kKey) == **folder + "/" + name);
}

TEST_CASE("a link to a folder that is gone is not finished") {
  auto folder = make_temporary_folder();
  CHECK_FALSE(publish_environment(**folder, kKey, kKey + ".gone").ok());
  std::string name = build(**folder, kKey, "one");
  REQUIRE(publish_environment(**folder, kKey, name).ok());
  REQUIRE(remove_tree(**folder + "/" + name).ok());
  CHECK(finished_environment(**folder, kKey) == "");
}

TEST_CASE("one process at a time builds an environment") {
  auto folder = make_temporary_folder();
  EnvironmentLock first(**folder, kKey), second(**folder, kKey), other(**folder, kOther);
  CHECK(*first.try_acquire());
  CHECK_FALSE(*second.try_acquire());
  CHECK(*other.try_acquire());
}

TEST_CASE("what an interrupted build left is removed, the finished environment is not") {
  auto folder = make_temporary_folder();
  REQUIRE(publish_environment(**folder, kKey, build(**folder, kKey, "done")).ok());
  build(**folder, kKey, "begun");
  build(**folder, kOther, "begun");
  remove_unfinished_environments(**folder, kKey);
  CHECK(finished_environment(**folder, kKey) != "");
  CHECK_FALSE(exists(**folder + "/" + kKey + ".begun"));
  CHECK(exists(**folder + "/" + kOther + ".begun"));
}

TEST_CASE("unused environments are removed unless one is being built") {
  auto folder = make_temporary_folder();
  const std::string busy(64, 'c');
  for (const std::string& key : {kKey, kOther, busy})
    REQUIRE(publish_environment(**folder, key, build(**folder, key, "x")).ok());
  REQUIRE(write_file_atomic(**folder + "/notes.txt", "of a user").ok());
  EnvironmentLock lock(**folder, busy);
  REQUIRE(*lock.try_acquire());
  CHECK(remove_unused_environments(**folder, {kKey}) == 5);
  CHECK(remove_unused_environments(**folder, {kKey}) == 0);
  CHECK(finished_environment(**folder, kKey) != "");
  CHECK(finished_environment(**folder, busy) != "");
  CHECK_FALSE(exists(**folder + "/" + kOther));
  CHECK_FALSE(exists(**folder + "/" + kOther + ".x"));
  CHECK(exists(**folder + "/notes.txt"));
}

}  // namespace flow
