// Builds and checks a submission before anything runs.
#include "engine/submission/prepare.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "engine/base/clock.hpp"
#include "engine/base/errors.hpp"
#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/base/remote_url.hpp"
#include "engine/base/user_name.hpp"
#include "engine/blobs/folder.hpp"
#include "engine/blobs/input_listing.hpp"
#include "engine/process/cgroup.hpp"
#include "engine/submission/command_environments.hpp"
#include "engine/submission/notify_settings.hpp"
#include "engine/submission/prebuilt_graph.hpp"
#include "engine/submission/remote_inputs.hpp"
#include "engine/submission/requester.hpp"
#include "engine/submission/requirements.hpp"
#include "engine/submission/run_budget.hpp"
#include "engine/submission/run_inputs.hpp"
#include "engine/submission/task_configuration.hpp"
#include "engine/value/utf8.hpp"

extern char** environ;

namespace flow {

namespace fs = std::filesystem;

namespace {

/// Error for a broken link in the state: it may lead to a disk that is not mounted, and a new state
/// would hide the existing one.
Status no_broken_link(const std::string& state) {
  for (fs::path at = state; at.has_relative_path(); at = at.parent_path()) {
    std::string broken = broken_link(at.string());
    if (broken.empty()) continue;
    if (at == state)
      return environment_error(
          fmt::format("the state `{}` is {}: mount the disk that holds it, remove the link, or "
                      "name another with --state DIR or FLOW_STATE",
                      state, broken));
    return environment_error(
        fmt::format("the state `{}` cannot be used: `{}` is {}. Mount the disk that holds it, or "
                    "name another state with --state DIR or FLOW_STATE",
                    state, at.string(), broken));
  }
  return {};
}

Result<std::string> folder_at(const std::string& path) {
  FLOW_TRY(no_broken_link(path));
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || S_ISDIR(info.st_mode)) return path;
  return environment_error(fmt::format(
      "the state `{}` is not a folder: name another with --state DIR or FLOW_STATE", path));
}

std::string absolute_path(const fs::path& path) {
  std::error_code failed;
  fs::path absolute = fs::absolute(path, failed);
  return (failed ? path : absolute).lexically_normal().string();
}

}  // namespace

std::string working_directory_of(const EngineOptions& options) {
  if (!options.working_directory.empty()) return options.working_directory;
  std::error_code failed;
  fs::path current = fs::current_path(failed);
  if (!failed) return current.string();
  // The folder was removed; the kernel still knows its former path.
  constexpr std::string_view kRemoved = " (deleted)";
  std::string former = fs::read_symlink("/proc/self/cwd", failed).string();
  if (former.ends_with(kRemoved)) former.resize(former.size() - kRemoved.size());
  return failed ? "/" : former;
}

Result<std::string> find_state(const EngineOptions& options) {
  const char* named = std::getenv("FLOW_STATE");
  fs::path given = options.state.empty() && named != nullptr ? named : options.state;
  fs::path start = options.working_directory;
  std::error_code removed;
  if (start.empty()) start = fs::current_path(removed);
  if (removed && !given.is_absolute()) {
    return environment_error(fmt::format(
        "the working directory cannot be used ({}): `cd` to a folder that exists, or give absolute "
        "paths for the script and --state",
        removed.message()));
  }
  auto absolute = [&](const fs::path& path) {
    return (path.is_absolute() ? path : start / path).lexically_normal().string();
  };
  if (!given.empty()) return folder_at(absolute(given));
  for (fs::path folder = start;; folder = folder.parent_path()) {
    struct stat info {
    }, link{};
    fs::path candidate = folder / ".flow";
    if (::stat(candidate.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
      // Another user's link could lead anywhere.
      bool ours = info.st_uid == geteuid();
      if (ours && ::lstat(candidate.c_str(), &link) == 0) info.st_uid = link.st_uid;
      if (info.st_uid == geteuid()) return candidate.string();
      return environment_error(
          fmt::format("the state `{}` belongs to another user (uid {}), so it is not used: name "
                      "your own with --state DIR or FLOW_STATE",
                      candidate.string(), info.st_uid));
    }
    FLOW_TRY(no_broken_link(candidate.string()));
    if (folder == folder.parent_path()) break;
  }
  return folder_at(absolute(".flow"));
}

Result<std::string> find_executor(const EngineOptions& options) {
  std::vector<fs::path> places;
  if (!options.executor.empty()) {
    places.emplace_back(options.executor);
  } else {
    Dl_info here{};
    auto beside = [&](const fs::path& folder) {
      if (!places.empty() && places.front().parent_path() == folder) return;
      places.push_back(folder / "flow-executor");
      places.push_back(folder / "../bin/flow-executor");
      places.push_back(folder / "../libexec/flow/flow-executor");
      places.push_back(folder / "flow/flow-executor");
    };
    if (dladdr(reinterpret_cast<void*>(&find_executor), &here) != 0 && here.dli_fname != nullptr) {
      std::error_code failed;
      fs::path library = fs::canonical(here.dli_fname, failed);
      if (!failed) beside(library.parent_path());
    }
    std::error_code failed;
    fs::path program = fs::read_symlink("/proc/self/exe", failed);
    if (!failed) beside(program.parent_path());
  }
  for (const fs::path& place : places) {
    if (access(place.c_str(), X_OK) == 0) return absolute_path(place);
  }
  std::string looked;
  for (const fs::path& place : places) looked += "\n  " + place.lexically_normal().string();
  return environment_error(
      "flow-executor was not found: install it next to the library or set the option `executor`. "
      "Searched:" +
      looked);
}

std::shared_ptr<const EnvironmentVariables> current_environment() {
  auto all = std::make_shared<EnvironmentVariables>();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; entry++) {
    std::string_view text = *entry;
    size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    all->emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return all;
}

std::string requester_of(const EngineOptions& options) {
  std::string given = clean_requester(options.by);
  return given.empty() ? own_requester() : given;
}

Result<Submission> make_submission(const EngineOptions& options, const RunOptions& run) {
  Submission submission;
  submission.working_directory = working_directory_of(options);
  submission.options = run;
  submission.environment = current_environment();
  submission.user = own_user_name();
  submission.by = requester_of(options);
  ConfigOptions& config = submission.options.config;
  bool is_named = config.files.empty() && !options.config.empty();
  if (!is_named) return submission;
  fs::path path = fs::path(submission.working_directory) / options.config;
  auto text = read_file(path.string());
  if (!text.ok()) return user_error("the option `config`: " + text.error().message);
  config.files.push_back({options.config, std::move(*text)});
  config.profile = options.profile;
  return submission;
}

int32_t jobs_of(const EngineOptions& options) {
  if (options.jobs > 0) return options.jobs;
  return usable_cpus();
}

bool leads_cluster(const EngineOptions& options) {
  return !options.listen.empty() || options.workers > 0 || options.slurm;
}

Result<std::string> find_program(const EngineOptions& options, const std::string& executor) {
  fs::path place = options.program;
  if (place.empty()) place = fs::path(executor).parent_path() / "flow";
  if (access(place.c_str(), X_OK) == 0) return absolute_path(place);
  return environment_error(
      fmt::format("there is no program `{}` to start workers with: install `flow` next to "
                  "flow-executor, or set the option `program`",
                  place.string()));
}

namespace {

fs::path absolute_script(const Submission& submission) {
  fs::path path = submission.script;
  if (path.is_relative()) path = fs::path(submission.working_directory) / path;
  return path.lexically_normal();
}

Result<fs::path> find_script(const Submission& submission) {
  fs::path path = absolute_script(submission);
  std::error_code failed;
  if (fs::is_directory(path, failed)) path /= "pipeline.lua";
  if (path.filename() == kStdinScript && !fs::exists(path, failed))
    return user_error(
        "the script came from the standard input, which was not kept as a file: start a new run "
        "with `flow run -`");
  if (!fs::exists(path, failed)) {
    return user_error(fmt::format(
        "cannot find the script `{}`: name a .lua file, or a folder that has a pipeline.lua",
        path.string()));
  }
  // Modules and files are relative to the script itself, not to a link to it.
  if (fs::is_symlink(path, failed)) {
    fs::path target = fs::canonical(path, failed);
    if (!failed) path = target;
  }
  return path;
}

}  // namespace

Status check_name(const std::string& name) {
  bool has_control = !is_utf8(name);
  for (size_t i = 0; i < name.size(); i++) {
    unsigned char byte = static_cast<unsigned char>(name[i]);
    bool is_second_control = byte == 0xc2 && i + 1 < name.size() && (name[i + 1] & 0xe0) == 0x80;
    has_control |= byte < 0x20 || byte == 0x7f || is_second_control;  // U+0080 to U+009F
  }
  if (has_control) {
    return user_error(
        fmt::format("a run can't be named {}: a name is printed on a line, so it has "
                    "no control characters and is UTF-8",
                    to_json(Value(name))));
  }
  if (name == "last") {
    return user_error(
        "a run can't be named `last`, which always means the newest one: take another name");
  }
  if (is_run_id(name)) {
    return user_error(
        fmt::format("a run can't be named `{}`, which reads as the id of another: take a name of "
                    "another form",
                    name));
  }
  return {};
}

namespace {

/// The errors, with the script's last output, which may explain them.
Error refused(const std::vector<Error>& errors, const std::string& printed) {
  Error all = joined_errors(errors);
  if (!printed.empty()) {
    constexpr size_t kTailShown = 2000;
    size_t start =
        printed.size() > kTailShown ? printed.find('\n', printed.size() - kTailShown) + 1 : 0;
    all.message += "\nUntil then the script printed:\n" + printed.substr(start);
  }
  return all;
}

}  // namespace

namespace {

Result<std::vector<std::string>> list_for(const Submission& submission,
                                          const InputPattern& wanted) {
  if (!is_remote_url(wanted.pattern)) return list_inputs(wanted);
  if (submission.resumed_inputs)
    return list_fetched(wanted.pattern, wanted.allow_empty, *submission.resumed_inputs);
  if (submission.options.offline && is_url_pattern(wanted.pattern))
    return user_error(
        fmt::format("--offline: only the server can list the objects of `{}`: name "
                    "them one by one, or run it without --offline",
                    wanted.pattern));
  return list_remote(wanted.pattern, wanted.allow_empty, *submission.environment);
}

/// Keeps the listings for builds that call a tag or resource function. Returns whether the plan
/// changed.
bool keep_listings(Plan& plan, std::vector<InputListing> listings) {
  auto tags_items = [](const TaskNode& node) { return node.detail().tags_items; };
  bool builds_again = std::ranges::any_of(plan.nodes, tags_items) ||
                      std::ranges::any_of(plan.defs, &TaskDef::resource_functions);
  if (!builds_again || listings.empty()) return false;
  plan.listings = std::move(listings);
  return true;
}

Result<BuildOrder> order_of_script(const Submission& submission) {
  BuildOrder order;
  if (submission.pinned) {
    order.root = submission.pinned->root;
    order.main = submission.pinned->main;
    order.pinned = encode_bundle(*submission.pinned);
  } else if (!submission.options.script_text.empty()) {
    fs::path script = absolute_script(submission);
    order.root = script.parent_path().string();
    order.main = script.filename().string();
    order.main_text = submission.options.script_text;
  } else {
    auto script = find_script(submission);
    FLOW_TRY(script);
    order.root = script->parent_path().string();
    order.main = script->filename().string();
  }
  order.working_directory = submission.working_directory;
  order.list_inputs = [&](const InputPattern& wanted) { return list_for(submission, wanted); };
  return order;
}

Error refused(BuildReply& reply) {
  std::vector<Error> errors;
  for (std::string& message : reply.errors) errors.push_back(user_error(std::move(message)));
  return refused(errors, reply.printed);
}

}  // namespace

Result<Plan> describe(const Submission& submission, Builder& builder) {
  auto order = order_of_script(submission);
  FLOW_TRY(order);
  order->params = encode_value(Value::map({}));
  order->describe = true;
  auto reply = builder.build(*order);
  FLOW_TRY(reply);
  if (!reply->errors.empty()) return refused(*reply);
  return decode_plan(reply->plan);
}

Result<BuiltGraph> build(const Submission& submission, Builder& builder) {
  auto configuration = read_task_configuration(submission.options.config);
  FLOW_TRY(configuration);
  auto of_script = order_of_script(submission);
  FLOW_TRY(of_script);
  BuildOrder order = std::move(*of_script);
  order.params = encode_value(submission.params.is_nil() ? Value::map({}) : submission.params);
  if (!submission.options.params_json.empty()) {
    auto file_params = from_json(submission.options.params_json);
    if (!file_params.ok())
      return user_error("the parameters' JSON can't be read: " + file_params.error().message);
    bool object = file_params->kind() == Value::Kind::table && file_params->as_table().list.empty();
    if (!object)
      return user_error("the parameters' JSON must be one object, { \"name\": value, … }");
    order.params = encode_value(*file_params);
  }
  order.text_params = submission.options.text_params;
  std::vector<InputListing> listings;
  order.list_inputs = [&, list = std::move(order.list_inputs)](const InputPattern& wanted) {
    auto paths = list(wanted);
    if (paths.ok()) listings.push_back({wanted.folder, wanted.pattern, *paths});
    return paths;
  };
  auto reply = builder.build(order);
  FLOW_TRY(reply);
  if (!reply->errors.empty()) return refused(*reply);
  BuiltGraph built;
  auto plan = decode_plan(reply->plan);
  FLOW_TRY(plan);
  bool is_changed = configure_tasks(*configuration, *plan);
  std::vector<Error> errors = check_plan(*plan);
  if (!errors.empty()) return refused(std::move(errors), reply->printed);
  auto bundle = decode_bundle(reply->bundle);
  FLOW_TRY(bundle);
  built.plan = std::move(*plan);
  is_changed |= keep_listings(built.plan, std::move(listings));
  built.plan_bytes = is_changed ? encode_plan(built.plan) : std::move(reply->plan);
  std::istringstream printed(reply->printed);
  for (std::string line; std::getline(printed, line);) built.plan.printed.push_back(line);
  built.bundle = std::move(*bundle);
  built.bundle_bytes = std::move(reply->bundle);
  return built;
}

namespace {

/// The git revision of the script's folder. Nothing for graphs that a client built on another
/// machine and for scripts from the standard input.
std::optional<SourceRevision> revision_of(const Submission& submission, const Bundle& bundle) {
  constexpr int64_t kGitMs = 1000;
  if (submission.built || submission.pinned || bundle.main == kStdinScript) return {};
  std::optional<SourceRevision> revision = source_revision(bundle.root);
  if (!revision) return {};
  std::vector<std::string> files;
  for (const auto& [name, text] : bundle.files) files.push_back(name);
  revision->is_dirty = files_differ(bundle.root, files, kGitMs);
  return revision;
}

/// Sets the versions of native tasks. An error for each that the program does not define. Returns
/// whether the plan has changed.
bool set_native_versions(const SubmissionContext& context, Plan& plan, std::vector<Error>& errors) {
  bool has_changed = false;
  for (TaskDef& def : plan.defs) {
    if (def.kind != TaskKind::native) continue;
    auto version = context.native_version(def.name);
    if (!version) {
      errors.push_back(
          user_error(fmt::format("{}:{}: the native task `{}` is not defined by this program: the "
                                 "embedding program calls engine.define(\"{}\", version, function)",
                                 def.file, def.line, def.name, def.name)));
      continue;
    }
    def.native_version = *version;
    has_changed = true;
  }
  return has_changed;
}

/// Unmet requirements are errors of a run, and warnings of a preview.
void meet_requirements(const SubmissionContext& context, const Submission& submission,
                       const Capacity& capacity, Plan& plan, std::vector<Error>& errors) {
  std::vector<Error> unmet =
      check_requirements(plan, *submission.environment, capacity, plan.warnings);
  for (Error& need : unmet) {
    if (context.purpose == Purpose::run)
      errors.push_back(std::move(need));
    else
      plan.warnings.push_back("a run with these options is rejected: " + need.message);
  }
}

/// The row of a new run, without its digests.
RunRecord record_of(const SubmissionContext& context, const Submission& submission,
                    const Plan& plan, const Bundle& bundle) {
  RunRecord record;
  record.submitted = context.now;
  record.id = context.new_run_id();
  record.name = submission.options.name;
  record.pipeline = plan.pipeline;
  record.status = "pending";
  record.script = (fs::path(bundle.root) / bundle.main).string();
  record.directory = submission.working_directory;
  record.params = encode_value(plan.params);
  record.fresh = submission.options.fresh;
  record.fail_fast = submission.options.fail_fast;
  return record;
}

/// Copies what the submission says of the run to its context.
void put_options(const Submission& submission, RunContext& context) {
  context.request = submission.options.request;
  context.is_budget_asked = !submission.options.budget.empty();
  context.environment = submission.environment;
  context.user = submission.user;
  context.by = submission.by;
  context.grace_ms = submission.options.grace_ms;
  context.publishes_logs = submission.options.logs;
  context.serve_for_ms = submission.options.serve_for_ms;
  context.front_lease_ms = submission.options.front_lease_ms;
  context.is_detached = submission.options.detached;
}

}  // namespace

Result<Prepared> prepare(const SubmissionContext& context, const Submission& submission) {
  FLOW_TRY(check_name(submission.options.name));
  auto built = submission.built ? accept_prebuilt_graph(*submission.built)
                                : build(submission, context.builder);
  FLOW_TRY(built);
  Plan* plan = &built->plan;
  size_t warnings_built = plan->warnings.size();
  const Bundle* bundle = &built->bundle;
  std::vector<Error> errors;
  bool is_as_built = !set_native_versions(context, *plan, errors);
  auto capacity = context.capacity(*plan);
  FLOW_TRY(capacity);
  // A client of a head has resolved its own.
  if (!submission.built) {
    auto is_resolved = resolve_environments(*plan, bundle->root, *submission.environment,
                                            context.purpose == Purpose::preview);
    FLOW_TRY(is_resolved);
    is_as_built = is_as_built && !*is_resolved;
  }
  meet_requirements(context, submission, *capacity, *plan, errors);
  if (!errors.empty()) return joined_errors(errors);
  Inputs inputs;
  inputs.params = without_url_secrets(plan->params);
  auto config = kept_config(submission.options.config);
  FLOW_TRY(config);
  inputs.config = std::move(*config);
  if (context.purpose == Purpose::run) inputs.revision = revision_of(submission, *bundle);
  Result<NotifySettings> notify = NotifySettings();
  if (context.purpose == Purpose::run) notify = notify_settings(submission);
  FLOW_TRY(notify);
  std::string profile;
  auto budget =
      budget_terms(submission.options.budget, values_of_kept(inputs.config, profile), *plan);
  FLOW_TRY(budget);
  bool is_offline = submission.options.offline;
  RemoteUse use = context.purpose == Purpose::preview && !is_offline ? RemoteUse::preview
                  : is_offline                                       ? RemoteUse::offline
                                                                     : RemoteUse::fetch;
  RemoteInputs remote(context.store, use == RemoteUse::fetch ? context.staging : context.blobs,
                      *submission.environment, use, submission.resumed_inputs.get());
  auto has_files = ingest_files(*plan, context.store, context.staging, context.operations_library,
                                remote, inputs.files);
  FLOW_TRY(has_files);
  if (submission.built && context.purpose == Purpose::run &&
      !missing_blobs(files_of(*plan), context.blobs).empty())
    return environment_error(
        "files of this run were removed from the state before it began: start it again");
  is_as_built = is_as_built && !*has_files && plan->warnings.size() == warnings_built;

  Prepared prepared;
  RunRecord& record = prepared.context.record;
  record = record_of(context, submission, *plan, *bundle);
  // The codec is canonical: decoding and encoding returns the same bytes.
  prepared.plan_bytes = is_as_built ? std::move(built->plan_bytes) : encode_plan(*plan);
  record.plan_digest = sha256(prepared.plan_bytes);
  prepared.context.bundle = std::make_shared<const std::string>(std::move(built->bundle_bytes));
  record.bundle_digest = sha256(*prepared.context.bundle);
  if (!inputs.files.empty() || !inputs.config.is_nil() || inputs.revision)
    prepared.inputs = encode_inputs(inputs);
  put_options(submission, prepared.context);
  prepared.context.budget = std::move(*budget);
  if (*notify != NotifySettings()) prepared.context.notify = encode_notify_settings(*notify);
  prepared.plan = std::make_shared<const Plan>(std::move(*plan));
  return prepared;
}

}  // namespace flow
