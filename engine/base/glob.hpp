// Paths by pattern: `*`, `?` and `[…]` within a name, `**` over folders, `{a,b}` alternatives.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"

namespace flow {

/// Whether `pattern` has a `*`, `?`, `[` or `{a,b}` that no backslash escapes.
bool is_glob(std::string_view pattern);
/// A pattern that matches exactly `text`.
std::string escape_glob(std::string_view text);
/// The alternatives of the `{a,b}` in `pattern`. Braces without a comma are kept. Error if there
/// are too many.
Result<std::vector<std::string>> expand_braces(std::string_view pattern);

/// The paths below `folder` that match `pattern`, relative to it, sorted bytewise, each once.
/// - `*`, `?` and `[…]` match within a name, and a leading dot only where the pattern has it.
/// - `**` as a whole component is any number of folders, none of them hidden or a link. A pattern
///   with it matches regular files only (links to files too); any other one folders as well.
/// - A backslash escapes the character after it.
/// `excluded` are names directly below `folder` that a wildcard does not match.
/// Error where a folder cannot be read, or there are too many matches.
Result<std::vector<std::string>> glob_below(const std::string& folder, const std::string& pattern,
                                            const std::vector<std::string>& excluded = {});
/// The same without exclusions. A pattern with `**` matches paths of every kind too, so that the
/// caller can reject those that it cannot use.
Result<std::vector<std::string>> glob_every_kind(const std::string& folder,
                                                 const std::string& pattern);
/// The leading folders of `pattern` that have no wildcard and no brace, unescaped: "reads/" of
/// "reads/*/x.gz", "" if there are none.
std::string literal_prefix(std::string_view pattern);

}  // namespace flow
