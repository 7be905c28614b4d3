// Which input files a pattern names.
#include "engine/blobs/input_listing.hpp"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "engine/base/glob.hpp"
#include "engine/base/ids.hpp"
#include "engine/blobs/folder.hpp"

using namespace flow;
namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  void add(const std::string& name) const {
    fs::create_directories(fs::path(path + "/" + name).parent_path());
    std::ofstream(path + "/" + name) << name;
  }
  /// The listing, relative to the folder.
  std::vector<std::string> list(const std::string& pattern) const {
    auto found = list_inputs(path, pattern);
    REQUIRE(found.ok());
    std::vector<std::string> names;
    for (const std::string& each : *found)
      names.push_back(fs::path(each).lexically_relative(path).string());
    return names;
  }
  std::string problem(const std::string& pattern) const {
    auto found = list_inputs(path, pattern);
    REQUIRE(!found.ok());
    return found.error().message;
  }

  const std::string path = fs::temp_directory_path() / ("flow-inputs-" + random_name());
};

using Paths = std::vector<std::string>;

}  // namespace

TEST_CASE("a pattern of inputs lists regular files bytewise, each once") {
  Folder folder;
  for (const char* name : {"reads/s2.gz", "reads/s10.gz", "reads/S1.gz", "reads/.hidden.gz",
                           "reads/deep/s3.gz", "reads/note.txt", "top.gz"})
    folder.add(name);
  fs::create_symlink("../top.gz", folder.path + "/reads/link.gz");
  fs::create_directory_symlink("deep", folder.path + "/reads/linked");
  fs::create_directories(folder.path + "/reads/folder.gz");

  CHECK(folder.list("reads/*.gz") ==
        Paths{"reads/S1.gz", "reads/link.gz", "reads/s10.gz", "reads/s2.gz"});
  CHECK(folder.list("reads/{s2,s*}.gz") == Paths{"reads/s10.gz", "reads/s2.gz"});
  CHECK(folder.list("**/s[0-9].gz") == Paths{"reads/deep/s3.gz", "reads/s2.gz"});
  CHECK(folder.list("reads/.*.gz") == Paths{"reads/.hidden.gz"});
  CHECK(folder.list("{top.gz,reads/../top.gz,./top.gz}") == Paths{"top.gz"});
  CHECK(folder.list(folder.path + "/reads/*.txt") == Paths{"reads/note.txt"});
  CHECK(folder.list("reads").empty());
}

TEST_CASE("a pattern of inputs matches nothing below a state of flow") {
  Folder folder;
  for (const char* name : {"state/lock", "state/db/CURRENT", "state/objects/x.gz", "a.gz"})
    folder.add(name);
  REQUIRE(is_state_folder(folder.path + "/state"));

  CHECK(folder.list("**/*.gz") == Paths{"a.gz"});
  CHECK(folder.list("state/objects/*").empty());
  auto inside = list_inputs(folder.path + "/state/objects", "*.gz");
  REQUIRE(inside.ok());
  CHECK(*inside == Paths{folder.path + "/state/objects/x.gz"});
}

TEST_CASE("a pattern of inputs that matches what is not a file is an error") {
  Folder folder;
  folder.add("a.gz");
  fs::create_symlink("nowhere", folder.path + "/b.gz");
  std::string match = "matches `" + folder.path + "/b.gz`, which is ";
  std::string remedy = ": remove it, or write a pattern that does not match it";
  std::string broken = match + "a symbolic link to `nowhere`, which does not exist" + remedy;
  CHECK(folder.problem("*.gz") == "the pattern `*.gz` " + broken);
  CHECK(folder.problem("**/*.gz") == "the pattern `**/*.gz` " + broken);

  fs::remove(folder.path + "/b.gz");
  REQUIRE(::mkfifo((folder.path + "/b.gz").c_str(), 0600) == 0);
  CHECK(folder.problem("**") ==
        "the pattern `**` " + match + "neither a file nor a folder" + remedy);
}

TEST_CASE("a pattern without a match names the nearest folder that exists") {
  Folder folder;
  folder.add("reads/a.txt");
  CHECK(no_match_text(folder.path, "reads/*.gz") ==
        "no file matches `reads/*.gz`: the folder `" + folder.path + "/reads` has none");
  CHECK(no_match_text(folder.path, "raeds/x/*.gz") ==
        "no file matches `raeds/x/*.gz`: `" + folder.path +
            "/raeds/x` is not a folder; the nearest folder that exists is `" + folder.path + "`");
  CHECK(no_match_text(folder.path, "reads/a.txt/*") ==
        "no file matches `reads/a.txt/*`: `" + folder.path +
            "/reads/a.txt` is not a folder; the nearest folder that exists is `" + folder.path +
            "/reads`");
}

TEST_CASE("the literal prefix of a pattern ends before its first wildcard") {
  CHECK(literal_prefix("a/b/*.gz") == "a/b/");
  CHECK(literal_prefix("a\\*/b?/c") == "a*/");
  CHECK(literal_prefix("/data/{a,b/c}/x") == "/data/");
  CHECK(literal_prefix("x.gz") == "");
}
