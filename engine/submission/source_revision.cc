#include "engine/submission/source_revision.hpp"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/files.hpp"
#include "engine/process/run_command.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kPointerMax = 4096;                      // bytes of HEAD, a ref, or a .git file
constexpr uint64_t kPackedRefsMax = uint64_t{64} << 20;     // bytes
constexpr int kSymbolicRefsMax = 5;                         // as git
constexpr size_t kFiltersMax = 64, kPathBytesMax = 65'536;  // of one command line

/// The file without blanks at its end; "" if it cannot be read, or is a pipe or a device.
std::string read_small(const fs::path& path, uint64_t size_max) {
  std::error_code failed;
  if (!fs::is_regular_file(path, failed)) return "";
  auto text = read_file(path.string(), size_max);
  if (!text.ok()) return "";
  size_t end = text->find_last_not_of(" \t\r\n");
  text->resize(end == std::string::npos ? 0 : end + 1);
  return std::move(*text);
}

bool is_commit_id(std::string_view text) {
  return (text.size() == 40 || text.size() == 64) &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// The rest of the text after the prefix; "" without it.
std::string after(const std::string& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return "";
  size_t begin = text.find_first_not_of(" \t", prefix.size());
  return begin == std::string::npos ? "" : text.substr(begin);
}

/// Whether the file of the ref is below the folder of refs.
bool is_ref_name(const std::string& name) {
  bool has_control = std::ranges::any_of(name, [](unsigned char byte) { return byte < 0x20; });
  return name.starts_with("refs/") && !has_control && name.find("..") == std::string::npos;
}

struct Repository {
  fs::path top;     // of the working tree
  fs::path own;     // HEAD and index of this working tree
  fs::path common;  // refs of all working trees
};

std::optional<Repository> find_repository(const std::string& folder) {
  std::error_code failed;
  fs::path place = fs::weakly_canonical(folder, failed);
  if (failed || !place.is_absolute()) return {};
  while (!fs::exists(place / ".git", failed)) {
    if (place == place.root_path()) return {};
    place = place.parent_path();
  }
  Repository found{place, place / ".git", {}};
  if (!fs::is_directory(found.own, failed)) {  // a linked working tree, or a submodule
    std::string target = after(read_small(found.own, kPointerMax), "gitdir:");
    if (target.empty()) return {};
    found.own = place / target;
  }
  std::string common = read_small(found.own / "commondir", kPointerMax);
  found.common = common.empty() ? found.own : found.own / common;
  return found;
}

/// "" if it is not there.
std::string packed_ref(const fs::path& path, const std::string& name) {
  std::string text = read_small(path, kPackedRefsMax);
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    size_t space = line.find(' ');
    if (space != std::string_view::npos && line.substr(space + 1) == name)
      return std::string(line.substr(0, space));
    at = end + 1;
  }
  return "";
}

std::string commit_of(const Repository& repository) {
  std::string text = read_small(repository.own / "HEAD", kPointerMax);
  for (int i = 0; i < kSymbolicRefsMax && !is_commit_id(text); i++) {
    std::string name = after(text, "ref:");
    if (!is_ref_name(name)) return "";
    text = read_small(repository.own / name, kPointerMax);
    if (text.empty()) text = read_small(repository.common / name, kPointerMax);
    if (text.empty()) text = packed_ref(repository.common / "packed-refs", name);
  }
  return is_commit_id(text) ? text : "";
}

using Variables = std::vector<std::pair<std::string, std::string>>;

/// Calls of git that share a time limit. The configuration of a repository can name programs:
/// hooks, a monitor of files, filters of their content, helpers of transports.
class Git {
 public:
  Git(std::string folder, int64_t within_ms)
      : folder_(std::move(folder)), until_us_(monotonic_us() + within_ms * 1000) {}

  std::optional<CommandResult> call(const std::vector<std::string>& words,
                                    const Variables& settings = {}) const {
    int64_t left_ms = (until_us_ - monotonic_us()) / 1000;
    if (left_ms <= 0) return {};
    std::vector<std::string> argv = {"env"};
    // A git hook that started this process may have set these for another repository.
    for (const char* each : {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR",
                             "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_CONFIG"})
      argv.insert(argv.end(), {"-u", each});
    argv.insert(argv.end(), {"git", "-C", folder_, "-c", "core.fsmonitor=false", "-c",
                             "core.hooksPath=/dev/null", "--no-optional-locks"});
    argv.insert(argv.end(), words.begin(), words.end());
    Variables variables = {{"GIT_ALLOW_PROTOCOL", "none"},
                           {"GIT_NO_LAZY_FETCH", "1"},
                           {"GIT_TERMINAL_PROMPT", "0"},
                           {"GIT_CONFIG_COUNT", std::to_string(settings.size())}};
    for (size_t i = 0; i < settings.size(); i++) {
      variables.emplace_back("GIT_CONFIG_KEY_" + std::to_string(i), settings[i].first);
      variables.emplace_back("GIT_CONFIG_VALUE_" + std::to_string(i), settings[i].second);
    }
    auto result = run_command(argv, left_ms, variables);
    if (!result.ok()) return {};
    return std::move(*result);
  }

  /// Settings that disable all content filters; nothing if they may not cover all.
  std::optional<Variables> without_filters() const {
    auto listed = call({"config", "-z", "--name-only", "--get-regexp", "^filter\\."});
    if (!listed || listed->code > 1) return {};  // 1: there is none
    if (listed->out.size() > kPathBytesMax) return {};
    Variables settings;
    for (size_t at = 0; at < listed->out.size();) {
      size_t end = std::min(listed->out.find('\0', at), listed->out.size());
      std::string key = listed->out.substr(at, end - at);
      settings.emplace_back(key, key.ends_with(".required") ? "false" : "");
      at = end + 1;
    }
    if (settings.size() > kFiltersMax) return {};
    return settings;
  }

 private:
  std::string folder_;
  int64_t until_us_;
};

}  // namespace

std::optional<SourceRevision> source_revision(const std::string& folder) {
  auto repository = find_repository(folder);
  if (!repository) return {};
  SourceRevision revision{commit_of(*repository), {}};
  if (revision.id.empty()) return {};
  return revision;
}

std::optional<bool> files_differ(const std::string& folder, const std::vector<std::string>& files,
                                 int64_t within_ms) {
  auto repository = find_repository(folder);
  if (!repository) return {};
  std::error_code failed;
  fs::path base = fs::weakly_canonical(folder, failed);
  std::vector<std::string> words = {"--literal-pathspecs",
                                    "status",
                                    "--porcelain",
                                    "--ignored=matching",
                                    "--untracked-files=all",
                                    "--no-renames",
                                    "--ignore-submodules=all",
                                    "--"};
  size_t options = words.size(), bytes = 0;
  for (const std::string& file : files) {
    fs::path whole = fs::weakly_canonical(base / file, failed);
    fs::path path = whole.lexically_relative(repository->top);
    if (failed || path.empty() || *path.begin() == "..") continue;
    auto own = find_repository(whole.parent_path().string());
    if (!own || own->top != repository->top) return {};  // of a submodule
    bytes += path.native().size();
    words.push_back(path.string());
  }
  if (bytes > kPathBytesMax) return {};
  if (words.size() == options) return false;
  Git git(repository->top.string(), within_ms);
  auto settings = git.without_filters();
  if (!settings) return {};
  auto status = git.call(words, *settings);
  if (!status || status->code != 0) return {};
  return !status->out.empty();
}

Value revision_value(const std::optional<SourceRevision>& revision) {
  if (!revision) return {};
  Value dirty = revision->is_dirty ? Value(*revision->is_dirty) : Value();
  return Value::map({{"id", Value(revision->id)}, {"dirty", std::move(dirty)}});
}

std::optional<SourceRevision> get_revision(const Value& value) {
  if (value.kind() != Value::Kind::table) return {};
  const Value* id = value.find("id");
  if (id == nullptr || id->kind() != Value::Kind::string || !is_commit_id(id->as_string()))
    return {};
  SourceRevision revision{id->as_string(), {}};
  const Value* dirty = value.find("dirty");
  if (dirty != nullptr && dirty->kind() == Value::Kind::boolean)
    revision.is_dirty = dirty->as_boolean();
  return revision;
}

}  // namespace flow
