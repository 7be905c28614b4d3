// A graph that is built on one machine and runs for another: the client reads the script and what
// it names, the head takes it in by content and never looks at a path in it.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "engine/submission/prepare.hpp"

namespace flow {

/// Whose paths a client's are: "laptop:/home/me/pipeline.lua".
std::string path_on_machine(const std::string& machine, const std::string& path);

struct PrebuiltGraphWithFiles {
  PrebuiltGraph built;
  std::map<Digest, std::string> files;  // where its content lies
};
/// Builds the graph in a child process, and reads every file that it names.
Result<PrebuiltGraphWithFiles> prebuild_graph(const Submission& submission, Builder& builder);

/// What such a client sent, checked: nothing in it is to be read from this machine's disk.
Result<BuiltGraph> accept_prebuilt_graph(const PrebuiltGraph& prebuilt);
/// The content of the plan's files that are not read in place, each once.
std::vector<Digest> files_of(const Plan& plan);
/// What of it is not in the state.
std::vector<Digest> missing_blobs(const std::vector<Digest>& digests, const Blobs& blobs);

Value prebuilt_to_value(const PrebuiltGraph& built);
Result<PrebuiltGraph> prebuilt_from_value(const Value& value);

}  // namespace flow
