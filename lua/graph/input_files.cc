// flow.files, flow.files.groups and flow.list: files that a pattern or a folder names, listed by
// the process that submits.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "engine/base/glob.hpp"
#include "engine/base/remote_url.hpp"
#include "engine/plan/remote_origin.hpp"
#include "engine/value/folder_files.hpp"
#include "lua/graph/path_captures.hpp"
#include "lua/state/graph_builder.hpp"

namespace flow::lua {

Result<std::vector<File>> list_files(const InputLister& lister, const InputPattern& wanted) {
  if (!lister) return user_error("files cannot be listed here");
  auto paths = lister(wanted);
  FLOW_TRY(paths);
  std::vector<File> files;
  for (std::string& path : *paths) {
    if (is_remote_url(path)) {
      auto file = remote_file({path, std::nullopt, false});
      FLOW_TRY(file);
      files.push_back(std::move(*file));
      continue;
    }
    File& file = files.emplace_back();
    file.name = std::filesystem::path(path).filename().string();
    file.origin = std::move(path);
  }
  return files;
}

namespace {

const char kFilesKey = 0;

/// The files of `pattern`, relative to the script. `function` is the caller's name, for errors.
std::vector<File> files_of(lua_State* L, const char* function, const std::string& pattern,
                           bool allow_empty) {
  building_graph(L, function);
  if (context(L).phase != ScriptPhase::building)
    raise(L, fmt::format("{} lists files before the run starts, so it is called in the body of a "
                         "pipeline: pass its result to the task as an argument",
                         function));
  if (pattern.empty()) raise(L, fmt::format("{}: the pattern is empty", function));
  if (pattern.ends_with(kAllFilesBelow) && std::string_view(function) != "flow.list")
    raise(L, fmt::format("{}: the pattern `{}` ends with `//`, which matches no file", function,
                         pattern));
  auto files = list_files(context(L).list_inputs, {context(L).root, pattern, allow_empty});
  if (!files.ok()) raise(L, fmt::format("{}: {}", function, files.error().message));
  return std::move(*files);
}

bool read_options(lua_State* L, int index, const char* function) {
  if (lua_isnoneornil(L, index)) return false;
  if (lua_type(L, index) != LUA_TTABLE)
    raise(L, fmt::format("the options of {} are a table, not {}", function, kind_text(L, index)));
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    std::string key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : kind_text(L, -2);
    if (key != "allow_empty")
      raise(L, fmt::format("{} has no option `{}`{}; it has allow_empty", function, key,
                           did_you_mean(key, {"allow_empty"})));
    if (lua_type(L, -1) != LUA_TBOOLEAN)
      raise(L, fmt::format("`allow_empty` of {} is true or false, not {}", function,
                           kind_text(L, -1)));
    lua_pop(L, 1);
  }
  bool is_set = lua_getfield(L, index, "allow_empty") != LUA_TNIL && lua_toboolean(L, -1) != 0;
  lua_pop(L, 1);
  return is_set;
}

void push_files(lua_State* L, const std::vector<File>& files) {
  lua_createtable(L, static_cast<int>(files.size()), 0);
  for (size_t i = 0; i < files.size(); i++) {
    push_file(L, files[i]);
    lua_rawseti(L, -2, static_cast<lua_Integer>(i + 1));
  }
}

// flow.files(pattern [, options]). The first argument is flow.files itself.
int call_files(lua_State* L) {
  std::string pattern = check_text(L, 2, "the pattern in flow.files");
  bool allow_empty = read_options(L, 3, "flow.files");
  std::vector<File> files = files_of(L, "flow.files", pattern, allow_empty);
  push_files(L, files);
  return 1;
}

/// The path or URL of a listed file.
std::string path_of(const File& file) {
  auto origin = parse_remote_origin(file.origin);
  return origin.ok() ? origin->url : file.origin;
}

// ---- groups

struct CapturedFile {
  std::vector<std::string> texts;  // of the captures
  File file;
};

/// Files whose captures are the same, but for the one that names the members.
struct FileGroup {
  std::map<std::string, File> members;
};

/// Which capture names the members of a group: of those after the first the last that has several
/// values, or else the last. With one capture each file is a group.
std::optional<size_t> member_capture(const std::vector<CapturedFile>& files, size_t captures) {
  if (captures < 2) return std::nullopt;
  for (size_t i = captures - 1; i > 0; i--) {
    bool varies = std::ranges::any_of(
        files, [&](const CapturedFile& each) { return each.texts[i] != files[0].texts[i]; });
    if (varies) return i;
  }
  return captures - 1;
}

class Grouping {
 public:
  Grouping(lua_State* L, std::string pattern, const PathCaptures& captures,
           const std::vector<CapturedFile>& files)
      : L_(L),
        pattern_(std::move(pattern)),
        names_(captures.names()),
        member_(member_capture(files, names_.size())) {
    for (const CapturedFile& file : files) add(file);
    check_complete();
  }

  void push() const {
    lua_createtable(L_, static_cast<int>(groups_.size()), 0);
    lua_Integer count = 0;
    for (const auto& [key, group] : groups_) {
      push_group(key, group);
      lua_rawseti(L_, -2, ++count);
    }
  }

 private:
  void add(const CapturedFile& given) {
    std::vector<std::string> key = given.texts;
    std::string member;
    if (member_) {
      member = key[*member_];
      key.erase(key.begin() + static_cast<std::ptrdiff_t>(*member_));
    }
    auto [place, is_new] = groups_[key].members.emplace(member, given.file);
    if (!is_new)
      raise(L_, fmt::format("flow.files.groups of `{}`: `{}` and `{}` have the same captures ({})",
                            pattern_, path_of(place->second), path_of(given.file), text_of(key)));
    if (member_) members_.emplace(member, path_of(given.file));
  }

  void check_complete() const {
    for (const auto& [key, group] : groups_)
      for (const auto& [member, example] : members_)
        if (!group.members.contains(member))
          raise(L_, fmt::format("flow.files.groups of `{}`: the group {} has no file with {} = "
                                "\"{}\", which other groups have (`{}`): add the file, or write a "
                                "pattern that leaves the others of the group out",
                                pattern_, text_of(key), names_[*member_], member, example));
  }

  /// `sample = "s1"`, of the captures but the member's.
  std::string text_of(const std::vector<std::string>& key) const {
    std::string text;
    size_t at = 0;
    for (size_t i = 0; i < names_.size(); i++)
      if (i != member_)
        text += fmt::format("{}{} = \"{}\"", text.empty() ? "" : ", ", names_[i], key[at++]);
    return text;
  }

  void push_group(const std::vector<std::string>& key, const FileGroup& group) const {
    lua_newtable(L_);
    size_t at = 0;
    for (size_t i = 0; i < names_.size(); i++) {
      if (i == member_) continue;
      lua_pushlstring(L_, key[at].data(), key[at].size());
      lua_setfield(L_, -2, names_[i].c_str());
      at++;
    }
    lua_newtable(L_);
    for (const auto& [member, file] : group.members) {
      push_file(L_, file);
      if (member_)
        lua_setfield(L_, -2, member.c_str());
      else
        lua_rawseti(L_, -2, 1);
    }
    lua_setfield(L_, -2, "files");
  }

  lua_State* const L_;
  const std::string pattern_;
  const std::vector<std::string>& names_;
  const std::optional<size_t> member_;
  std::map<std::vector<std::string>, FileGroup> groups_;
  std::map<std::string, std::string> members_;  // each value of the member's capture, and a file
};

// flow.files.groups(pattern [, options])
int make_groups(lua_State* L) {
  std::string pattern = check_text(L, 1, "the pattern in flow.files.groups");
  bool allow_empty = read_options(L, 2, "flow.files.groups");
  bool is_remote = is_remote_url(pattern);
  if (is_remote && !is_s3_url(pattern))
    raise(L,
          "flow.files.groups: a web server has no list of files: the pattern is a path or an "
          "`s3://` URL");
  auto captures = PathCaptures::parse(pattern);
  if (!captures.ok()) raise(L, "flow.files.groups: " + captures.error().message);
  if (std::ranges::find(captures->names(), "files") != captures->names().end())
    raise(L, "flow.files.groups: a capture cannot be named `files`, which is a field of the group");
  // Paths are compared whole, so the pattern is made absolute as they are.
  std::string root = escape_glob(context(L).root);
  auto absolute = is_remote
                      ? captures
                      : PathCaptures::parse(
                            (std::filesystem::path(root) / pattern).lexically_normal().string());
  if (!absolute.ok()) raise(L, "flow.files.groups: " + absolute.error().message);
  std::vector<CapturedFile> matched;
  for (File& file : files_of(L, "flow.files.groups", captures->glob(), allow_empty))
    if (auto texts = absolute->match(path_of(file)))
      matched.push_back({std::move(*texts), std::move(file)});
  if (matched.empty() && !allow_empty)
    raise(L, fmt::format("flow.files.groups: no file matches `{}`, in which a capture has at least "
                         "one character",
                         pattern));
  Grouping(L, pattern, *absolute, matched).push();
  return 1;
}

/// The files below a folder that the script or a parameter names, as an input.
std::vector<File> files_below(lua_State* L, const File& folder) {
  if (folder.is_folder) return flow::files_of(folder);  // read before: the graph is built again
  if (is_remote_origin(folder.origin))
    raise(L,
          "flow.list takes a folder, and this is the file of a URL: list objects by "
          "flow.files(\"s3://bucket/prefix/*\")");
  std::string pattern = folder.origin + std::string(kAllFilesBelow);
  std::vector<File> files = files_of(L, "flow.list", pattern, true);
  for (File& file : files) file.name = file.origin.substr(folder.origin.size() + 1);
  return files;
}

// flow.list(folder): of a result a view, and of an input folder the list itself.
int list_folder_files(lua_State* L) {
  if (const Handle* handle = test_handle(L, 1)) {
    push_files_part(L, *handle);
    return 1;
  }
  const File* folder = test_file(L, 1);
  if (folder == nullptr)
    raise(L, fmt::format(
                 "flow.list takes a folder: a parameter, flow.file(\"data\") or a part of a "
                 "result; not {}{}",
                 kind_text(L, 1),
                 lua_type(L, 1) == LUA_TSTRING ? ". For paths write flow.files(\"data/**\")" : ""));
  push_files(L, files_below(L, *folder));
  return 1;
}

}  // namespace

void open_input_files(lua_State* L, int flow) {
  lua_newuserdatauv(L, 0, 0);
  if (new_metatable(L, &kFilesKey, "flow.files")) {
    lua_pushcfunction(L, call_files);
    lua_setfield(L, -2, "__call");
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, make_groups);
    lua_setfield(L, -2, "groups");
    lua_setfield(L, -2, "__index");
  }
  lua_setmetatable(L, -2);
  lua_setfield(L, flow, "files");
  lua_pushcfunction(L, list_folder_files);
  lua_setfield(L, flow, "list");
}

}  // namespace flow::lua
