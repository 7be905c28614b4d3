#include "engine/submission/prebuilt_graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "engine/base/errors.hpp"
#include "engine/base/files.hpp"
#include "engine/cluster/session/handshake.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/crypto/file_digest.hpp"
#include "engine/plan/values.hpp"
#include "engine/value/value_fields.hpp"

namespace flow {

namespace {

/// Calls `visit(file)` for each file of the plan, repeats too.
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

}  // namespace

std::string away_path(const std::string& machine, const std::string& path) {
  return machine + ":" + path;
}

Result<BuiltHere> build_here(const Submission& submission, Builder& builder) {
  auto made = build(submission, builder);
  FLOW_TRY(made);
  BuiltHere here;
  auto digest_of = [&](const std::string& path, const struct stat&, bool) -> Result<Digest> {
    auto read = sha256_file(path);
    if (!read.ok()) return user_error(read.error().message);
    here.files[read->digest] = path;
    return read->digest;
  };
  auto take = [&](const File& file) -> Result<File> {
    if (file.origin.starts_with(kOperationsOrigin)) return file;  // the head's
    return read_input(file, UINT64_MAX, digest_of, made->plan.warnings);
  };
  auto has_files = replace_files(made->plan, take);
  FLOW_TRY(has_files);
  here.built.machine = machine_name();
  here.built.plan = *has_files ? encode_plan(made->plan) : std::move(made->plan_bytes);
  here.built.bundle = std::move(made->bundle_bytes);
  here.built.printed = std::move(made->plan.printed);
  return here;
}

Result<Built> take_in(const BuiltAway& away) {
  Built built;
  auto plan = decode_plan(away.plan);
  FLOW_TRY(plan);
  std::vector<Error> errors = check_plan(*plan);
  if (!errors.empty()) return joined_errors(errors);
  auto bundle = decode_bundle(away.bundle);
  FLOW_TRY(bundle);
  std::string strange;
  for_each_file(*plan, [&](const File& file) {
    if (!file.origin.empty() && !file.origin.starts_with(kOperationsOrigin)) strange = file.origin;
  });
  if (!strange.empty())
    return user_error(
        fmt::format("the client sent the place of the file `{}` and not its content", strange));
  bundle->root = away_path(away.machine, bundle->root);
  built.plan = std::move(*plan);
  built.plan.printed = away.printed;
  built.plan_bytes = away.plan;
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

std::vector<Digest> lacking(const std::vector<Digest>& content, const Blobs& blobs) {
  std::vector<Digest> missing;
  std::ranges::copy_if(content, std::back_inserter(missing),
                       [&](const Digest& digest) { return !blobs.has(digest); });
  return missing;
}

Value built_to_value(const BuiltAway& built) {
  return Value::map({{"machine", built.machine},
                     {"plan", built.plan},
                     {"bundle", built.bundle},
                     {"printed", strings_to_value(built.printed)}});
}

Result<BuiltAway> built_from_value(const Value& value) {
  BuiltAway built;
  built.machine = text_field(value, "machine");
  if (!cluster::is_node_name(built.machine))
    return user_error("a request from a machine without a name");
  built.plan = text_field(value, "plan");
  built.bundle = text_field(value, "bundle");
  built.printed = strings_from_value(value.find("printed"));
  return built;
}

}  // namespace flow
