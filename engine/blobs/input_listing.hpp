// The input files that a pattern names, as the process that submits a run lists them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"

namespace flow {

/// Absolute paths of the regular files that `pattern` matches, sorted bytewise, each once. The
/// pattern is that of engine/base/glob.hpp. A relative one starts at `folder`, which is absolute.
/// - A link to a file is followed and keeps its own name. Folders do not match.
/// - Nothing below a state of flow matches, unless `folder` itself is inside that state.
/// Error (user) where a match is a broken link or another kind of file, a folder cannot be read, or
/// there are too many matches.
Result<std::vector<std::string>> list_inputs(const std::string& folder, const std::string& pattern);

/// The end of a pattern that is a folder, not a glob: it names all files below the folder, hidden
/// ones too, as the folder is read when it is an input.
constexpr std::string_view kAllFilesBelow = "//";

/// A pattern for list_inputs. If it matches no file, that is an error unless `allow_empty`.
struct InputPattern {
  std::string folder, pattern;
  bool allow_empty = false;
};
/// Lists the files of a pattern, or those that a list of names has: `@FILE`. Each line of FILE is a
/// path relative to FILE's folder, or a URL; empty lines and lines that begin with `#` are skipped.
Result<std::vector<std::string>> list_inputs(const InputPattern& wanted);

/// Why `pattern` matches no file: "no file matches `reads/*.gz`: …", with the nearest folder that
/// exists.
std::string no_match_text(const std::string& folder, const std::string& pattern);

}  // namespace flow
