// Control groups: parsing of the kernel's texts, and the groups of this machine.
#include "engine/process/cgroup.hpp"

#include <stdlib.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

using namespace flow;

namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Folder() { fs::remove_all(path); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(path + "/" + name).parent_path());
    std::ofstream(path + "/" + name) << text;
  }
  std::string path = fs::temp_directory_path() / "flow-cgroup-XXXXXX";
};

}  // namespace

TEST_CASE("version 1 has one hierarchy per controller") {
  auto groups = parse_cgroups(
      "9:name=systemd:/\n4:memory:/jobs/7\n2:cpu,cpuacct:/jobs/7\n",
      "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
      "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
      "41 31 0:38 / /proc rw - proc proc rw\n");
  REQUIRE(groups.size() == 3);
  CHECK(groups.at("memory").folder == "/sys/fs/cgroup/memory/jobs/7");
  CHECK(groups.at("memory").mount == "/sys/fs/cgroup/memory");
  CHECK(groups.at("cpu").folder == "/sys/fs/cgroup/cpu,cpuacct/jobs/7");
  CHECK(groups.at("cpuacct").folder == groups.at("cpu").folder);
}

TEST_CASE("version 2 has one hierarchy, and blanks in a path are octal escapes") {
  auto groups = parse_cgroups("0::/user.slice/a b\n",
                              "24 1 0:22 / /sys/fs/my\\040group rw - cgroup2 none rw\n");
  REQUIRE(groups.size() == 1);
  CHECK(groups.at("").mount == "/sys/fs/my group");
  CHECK(groups.at("").folder == "/sys/fs/my group/user.slice/a b");
}

TEST_CASE("a container sees its own group at the top, regardless of its name outside") {
  const char* mounts =
      "35 31 0:32 /docker/4f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
      "24 1 0:22 / /sys/fs/cgroup/unified ro - cgroup2 none rw\n";
  auto inside = parse_cgroups("4:memory:/docker/4f\n0::/../..\n", mounts);
  CHECK(inside.at("memory").folder == "/sys/fs/cgroup/memory");
  CHECK(inside.at("").folder == "/sys/fs/cgroup/unified");
  CHECK(parse_cgroups("4:memory:/docker/4f/x\n", mounts).at("memory").folder ==
        "/sys/fs/cgroup/memory/x");
  CHECK(parse_cgroups("4:memory:/docker/4fff\n", mounts).at("memory").folder ==
        "/sys/fs/cgroup/memory");
}

TEST_CASE("a controller that is not mounted, and a truncated line, give no group") {
  CHECK(parse_cgroups("4:memory:/\n", "35 31 0:32 / /m rw - cgroup cgroup rw,cpu\n").empty());
  for (const char* text : {"", "4", "4:memory", "4:memory:", "4:memory:x", "::", "0::"})
    CHECK(parse_cgroups(text, "35 31 0:32 / /m rw - cgroup cgroup rw,memory\n").empty());
}

TEST_CASE("the smallest limit of the group and its ancestors applies") {
  Folder folder;
  std::map<std::string, CgroupHierarchy> groups{{"", {folder.path, folder.path + "/a/b"}}};
  fs::create_directories(folder.path + "/a/b");
  CHECK(cgroup_memory_limit(groups) == 0);
  CHECK(cgroup_cpu_limit_milli(groups) == 0);
  folder.write("a/b/memory.max", "max\n");
  folder.write("a/memory.max", "524288000\n");
  folder.write("memory.max", "1048576000\n");
  folder.write("a/b/cpu.max", "max 100000\n");
  folder.write("a/cpu.max", "50000 100000\n");
  folder.write("cpu.max", "150000 100000\n");
  CHECK(cgroup_memory_limit(groups) == 524288000);
  CHECK(cgroup_cpu_limit_milli(groups) == 500);
  std::map<std::string, CgroupHierarchy> old{{"memory", {folder.path, folder.path + "/v1"}},
                                             {"cpu", {folder.path, folder.path + "/v1"}}};
  folder.write("v1/memory.limit_in_bytes", "9223372036854771712\n");
  folder.write("v1/cpu.cfs_quota_us", "-1\n");
  folder.write("v1/cpu.cfs_period_us", "100000\n");
  CHECK(cgroup_memory_limit(old) == 0);
  CHECK(cgroup_cpu_limit_milli(old) == 0);
  folder.write("memory.limit_in_bytes", "1000000\n");
  folder.write("v1/cpu.cfs_quota_us", "250000\n");
  CHECK(cgroup_memory_limit(old) == 1000000);
  CHECK(cgroup_cpu_limit_milli(old) == 2500);
}

TEST_CASE("kills for lack of memory are counted in both versions") {
  Folder folder;
  folder.write("memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 3\noom_group_kill 0\n");
  folder.write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
  CHECK(cgroup_oom_kills({{"", {folder.path, folder.path}}}) == 3);
  CHECK(cgroup_oom_kills({{"memory", {folder.path, folder.path}}}) == 5);
  CHECK(Cgroup(folder.path, true, true).oom_kills() == 3);
  CHECK(Cgroup(folder.path, false, true).oom_kills() == 5);
  CHECK(Cgroup(folder.path, true, false).oom_kills() == 0);
}

TEST_CASE("a control group can be created and removed if the system allows it") {
  CgroupParent parent = CgroupParent::find(own_cgroups());
  CHECK(parent.has_memory() == parent.why_no_memory().empty());
  if (!parent.exists()) return;
  Cgroup group = parent.make("flow-test-" + std::to_string(::getpid()));
  REQUIRE(group.exists());
  CHECK(cgroup_members(group.folder()).empty());
  if (group.has_memory()) {
    CHECK(group.set_memory_limit(64 << 20));
    CHECK(group.set_memory_limit(0));
  }
  CHECK(remove_cgroup(group.folder()));
  CHECK_FALSE(fs::exists(group.folder()));
}
