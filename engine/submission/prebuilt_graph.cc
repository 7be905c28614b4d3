#include "engine/submission/prebuilt_graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <set>

#include "engine/base/errors.hpp"
#include "engine/base/files.hpp"
#include "engine/base/temporary_folder.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/crypto/file_digest.hpp"
#include "engine/plan/values.hpp"
#include "engine/submission/command_environments.hpp"
#include "engine/submission/remote_inputs.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

/// Calls `visit(file)` for each file of the plan, including duplicates.
template <typename Visit>
void for_each_file(const Value& value, Visit&& visit) {
  if (value.kind() == Value::Kind::file) return visit(value.as_file());
  if (value.kind() != Value::Kind::table) return;
  for (const Value& item : value.as_table().list) for_each_file(item, visit);
  for (const auto& [key, item] : value.as_table().fields) for_each_file(item, visit);
}

template <typename Visit>
void for_each_file(const Plan& plan, Visit&& visit) {
  for_each_value(plan, [&](const Value& value) { for_each_file(value, visit); });
}

Result<File> fetch_for_head(const File& file, const Submission& submission,
                            PrebuiltGraphWithFiles& prebuilt) {
  if (submission.options.offline)
    return user_error(
        "--offline: a client of a head has no copies of URLs: run it on the head's machine");
  if (!prebuilt.downloads) {
    auto folder = make_temporary_folder();
    FLOW_TRY(folder);
    prebuilt.downloads = *folder;
  }
  std::string path;
  auto fetched = fetch_to_folder(file, *submission.environment, *prebuilt.downloads, path);
  FLOW_TRY(fetched);
  prebuilt.files[fetched->digest] = path;
  return fetched;
}

}  // namespace

std::string path_on_machine(const std::string& machine, const std::string& path) {
  return machine + ":" + path;
}

Result<PrebuiltGraphWithFiles> prebuild_graph(const Submission& submission, Builder& builder) {
  auto made = build(submission, builder);
  FLOW_TRY(made);
  PrebuiltGraphWithFiles prebuilt;
  auto digest_of = [&](const std::string& path, const struct stat&, bool) -> Result<Digest> {
    auto read = sha256_file(path);
    if (!read.ok()) return user_error(read.error().message);
    prebuilt.files[read->digest] = path;
    return read->digest;
  };
  auto take = [&](const File& file) -> Result<File> {
    if (is_remote_origin(file.origin)) return fetch_for_head(file, submission, prebuilt);
    if (file.origin.starts_with(kOperationsOrigin)) return file;  // a library of the head
    return read_input(file, UINT64_MAX, digest_of, made->plan.warnings);
  };
  auto has_files = replace_files(made->plan, take);
  FLOW_TRY(has_files);
  auto is_resolved =
      resolve_environments(made->plan, made->bundle.root, *submission.environment, false);
  FLOW_TRY(is_resolved);
  prebuilt.built.machine = machine_name();
  prebuilt.built.plan =
      *has_files || *is_resolved ? encode_plan(made->plan) : std::move(made->plan_bytes);
  prebuilt.built.bundle = std::move(made->bundle_bytes);
  prebuilt.built.printed = std::move(made->plan.printed);
  return prebuilt;
}

Result<BuiltGraph> accept_prebuilt_graph(const PrebuiltGraph& prebuilt) {
  BuiltGraph built;
  auto plan = decode_plan(prebuilt.plan);
  FLOW_TRY(plan);
  std::vector<Error> errors = check_plan(*plan);
  if (!errors.empty()) return joined_errors(errors);
  auto bundle = decode_bundle(prebuilt.bundle);
  FLOW_TRY(bundle);
  std::string strange;
  for_each_file(*plan, [&](const File& file) {
    if (!file.origin.empty() && !file.origin.starts_with(kOperationsOrigin)) strange = file.origin;
  });
  if (!strange.empty())
    return user_error(
        fmt::format("the client sent the path of the file `{}` and not its content", strange));
  bundle->root = path_on_machine(prebuilt.machine, bundle->root);
  built.plan = std::move(*plan);
  built.plan.printed = prebuilt.printed;
  built.plan_bytes = prebuilt.plan;
  built.bundle = std::move(*bundle);
  built.bundle_bytes = encode_bundle(built.bundle);
  return built;
}

std::vector<Digest> files_of(const Plan& plan) {
  std::set<Digest> all;
  for_each_file(plan, [&](const File& file) {
    if (!file.origin.empty()) return;  // operations, or read in place
    for_each_blob(Value(file), [&](const Digest& digest, auto, auto) { all.insert(digest); });
  });
  return {all.begin(), all.end()};
}

std::vector<Digest> missing_blobs(const std::vector<Digest>& digests, const Blobs& blobs) {
  std::vector<Digest> missing;
  std::ranges::copy_if(digests, std::back_inserter(missing),
                       [&](const Digest& digest) { return !blobs.has(digest); });
  return missing;
}

}  // namespace flow
