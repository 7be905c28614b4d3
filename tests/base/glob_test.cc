// Which paths a pattern matches, and how braces expand.
#include "engine/base/glob.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "engine/base/ids.hpp"

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
  std::vector<std::string> glob(const std::string& pattern) const {
    auto found = glob_below(path, pattern, {"inputs"});
    REQUIRE(found.ok());
    return *found;
  }

  const std::string path = fs::temp_directory_path() / ("flow-glob-" + random_name());
};

using Paths = std::vector<std::string>;

}  // namespace

TEST_CASE("patterns match within names, and ** matches over folders") {
  Folder folder;
  for (const char* name : {"top.t", "a.x", "d/f.t", "d/e/g.t", "d/e/.hidden.t", ".h/i.t", ".dot",
                           "inputs/1/in.t", "b*", "B.t"})
    folder.add(name);
  fs::create_directory_symlink("d", folder.path + "/linked");
  fs::create_symlink("top.t", folder.path + "/link.t");
  fs::create_symlink("nowhere", folder.path + "/dangling.t");

  CHECK(folder.glob("*.t") == Paths{"B.t", "dangling.t", "link.t", "top.t"});
  CHECK(folder.glob("**/*.t") == Paths{"B.t", "d/e/g.t", "d/f.t", "link.t", "top.t"});
  CHECK(folder.glob("**") == Paths{"B.t", "a.x", "b*", "d/e/g.t", "d/f.t", "link.t", "top.t"});
  CHECK(folder.glob("d/**/*.t") == Paths{"d/e/g.t", "d/f.t"});
  CHECK(folder.glob("**/e/*") == Paths{"d/e/g.t"});
  CHECK(folder.glob("**/e").empty());  // a folder
  CHECK(folder.glob("linked/*.t") == Paths{"linked/f.t"});
  CHECK(folder.glob("*/f.t") == Paths{"d/f.t", "linked/f.t"});
  CHECK(folder.glob("*/") == Paths{"d", "linked"});
  CHECK(folder.glob(".*") == Paths{".dot", ".h"});
  CHECK(folder.glob("d/e/.*") == Paths{"d/e/.hidden.t"});
  CHECK(folder.glob("b\\*") == Paths{"b*"});
  CHECK(folder.glob("[a-b].x") == Paths{"a.x"});
  CHECK(folder.glob("./d//?.t") == Paths{"d/f.t"});
  CHECK(folder.glob("inputs/*/in.t") == Paths{"inputs/1/in.t"});
  CHECK(folder.glob("none/*").empty());
  CHECK(folder.glob("{*,top}.t") == Paths{"B.t", "dangling.t", "link.t", "top.t"});
  CHECK(folder.glob("{a.x,d/{f,none}.t}") == Paths{"a.x", "d/f.t"});
}

TEST_CASE("a folder that cannot be listed is an error") {
  if (::geteuid() == 0) return;  // root may list every folder
  Folder folder;
  folder.add("closed/a.t");
  ::chmod((folder.path + "/closed").c_str(), 0);
  auto found = glob_below(folder.path, "**/*.t");
  ::chmod((folder.path + "/closed").c_str(), 0700);
  REQUIRE_FALSE(found.ok());
  CHECK(found.error().message.find("closed") != std::string::npos);
}

TEST_CASE("braces with a comma are alternatives") {
  auto expanded = [](const char* pattern) {
    auto all = expand_braces(pattern);
    REQUIRE(all.ok());
    std::sort(all->begin(), all->end());
    return *all;
  };
  CHECK(expanded("a{b,c}d") == Paths{"abd", "acd"});
  CHECK(expanded("{,x}y") == Paths{"xy", "y"});
  CHECK(expanded("{a,b{c,d}}") == Paths{"a", "bc", "bd"});
  CHECK(expanded("{a}{b}") == Paths{"{a}{b}"});
  CHECK(expanded("{a{b,c}}") == Paths{"{ab}", "{ac}"});
  CHECK(expanded("\\{a,b}") == Paths{"\\{a,b}"});
  CHECK(expanded("{a,b") == Paths{"{a,b"});
  std::string many;
  for (int i = 0; i < 14; i++) many += "{a,b}";
  CHECK_FALSE(expand_braces(many).ok());
}

TEST_CASE("escaped text matches only itself") {
  CHECK(is_glob("a*"));
  CHECK(is_glob("{a,b}"));
  CHECK_FALSE(is_glob("{a}"));
  CHECK_FALSE(is_glob("a\\*"));
  std::string text = "a*b?[c]{d,e}\\f";
  CHECK_FALSE(is_glob(escape_glob(text)));
  Folder folder;
  folder.add(text);
  CHECK(folder.glob(escape_glob(text)) == Paths{text});
}
