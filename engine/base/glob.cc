// Replaces glob(3), which has no `**` and silently skips what it cannot read.
#include "engine/base/glob.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

namespace flow {

namespace {

constexpr size_t kMatchesMax = 1'000'000;
constexpr size_t kAlternativesMax = 10'000;
constexpr int kDepthMax = 1'000;  // of folders

bool has_wildcard(std::string_view component) {
  for (size_t i = 0; i < component.size(); i++) {
    if (component[i] == '\\') {
      i++;
    } else if (std::strchr("*?[", component[i]) != nullptr) {
      return true;
    }
  }
  return false;
}

std::string unescaped(std::string_view component) {
  std::string text;
  for (size_t i = 0; i < component.size(); i++) {
    if (component[i] == '\\' && i + 1 < component.size()) i++;
    text += component[i];
  }
  return text;
}

struct Braces {
  size_t open = 0, close = 0;
  std::vector<size_t> commas;
};

/// Finds the first `{…}` with a comma of its own; false if there is none.
bool find_braces(std::string_view pattern, Braces& braces) {
  for (size_t open = 0; open < pattern.size(); open++) {
    if (pattern[open] == '\\') {
      open++;
      continue;
    }
    if (pattern[open] != '{') continue;
    braces = {open, 0, {}};
    int depth = 0;
    for (size_t i = open; i < pattern.size() && braces.close == 0; i++) {
      if (pattern[i] == '\\') {
        i++;
      } else if (pattern[i] == '{') {
        depth++;
      } else if (pattern[i] == ',' && depth == 1) {
        braces.commas.push_back(i);
      } else if (pattern[i] == '}' && --depth == 0) {
        braces.close = i;
      }
    }
    if (braces.close > 0 && !braces.commas.empty()) return true;
  }
  return false;
}

class Walk {
 public:
  Walk(const std::string& folder, std::string_view pattern,
       const std::vector<std::string>& excluded, bool takes_every_kind,
       std::set<std::string>& found)
      : folder_(folder), excluded_(excluded), takes_every_kind_(takes_every_kind), found_(found) {
    for (size_t at = 0; at <= pattern.size();) {
      size_t slash = std::min(pattern.find('/', at), pattern.size());
      std::string_view component = pattern.substr(at, slash - at);
      if (!component.empty() && component != ".") components_.emplace_back(component);
      at = slash + 1;
    }
    needs_folder_ = pattern.ends_with('/');
    is_deep_ = std::find(components_.begin(), components_.end(), "**") != components_.end();
    // `**` at the end is every file at every depth.
    if (!components_.empty() && components_.back() == "**") components_.emplace_back("*");
  }

  Status run() {
    match("", 0, 0);
    return error_;
  }

 private:
  std::string full(const std::string& path) const {
    return path.empty() ? folder_ : folder_ + "/" + path;
  }

  void add(const std::string& path) {
    struct stat info {};
    bool exists = ::lstat(full(path).c_str(), &info) == 0;
    if (!exists) return;
    bool leads_somewhere = ::stat(full(path).c_str(), &info) == 0;
    bool only_files = is_deep_ && !takes_every_kind_;
    if (only_files && (!leads_somewhere || !S_ISREG(info.st_mode))) return;
    if (needs_folder_ && (!leads_somewhere || !S_ISDIR(info.st_mode))) return;
    if (found_.size() >= kMatchesMax) {
      error_ = user_error(fmt::format("the pattern matches more than {} paths", kMatchesMax));
      return;
    }
    found_.insert(path);
  }

  bool is_folder(const std::string& path, bool follow_links) const {
    struct stat info {};
    int status =
        follow_links ? ::stat(full(path).c_str(), &info) : ::lstat(full(path).c_str(), &info);
    return status == 0 && S_ISDIR(info.st_mode);
  }

  /// Names in the folder; `pattern` as fnmatch takes it.
  std::vector<std::string> names(const std::string& path, const std::string& pattern) {
    std::vector<std::string> matching;
    DIR* folder = ::opendir(full(path).c_str());
    if (folder == nullptr) {
      if (errno != ENOENT && errno != ENOTDIR && error_.ok())
        error_ = user_error(
            fmt::format("cannot list the folder `{}`: {}", full(path), std::strerror(errno)));
      return matching;
    }
    while (dirent* entry = ::readdir(folder)) {
      std::string name = entry->d_name;
      bool is_excluded =
          path.empty() && std::find(excluded_.begin(), excluded_.end(), name) != excluded_.end();
      if (name == "." || name == ".." || is_excluded) continue;
      if (::fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD) == 0)
        matching.push_back(std::move(name));
    }
    ::closedir(folder);
    return matching;
  }

  void match(const std::string& path, size_t at, int depth) {
    if (!error_.ok()) return;
    if (at == components_.size()) {
      if (!path.empty()) add(path);
      return;
    }
    if (depth > kDepthMax) {
      error_ = user_error(
          fmt::format("folders are nested more than {} levels deep in `{}`", kDepthMax, folder_));
      return;
    }
    const std::string& component = components_[at];
    auto below = [&](const std::string& name) { return path.empty() ? name : path + "/" + name; };
    if (component == "**") {
      match(path, at + 1, depth);
      for (const std::string& name : names(path, "*")) {
        std::string inner = below(name);
        if (is_folder(inner, false)) match(inner, at, depth + 1);
      }
    } else if (has_wildcard(component)) {
      bool is_last = at + 1 == components_.size();
      for (const std::string& name : names(path, component)) {
        std::string inner = below(name);
        if (is_last || is_folder(inner, true)) match(inner, at + 1, depth + 1);
      }
    } else {
      match(below(unescaped(component)), at + 1, depth + 1);
    }
  }

  const std::string& folder_;
  const std::vector<std::string>& excluded_;
  const bool takes_every_kind_;
  std::set<std::string>& found_;
  std::vector<std::string> components_;
  bool needs_folder_ = false, is_deep_ = false;
  Status error_;
};

}  // namespace

bool is_glob(std::string_view pattern) {
  Braces braces;
  return has_wildcard(pattern) || find_braces(pattern, braces);
}

std::string escape_glob(std::string_view text) {
  std::string escaped;
  for (char c : text) {
    if (std::strchr("*?[]{},\\", c) != nullptr && c != '\0') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

Result<std::vector<std::string>> expand_braces(std::string_view pattern) {
  std::vector<std::string> open = {std::string(pattern)}, done;
  while (!open.empty()) {
    std::string next = std::move(open.back());
    open.pop_back();
    Braces braces;
    if (!find_braces(next, braces)) {
      done.push_back(std::move(next));
    } else {
      std::string before = next.substr(0, braces.open), after = next.substr(braces.close + 1);
      braces.commas.push_back(braces.close);
      size_t begin = braces.open + 1;
      for (size_t end : braces.commas) {
        open.push_back(before + next.substr(begin, end - begin) + after);
        begin = end + 1;
      }
    }
    if (open.size() + done.size() > kAlternativesMax)
      return user_error(fmt::format("the braces in the pattern expand to more than {} alternatives",
                                    kAlternativesMax));
  }
  return done;
}

namespace {

Result<std::vector<std::string>> walk_all(const std::string& folder, const std::string& pattern,
                                          const std::vector<std::string>& excluded,
                                          bool takes_every_kind) {
  auto patterns = expand_braces(pattern);
  FLOW_TRY(patterns);
  std::set<std::string> found;
  for (const std::string& each : *patterns)
    FLOW_TRY(Walk(folder, each, excluded, takes_every_kind, found).run());
  return std::vector<std::string>(found.begin(), found.end());
}

}  // namespace

Result<std::vector<std::string>> glob_below(const std::string& folder, const std::string& pattern,
                                            const std::vector<std::string>& excluded) {
  return walk_all(folder, pattern, excluded, false);
}

Result<std::vector<std::string>> glob_every_kind(const std::string& folder,
                                                 const std::string& pattern) {
  return walk_all(folder, pattern, {}, true);
}

std::string literal_prefix(std::string_view pattern) {
  std::string prefix = pattern.starts_with('/') ? "/" : "";
  for (size_t at = 0; at < pattern.size();) {
    size_t slash = pattern.find('/', at);
    if (slash == std::string_view::npos) break;
    std::string_view component = pattern.substr(at, slash - at);
    // Braces may span components, so the first one ends the prefix.
    if (has_wildcard(component) || component.find('{') != std::string_view::npos) break;
    if (!component.empty()) prefix += unescaped(component) + "/";
    at = slash + 1;
  }
  return prefix;
}

}  // namespace flow
