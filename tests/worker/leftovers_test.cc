// Records of processes that an engine may leave behind, and the id of a state.
#include "engine/worker/leftovers.hpp"

#include <chrono>
#include <filesystem>

#include "engine/base/files.hpp"
#include "tests/worker/temp_folder.hpp"

using namespace flow;
using test::TempFolder;

namespace {

const std::string kBoot = "1dfd0ec5-4f57-4b8e-9a7c-0b1d6c1c8a11";
const std::string kState = "k3f9x2mbek2m";

}  // namespace

TEST_CASE("the record of a program is its complete first line") {
  auto record = parse_program_record(kBoot + " 123456 4242 /home/a b/.flow/scratch/r/t.0@1\n");
  REQUIRE(record);
  CHECK(record->boot == kBoot);
  CHECK(record->start_ticks == 123456);
  CHECK(record->group == 4242);
  for (const char* rest : {"", " 12", " 12 34", " 12 1 /\n", " 12 0 /\n", " 12 -5 /\n", " x 34 /\n",
                           " 12 34x /\n", " 12 99999999999 /\n", " -1 34 /\n"})
    CHECK_FALSE(parse_program_record(kBoot + rest));
}

TEST_CASE("the record of a control group names a group that an engine on this state creates") {
  std::string folder = "/sys/fs/cgroup/a b/" + cgroup_name(kState, "abc123");
  auto record = parse_cgroup_record(kBoot + " " + folder + "\n", kState);
  REQUIRE(record);
  CHECK(record->folder == folder);
  for (const std::string& other :
       {std::string("/sys/fs/cgroup"), std::string("/sys/fs/cgroup/memory/user"), folder + "/x",
        folder.substr(1), "/a/../" + cgroup_name(kState, "abc"), "/" + cgroup_name(kState, ""),
        "/a/" + cgroup_name("another", "abc123")})
    CHECK_FALSE(parse_cgroup_record(kBoot + " " + other + "\n", kState));
  CHECK_FALSE(parse_cgroup_record(kBoot + " " + folder, kState));  // truncated
}

TEST_CASE("old empty groups are removed, and no others") {
  TempFolder temp;
  std::string parent = temp / "parent";
  for (const char* name : {"flow-old-a", "flow-full-a/x", "flow-new-a", "other"})
    test::fs::create_directories(parent + "/" + name);
  auto long_ago = test::fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const char* name : {"flow-old-a", "flow-full-a", "other"})
    test::fs::last_write_time(parent + "/" + name, long_ago);
  remove_old_cgroups(parent);
  CHECK_FALSE(test::fs::exists(parent + "/flow-old-a"));
  for (const char* name : {"flow-full-a", "flow-new-a", "other"})
    CHECK(test::fs::exists(parent + "/" + name));
  remove_old_cgroups(temp / "nothing");
  remove_old_cgroups("");
}

TEST_CASE("a state keeps its id under every path, and a copy gets another id") {
  TempFolder temp;
  std::string state = temp / "state", link = temp / "link", copy = temp / "copy";
  auto id = state_id(state);
  REQUIRE(id.ok());
  test::fs::create_directory_symlink(state, link);
  CHECK(*state_id(link) == *id);
  test::fs::create_directories(state + "/scratch/slots");
  REQUIRE(write_file_atomic(state + "/scratch/slots/7", kBoot + " 1 7 /\n").ok());
  test::fs::copy(state, copy, test::fs::copy_options::recursive);
  CHECK(*state_id(copy) != *id);
  CHECK_FALSE(test::fs::exists(copy + "/scratch/slots/7"));  // process of the original
  CHECK(test::fs::exists(state + "/scratch/slots/7"));
  CHECK(*state_id(state) == *id);
}
