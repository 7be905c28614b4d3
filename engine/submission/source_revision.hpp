// The git revision of a folder, read from the files of its repository: git need not be installed.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flow/value.hpp"

namespace flow {

struct SourceRevision {
  std::string id;                // of a commit: 40 or 64 hexadecimal digits
  std::optional<bool> is_dirty;  // files differ from the commit; nothing: unknown
};

/// The commit that is checked out in the repository of `folder`; nothing if the folder is in no
/// repository, if there is no commit yet, or if the repository uses reftable. Reads a bounded
/// amount, and starts no process.
std::optional<SourceRevision> source_revision(const std::string& folder);

/// Whether one of `files`, paths relative to `folder`, differs from the commit or is not in it.
/// Files outside of the repository do not count. Asks git, which gets `within_ms`, runs no program
/// that the repository names and fetches nothing. Nothing if git is not installed, is late or
/// rejects the repository, as one of another user.
std::optional<bool> files_differ(const std::string& folder, const std::vector<std::string>& files,
                                 int64_t within_ms);

/// The form in which a run's inputs store it; nil for none.
Value revision_value(const std::optional<SourceRevision>& revision);
/// Nothing if the value is not that of a revision.
std::optional<SourceRevision> get_revision(const Value& value);

}  // namespace flow
