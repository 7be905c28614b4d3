// A graph that a client builds for a head on another machine. The client reads the script and its
// files; the head receives them by content and never opens a path in them.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/submission/prepare.hpp"

namespace flow {

/// A path with its machine: "laptop:/home/me/pipeline.lua".
std::string path_on_machine(const std::string& machine, const std::string& path);

struct PrebuiltGraphWithFiles {
  PrebuiltGraph built;
  std::map<Digest, std::string> files;  // path of the content
  /// The folder with the content of URLs, which is removed with the last reference.
  std::shared_ptr<const std::string> downloads;
};
/// Builds the graph in a child process and reads every file that it refers to.
Result<PrebuiltGraphWithFiles> prebuild_graph(const Submission& submission, Builder& builder);

/// Validates a graph from a client: no file in it may be read from this machine's disk.
Result<BuiltGraph> accept_prebuilt_graph(const PrebuiltGraph& prebuilt);
/// Digests of the plan's files that are not read in place, each once.
std::vector<Digest> files_of(const Plan& plan);
/// Those of `digests` that the state does not have.
std::vector<Digest> missing_blobs(const std::vector<Digest>& digests, const Blobs& blobs);

}  // namespace flow
