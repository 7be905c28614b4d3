// A graph that is built on one machine and runs for another: the client reads the script and what
// it names, the head takes it in by content and never looks at a path in it.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "engine/submission/prepare.hpp"

namespace flow {

/// Whose paths a client's are: "laptop:/home/me/pipeline.lua".
std::string away_path(const std::string& machine, const std::string& path);

struct BuiltHere {
  BuiltAway built;
  std::map<Digest, std::string> files;  // where its content lies
};
/// Builds the graph in a child process, and reads every file that it names.
Result<BuiltHere> build_here(const Submission& submission, Builder& builder);

/// What such a client sent, checked: nothing in it is to be read from this machine's disk.
Result<Built> take_in(const BuiltAway& away);
/// The content of the plan's files that are not read in place, each once.
std::vector<Digest> files_of(const Plan& plan);
/// What of it is not in the state.
std::vector<Digest> lacking(const std::vector<Digest>& content, const Blobs& blobs);

Value built_to_value(const BuiltAway& built);
Result<BuiltAway> built_from_value(const Value& value);

}  // namespace flow
