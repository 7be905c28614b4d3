// The git revision of a folder, from the files of its repository, which may be hostile.
#include "engine/submission/source_revision.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/base/ids.hpp"
#include "engine/process/run_command.hpp"
#include "engine/submission/run_inputs.hpp"

using namespace flow;
namespace fs = std::filesystem;

namespace {

const std::string kFirst(40, 'a'), kSecond(40, 'b'), kSha256(64, 'c');

class ProjectFolder {
 public:
  ProjectFolder()
      : path_(fs::canonical(fs::temp_directory_path()) / ("revision-" + random_name())) {
    fs::create_directories(path_);
  }
  ~ProjectFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  /// The commit of a folder in it; "" for none.
  std::string revision(const std::string& name = "") const {
    auto found = source_revision((path_ / name).string());
    return found ? found->id : "";
  }

 private:
  fs::path path_;
};

constexpr int64_t kWithinMs = 60'000;

/// Calls git, with its own configuration only.
void git(const ProjectFolder& folder, const std::vector<std::string>& words) {
  std::vector<std::string> argv = {"env",       "-u", "GIT_DIR",     "git", "-C",
                                   folder / "", "-c", "user.name=a", "-c",  "user.email=a@b"};
  argv.insert(argv.end(), words.begin(), words.end());
  auto done = run_command(argv, kWithinMs,
                          {{"GIT_CONFIG_GLOBAL", "/dev/null"}, {"GIT_CONFIG_SYSTEM", "/dev/null"}});
  REQUIRE(done.ok());
  INFO(done->err);
  REQUIRE(done->code == 0);
}

bool has_git() {
  auto done = run_command({"git", "--version"}, kWithinMs);
  return done.ok() && done->code == 0;
}

}  // namespace

TEST_CASE("a folder in no repository has no revision") {
  ProjectFolder folder;
  CHECK(folder.revision().empty());
  CHECK(folder.revision("missing").empty());
  CHECK(!source_revision(""));
  CHECK(!files_differ(folder / "", {"a.lua"}, kWithinMs));
}

TEST_CASE("the revision is that of the branch, of its own file before the packed refs") {
  ProjectFolder folder;
  folder.write(".git/HEAD", "ref: refs/heads/main\n");
  CHECK(folder.revision().empty());  // no commit yet
  folder.write(".git/packed-refs", "# pack-refs with: peeled fully-peeled sorted\n" + kSha256 +
                                       " refs/heads/maintenance\n" + kFirst +
                                       " refs/heads/main\n^" + kSecond + "\n");
  CHECK(folder.revision() == kFirst);
  folder.write(".git/refs/heads/main", kSecond + "\n");
  CHECK(folder.revision() == kSecond);
  folder.write("deep/er/pipeline.lua", "");
  CHECK(folder.revision("deep/er") == kSecond);
}

TEST_CASE("the revision of a detached HEAD is its commit") {
  ProjectFolder folder;
  folder.write(".git/HEAD", kSha256 + "\n");
  CHECK(folder.revision() == kSha256);
}

TEST_CASE("a linked working tree has its own HEAD and the refs of its repository") {
  ProjectFolder folder;
  folder.write("main/.git/HEAD", "ref: refs/heads/main\n");
  folder.write("main/.git/refs/heads/main", kFirst + "\n");
  folder.write("main/.git/packed-refs", kSecond + " refs/heads/topic\n");
  folder.write("main/.git/worktrees/topic/HEAD", "ref: refs/heads/topic\n");
  folder.write("main/.git/worktrees/topic/commondir", "../..\n");
  folder.write("topic/.git", "gitdir: " + folder / "main/.git/worktrees/topic" + "\n");
  folder.write("relative/.git", "gitdir: ../main/.git/worktrees/topic\n");
  CHECK(folder.revision("main") == kFirst);
  CHECK(folder.revision("topic") == kSecond);
  CHECK(folder.revision("relative") == kSecond);
}

TEST_CASE("what is not a commit is no revision") {
  ProjectFolder folder;
  folder.write("secret", kFirst);
  std::string hostile = GENERATE(
      as<std::string>(), "", "\n", "ref:", "ref: ", "ref: ../secret", "ref: refs/../../secret",
      "ref: /etc/passwd", "ref: refs/heads/loop", "ref: refs/heads/.invalid", "<script>", "aaaa",
      std::string(39, 'a') + "\x1b", std::string(40, 'A'), std::string(1 << 20, 'a'),
      "ref: refs/" + std::string(3000, 'x'), "ref: refs/heads", std::string(40, '\0'));
  folder.write(".git/HEAD", hostile);
  folder.write(".git/refs/heads/loop", "ref: refs/heads/loop\n");
  CHECK(folder.revision().empty());
}

TEST_CASE("a pipe or a link to nowhere in a repository is not waited for") {
  ProjectFolder folder;
  folder.write(".git/config", "");
  REQUIRE(::mkfifo((folder / ".git/HEAD").c_str(), 0600) == 0);
  CHECK(folder.revision().empty());
  folder.write("other/x", "");
  REQUIRE(::mkfifo((folder / "other/.git").c_str(), 0600) == 0);
  CHECK(folder.revision("other").empty());
  folder.write("linked/.git/x", "");
  fs::create_symlink(folder / "linked/.git/HEAD", folder / "linked/.git/HEAD");
  CHECK(folder.revision("linked").empty());
}

TEST_CASE("files of a run differ from the commit if one is changed, new or ignored") {
  if (!has_git()) return;
  ProjectFolder folder;
  git(folder, {"init", "--quiet"});
  folder.write("sub/a.lua", "1");
  folder.write("sub/lib/b.lua", "1");
  folder.write(".gitignore", "ignored.lua\n");
  git(folder, {"add", "."});
  git(folder, {"commit", "--quiet", "-m", "one"});
  CHECK(folder.revision("sub").size() == 40);
  auto differ = [&](const std::vector<std::string>& files) {
    auto found = files_differ(folder / "sub", files, kWithinMs);
    return !found ? "unknown" : *found ? "differ" : "same";
  };
  CHECK(differ({"a.lua", "lib/b.lua"}) == std::string("same"));
  CHECK(differ({"../../elsewhere.lua"}) == std::string("same"));
  folder.write("sub/new.lua", "1");
  folder.write("sub/*.lua", "1");
  folder.write("sub/ignored.lua", "1");
  CHECK(differ({"a.lua", "lib/b.lua"}) == std::string("same"));
  CHECK(differ({"a.lua", "new.lua"}) == std::string("differ"));
  CHECK(differ({"ignored.lua"}) == std::string("differ"));
  folder.write("sub/lib/b.lua", "2");
  CHECK(differ({"a.lua"}) == std::string("same"));
  CHECK(differ({"a.lua", "lib/b.lua"}) == std::string("differ"));
  CHECK(files_differ(folder / "sub", {"a.lua"}, 0) == std::nullopt);

  // As in a hook of another repository.
  ::setenv("GIT_DIR", (folder / "missing").c_str(), 1);
  CHECK(differ({"a.lua"}) == std::string("same"));
  ::unsetenv("GIT_DIR");
}

TEST_CASE("the question whether files differ runs no program of the repository") {
  if (!has_git()) return;
  ProjectFolder folder;
  std::string program = "#!/bin/sh\necho ran >> '" + folder / "ran" + "'\ncat\n";
  folder.write("program", program);
  folder.write("top/.git-hooks/post-index-change", program);
  fs::permissions(folder / "program", fs::perms::owner_all);
  fs::permissions(folder / "top/.git-hooks/post-index-change", fs::perms::owner_all);
  folder.write("top/a.lua", "1");
  git(folder, {"init", "--quiet", "top"});
  git(folder, {"-C", "top", "add", "a.lua"});
  git(folder, {"-C", "top", "commit", "--quiet", "-m", "one"});
  for (const char* each : {"core.fsmonitor", "filter.x.clean", "filter.x.process"})
    git(folder, {"-C", "top", "config", each, folder / "program"});
  git(folder, {"-C", "top", "config", "filter.x.required", "true"});
  git(folder, {"-C", "top", "config", "core.hooksPath", folder / "top/.git-hooks"});
  folder.write("top/.git/info/attributes", "*.lua filter=x\n");
  folder.write("top/a.lua", "2");  // its times differ: git reads it, through its filter
  CHECK(files_differ(folder / "top", {"a.lua"}, kWithinMs) == true);
  folder.write("top/a.lua", "1");
  CHECK(files_differ(folder / "top", {"a.lua"}, kWithinMs) == false);
  CHECK(!fs::exists(folder / "ran"));
}

TEST_CASE("a run keeps its revision with its inputs") {
  Inputs inputs;
  std::string without = encode_inputs(inputs);
  for (std::optional<bool> is_dirty : {std::optional<bool>(), {true}, {false}}) {
    inputs.revision = SourceRevision{kFirst, is_dirty};
    auto again = decode_inputs(encode_inputs(inputs));
    REQUIRE(again.ok());
    REQUIRE(again->revision);
    CHECK(again->revision->id == kFirst);
    CHECK(again->revision->is_dirty == is_dirty);
  }
  auto none = decode_inputs(without);
  REQUIRE(none.ok());
  CHECK(!none->revision);
  CHECK(!get_revision(Value::map({{"id", Value("<script>")}})));
  CHECK(!get_revision(Value(1)));
}
