#include "engine/blobs/input_listing.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "engine/base/files.hpp"
#include "engine/base/glob.hpp"
#include "engine/base/remote_url.hpp"
#include "engine/blobs/folder.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

/// Answers whether a path lies below a state. It looks at each folder once.
class StateFinder {
 public:
  explicit StateFinder(std::string folder) : folder_(std::move(folder)) {}

  bool is_inside_state(const fs::path& path) {
    for (fs::path at = path.parent_path(); at.has_relative_path(); at = at.parent_path()) {
      // The script's own folder may be inside a state, as with `--state .`.
      bool holds_folder = (folder_ + "/").starts_with(at.string() + "/");
      if (holds_folder) return false;
      auto [known, is_new] = is_state_.emplace(at.string(), false);
      if (is_new) known->second = is_state_folder(at.string());
      if (known->second) return true;
    }
    return false;
  }

 private:
  const std::string folder_;
  std::map<std::string, bool> is_state_;
};

std::string normal_folder(const std::string& folder) {
  std::string normal = fs::path(folder).lexically_normal().string();
  while (normal.size() > 1 && normal.ends_with('/')) normal.pop_back();
  return normal;
}

/// "" if the path is a regular file or a folder.
std::string kind_problem(const std::string& path, struct stat& info) {
  if (::stat(path.c_str(), &info) != 0) {
    int code = errno;
    std::string broken = broken_link(path);
    return broken.empty() ? fmt::format("cannot be read: {}", std::strerror(code))
                          : fmt::format("is {}", broken);
  }
  if (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)) return "";
  return "is neither a file nor a folder";
}

}  // namespace

Result<std::vector<std::string>> list_inputs(const std::string& folder,
                                             const std::string& pattern) {
  std::string start = normal_folder(folder);
  std::string base = pattern.starts_with('/') ? "/" : start;
  auto matches = glob_every_kind(base, pattern);
  FLOW_TRY(matches);
  StateFinder states(start);
  std::set<std::string> files;
  for (const std::string& match : *matches) {
    fs::path path = (fs::path(base) / match).lexically_normal();
    if (states.is_inside_state(path)) continue;
    struct stat info {};
    std::string problem = kind_problem(path.string(), info);
    if (!problem.empty())
      return user_error(
          fmt::format("the pattern `{}` matches `{}`, which {}: remove it, or write a pattern that "
                      "does not match it",
                      pattern, path.string(), problem));
    if (S_ISREG(info.st_mode)) files.insert(path.string());
  }
  return std::vector<std::string>(files.begin(), files.end());
}

namespace {

Result<std::vector<std::string>> list_named_inputs(const fs::path& list) {
  constexpr uint64_t kListMax = 256 << 20;  // a million long paths
  auto text = read_file(list.string(), kListMax);
  if (!text.ok()) return user_error("the list of input files: " + text.error().message);
  std::vector<std::string> paths;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text->starts_with(kByteOrderMark)) text->erase(0, kByteOrderMark.size());
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line.starts_with('#')) continue;
    if (is_remote_url(line)) {
      paths.push_back(line);
      continue;
    }
    paths.push_back((list.parent_path() / line).lexically_normal().string());
    struct stat info {};
    std::string problem = kind_problem(paths.back(), info);
    if (!problem.empty())
      return user_error(
          fmt::format("the list `{}` names `{}`, which {}", list.string(), line, problem));
  }
  return paths;
}

Error folder_error(const char* what, const std::string& path, int code) {
  return user_error(fmt::format("{} `{}`: {}", what, path, std::strerror(code)));
}

Result<std::vector<std::string>> list_folder_inputs(const std::string& folder) {
  struct stat info {};
  if (::stat(folder.c_str(), &info) == 0 && !S_ISDIR(info.st_mode))
    return user_error(fmt::format("`{}` is not a folder", folder));
  auto listing = list_folder(folder, "", folder_error);
  FLOW_TRY(listing);
  std::vector<std::string> paths;
  for (const FolderFile& file : listing->files) paths.push_back(folder + "/" + file.path);
  return paths;
}

}  // namespace

Result<std::vector<std::string>> list_inputs(const InputPattern& wanted) {
  if (wanted.pattern.ends_with(kAllFilesBelow))
    return list_folder_inputs(
        wanted.pattern.substr(0, wanted.pattern.size() - kAllFilesBelow.size()));
  bool is_list = wanted.pattern.starts_with('@');
  fs::path list = is_list ? fs::path(wanted.folder) / wanted.pattern.substr(1) : fs::path();
  auto paths = is_list ? list_named_inputs(list.lexically_normal())
                       : list_inputs(wanted.folder, wanted.pattern);
  FLOW_TRY(paths);
  if (!paths->empty() || wanted.allow_empty) return paths;
  if (is_list) return user_error(fmt::format("the list `{}` names no file", list.string()));
  return user_error(no_match_text(wanted.folder, wanted.pattern));
}

std::string no_match_text(const std::string& folder, const std::string& pattern) {
  std::string named = normal_folder((fs::path(folder) / literal_prefix(pattern)).string());
  fs::path nearest = named;
  std::error_code failed;
  while (nearest.has_relative_path() && !fs::is_directory(nearest, failed))
    nearest = nearest.parent_path();
  if (nearest == named)
    return fmt::format("no file matches `{}`: the folder `{}` has none", pattern, named);
  return fmt::format(
      "no file matches `{}`: `{}` is not a folder; the nearest folder that exists "
      "is `{}`",
      pattern, named, nearest.string());
}

}  // namespace flow
