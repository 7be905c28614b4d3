#include "engine/blobs/folder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"

using namespace flow;
namespace fs = std::filesystem;

namespace {

struct Tree {
  const std::string path = (fs::temp_directory_path() / ("flow-tree-" + random_name())).string();
  Tree() { REQUIRE(make_dirs(path).ok()); }
  ~Tree() { (void)remove_tree(path); }
  std::string operator/(const std::string& name) const { return path + "/" + name; }
  void file(const std::string& name) const {
    REQUIRE(make_dirs(fs::path(*this / name).parent_path().string()).ok());
    std::ofstream(*this / name) << name;
  }
  void link(const std::string& target, const std::string& name) const {
    REQUIRE(::symlink(target.c_str(), (*this / name).c_str()) == 0);
  }
};

Error call_error(const char* what, const std::string& path, int code) {
  return environment_error(std::string(what) + " " + path + ": " + std::strerror(code));
}

std::vector<std::string> names_in(const std::string& folder, const std::string& left_out = "") {
  auto listing = list_folder(folder, left_out, call_error);
  REQUIRE(listing.ok());
  std::vector<std::string> names;
  for (const FolderFile& file : listing->files) names.push_back(file.path);
  return names;
}

std::string problem_of(const std::string& folder) {
  auto listing = list_folder(folder, "", call_error);
  REQUIRE_FALSE(listing.ok());
  return listing.error().message;
}

}  // namespace

TEST_CASE("a folder consists of its files, including those behind links, without skipped ones") {
  Tree tree;
  for (const char* name : {"d/b", "d/a/x", "d/skipped/y", "other/z"}) tree.file(name);
  tree.link("../other", "d/c");
  tree.link("b", "d/link");
  REQUIRE(make_dirs(tree / "d/empty").ok());
  CHECK(names_in(tree / "d", "skipped") == std::vector<std::string>{"a/x", "b", "c/z", "link"});
  CHECK(names_in(tree / "d").size() == 5);
}

TEST_CASE("circular links, broken links and pipes are not allowed in a folder") {
  Tree tree;
  tree.file("d/a/x");
  for (const char* target : {".", "..", "../..", "/"}) {
    INFO(target);
    tree.link(target, "d/a/up");
    CHECK_THAT(problem_of(tree / "d"),
               Catch::Contains("`a/up` in the folder") &&
                   Catch::Contains("a symbolic link to a folder that contains it"));
    REQUIRE(::unlink((tree / "d/a/up").c_str()) == 0);
  }
  tree.link("nowhere", "d/lost");
  CHECK_THAT(problem_of(tree / "d"),
             Catch::Contains("a symbolic link to `nowhere`, which does not exist"));
  REQUIRE(::unlink((tree / "d/lost").c_str()) == 0);
  tree.file("e/x");
  tree.link("../e", "d/e");
  tree.link("../d", "e/d");  // a cycle of two links
  CHECK_THAT(
      problem_of(tree / "d"),
      Catch::Contains("`e/d`") && Catch::Contains("a symbolic link to a folder that contains it"));
  REQUIRE(::unlink((tree / "e/d").c_str()) == 0);
  REQUIRE(::mkfifo((tree / "d/pipe").c_str(), 0600) == 0);
  CHECK_THAT(problem_of(tree / "d"), Catch::Contains("is a named pipe"));
}

TEST_CASE("a state inside a folder is skipped, and a state is not accepted as a folder") {
  Tree tree;
  for (const char* name : {"d/x", "d/below/.flow/lock", "d/below/.flow/db/CURRENT", "d/lock"})
    tree.file(name);
  auto listing = list_folder(tree / "d", "", call_error);
  REQUIRE(listing.ok());
  CHECK(listing->states == std::vector<std::string>{"below/.flow"});
  CHECK(names_in(tree / "d") == std::vector<std::string>{"lock", "x"});
  CHECK_THAT(problem_of(tree / "d/below/.flow"), Catch::Contains("is the state of a flow"));
}

TEST_CASE("different listings have different digests") {
  const Digest one = sha256("one"), two = sha256("two");
  auto of = [](std::vector<File::Entry> entries) { return folder_digest(entries); };
  File::Entry a{"a", false, 3, one}, b{"b", false, 3, two};
  CHECK(of({a, b}) == sha256(one.hex() + " 0 a\n" + two.hex() + " 0 b\n"));
  File::Entry crafted{"a\n" + two.hex() + " 0 b", false, 3, one};
  CHECK(of({crafted}) != of({a, b}));
  CHECK(of({{"x\ny", false, 3, one}}) != of({{"x\\ny", false, 3, one}}));
  CHECK(of({{"x\\", false, 3, one}}) != of({{"x\\\\", false, 3, one}}));
}

TEST_CASE("a tree is removed with its write-protected folders, and links are not followed") {
  Tree tree;
  for (const char* name : {"d/a/x", "d/b/c/y", "kept/z"}) tree.file(name);
  tree.link("../../kept", "d/a/away");
  tree.link("../kept/z", "d/file");
  REQUIRE(::chmod((tree / "kept").c_str(), 0555) == 0);
  for (const char* folder : {"d/b/c", "d/b", "d/a", "d"})
    REQUIRE(::chmod((tree / folder).c_str(), 0) == 0);
  CHECK(remove_tree(tree / "d").ok());
  CHECK_FALSE(fs::exists(fs::symlink_status(tree / "d")));
  CHECK(fs::exists(tree / "kept/z"));
  struct stat info {};
  REQUIRE(::stat((tree / "kept").c_str(), &info) == 0);
  CHECK((info.st_mode & 07777) == 0555);
  tree.link("kept", "top");
  CHECK(remove_tree(tree / "top/").ok());  // the link itself
  CHECK(fs::exists(tree / "kept/z"));
  CHECK(remove_tree(tree / "top").ok());  // nothing there
  CHECK(remove_tree(tree / "no/such").ok());
}

TEST_CASE("a path lies inside a folder if its real parent does") {
  Tree tree;
  for (const char* name : {"out/a/x", "other/y"}) tree.file(name);
  tree.link("out", "link");
  tree.link("../other", "out/away");
  tree.link("a", "out/b");
  CHECK(lies_inside(tree / "link", tree / "out/a/new"));
  CHECK(lies_inside(tree / "out", tree / "link/b/new"));
  CHECK(lies_inside(tree / "out", tree / "out/new"));
  CHECK_FALSE(lies_inside(tree / "out", tree / "out/away/new"));
  CHECK_FALSE(lies_inside(tree / "out/a", tree / "out/new"));
  CHECK_FALSE(lies_inside(tree / "out", tree / "out/none/new"));
}
