// Runs in the formats of other programs, and pipelines from such files (<flow/exchange.hpp>).
#include "flow/exchange.hpp"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "engine/base/clock.hpp"
#include "engine/base/files.hpp"
#include "engine/base/remote_url.hpp"
#include "engine/base/temporary_folder.hpp"
#include "engine/base/throwing.hpp"
#include "engine/crypto/base64.hpp"
#include "engine/exports/mlflow_client.hpp"
#include "engine/exports/open_lineage.hpp"
#include "engine/exports/ro_crate.hpp"
#include "engine/exports/trace_file.hpp"
#include "engine/exports/wfformat_pipeline.hpp"
#include "engine/exports/wfformat_reader.hpp"
#include "engine/exports/wfformat_writer.hpp"
#include "engine/submission/prepare.hpp"
#include "lua/state/script.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr uint32_t kUserFileMode = 0666;  // less the umask
constexpr uint32_t kUserFolderMode = 0777;

bool is_taken(const fs::path& path) {
  std::error_code failed;
  return fs::symlink_status(path, failed).type() != fs::file_type::not_found && !failed;
}

/// What would be lost if a file took its place, or that of a link to it; "" for a file, a folder or
/// nothing.
std::string special_kind(const fs::path& path) {
  std::error_code failed;
  switch (fs::status(path, failed).type()) {
    case fs::file_type::fifo:
      return "pipe";
    case fs::file_type::socket:
      return "socket";
    case fs::file_type::block:
    case fs::file_type::character:
      return "device";
    default:
      return "";
  }
}

void check_replaceable(const fs::path& path) {
  std::string kind = special_kind(path);
  if (kind.empty()) return;
  throw Failed(
      user_error(fmt::format("`{}` is a {}, which --force does not replace: name another path with "
                             "-o",
                             path.string(), kind)));
}

void write_user_file(const fs::path& path, std::string_view content) {
  ok_or_throw(write_file_atomic(path.string(), content, kUserFileMode));
}

}  // namespace

ImportedWorkflow import_workflow(const std::string& file, const ImportOptions& options) {
  if (!std::isfinite(options.scale) || options.scale < 0)
    throw Failed(user_error(fmt::format("the scale is {}: expected 0 or more", options.scale)));
  if (!is_taken(file))
    throw Failed(user_error(fmt::format("cannot import `{}`: there is no such file", file)));
  std::string text = value_or_throw(read_file(file, kWorkflowBytesMax));
  auto workflow = read_wfformat(text);
  if (!workflow.ok())
    throw Failed(
        user_error(fmt::format("`{}` cannot be imported: {}", file, workflow.error().message)));
  PipelineFiles made = pipeline_of(*workflow, fs::path(file).filename().string(), options.scale);
  fs::path directory = options.directory;
  fs::path script = directory / "pipeline.lua", tasks = directory / "tasks.lua";
  for (const fs::path& path : {script, tasks}) {
    check_replaceable(path);
    if (!options.overwrites && is_taken(path))
      throw Failed(user_error(fmt::format(
          "`{}` exists already: name another folder with -o, or replace it with --force",
          path.string())));
  }
  ok_or_throw(make_dirs(directory.string(), kUserFolderMode));
  ImportedWorkflow report;
  report.name = workflow->name;
  report.tasks = static_cast<uint32_t>(workflow->tasks.size());
  for (const WorkflowTask& task : workflow->tasks) report.stand_ins += task.command.empty();
  fs::path inputs = directory / "inputs";
  if (!made.inputs.empty()) ok_or_throw(make_dirs(inputs.string(), kUserFolderMode));
  for (const auto& [name, content] : made.inputs) {
    if (is_taken(inputs / name)) continue;  // perhaps the real one
    // Not synced: there may be thousands, and a next import writes those that a crash lost.
    ok_or_throw(replace_file((inputs / name).string(), {content}, false));
    report.inputs++;
  }
  if (!made.tasks.empty()) {
    write_user_file(tasks, made.tasks);
    report.paths.push_back(tasks.string());
  }
  write_user_file(script, made.script);  // last: it makes the folder a pipeline
  report.paths.insert(report.paths.begin(), script.string());
  return report;
}

namespace {

/// The value with names of files in place of files.
Value with_names(const Value& value) {
  if (value.kind() == Value::Kind::file) return Value(value.as_file().name);
  if (value.kind() != Value::Kind::table) return value;
  Value::Table table = value.as_table();
  for (Value& item : table.list) item = with_names(item);
  for (auto& [key, field] : table.fields) field = with_names(field);
  return Value(std::move(table));
}

/// As the task's shell got it, with the names of files, and with fixed values of `{seed}` and
/// others that differ between attempts.
std::string command_text(const TaskDef& definition, const Value& arguments) {
  const Resources& resources = definition.resources;
  std::map<std::string, std::string> builtin = {
      {"cpus", std::to_string(std::max(1, resources.cpus_milli / 1000))},
      {"memory", std::to_string(resources.memory_bytes)},
      {"gpus", std::to_string(resources.gpus_milli / 1000)},
      {"ranks", std::to_string(resources.ranks)},
      {"rank", "0"},
      {"seed", "0"},
      {"attempt", "1"}};
  auto filled = fill_command(definition.shell, with_names(arguments), builtin);
  return filled.ok() ? *filled : "";
}

void check_free(const std::string& target, bool overwrites) {
  check_replaceable(target);
  if (overwrites || !is_taken(target)) return;
  throw Failed(user_error(fmt::format(
      "`{}` exists already: name another path with -o, or replace it with --force", target)));
}

/// The files of a crate replace those of an older crate, and go nowhere else.
void check_crate_folder(const std::string& target) {
  std::error_code failed;
  if (!is_taken(target)) return;
  bool is_crate =
      fs::is_directory(target, failed) &&
      (is_taken(fs::path(target) / "ro-crate-metadata.json") || fs::is_empty(target, failed));
  if (!is_crate)
    throw Failed(user_error(
        fmt::format("`{}` exists and is not an RO-Crate: name another folder with -o", target)));
}

/// The owner of the state.
std::string owner_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "unknown";
  std::vector<char> buffer(size_t{16} << 10);
  struct passwd entry {};
  struct passwd* found = nullptr;
  if (::getpwuid_r(info.st_uid, &entry, buffer.data(), buffer.size(), &found) == 0 &&
      found != nullptr)
    return found->pw_name;
  return fmt::format("uid {}", info.st_uid);
}

/// Who submitted the run. Runs of earlier flows do not say that.
std::string agent_of(const Provenance& provenance) {
  const std::string& user = provenance.opened.loaded.run->user;
  return user.empty() ? owner_of(provenance.opened.state_dir) : user;
}

std::string variable_or(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? fallback : value;
}

void export_events(const Provenance& provenance, const ExportOptions& how) {
  std::vector<std::string> events =
      open_lineage_events(provenance, variable_or("OPENLINEAGE_NAMESPACE", "flow"));
  if (is_remote_url(how.target)) {
    auto options = value_or_throw(fetch::read_fetch_options(*current_environment()));
    return ok_or_throw(post_events(events, how.target,
                                   variable_or("OPENLINEAGE_ENDPOINT", "api/v1/lineage"),
                                   variable_or("OPENLINEAGE_API_KEY", ""), options));
  }
  std::string text;
  for (const std::string& event : events) text += event + "\n";
  write_user_file(how.target, text);
}

/// As the clients of MLflow choose it from the environment; "" for none.
std::string mlflow_authorization() {
  std::string token = variable_or("MLFLOW_TRACKING_TOKEN", "");
  if (!token.empty()) return "Bearer " + token;
  std::string name = variable_or("MLFLOW_TRACKING_USERNAME", "");
  if (name.empty()) return "";
  return "Basic " + base64_encode(name + ":" + variable_or("MLFLOW_TRACKING_PASSWORD", ""));
}

/// What Reader::get copies into the folder.
std::vector<MlflowArtifact> artifacts_in(const std::string& folder) {
  std::vector<MlflowArtifact> artifacts;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      artifacts.push_back({fs::relative(entry.path(), folder).string(), entry.path().string()});
  std::ranges::sort(artifacts, {}, &MlflowArtifact::path);
  return artifacts;
}

/// Returns the URL of the run's page.
std::string export_to_mlflow(const EngineOptions& options, const std::string& selector,
                             const ExportOptions& how) {
  Provenance provenance = provenance_of(open_run(options, selector), command_text);
  const std::string& id = provenance.info.id;
  Reader reader(options);
  MlflowRun run = mlflow_run_of(provenance, reader.metrics(id), agent_of(provenance));
  auto warn = [&](const std::string& text) {
    if (how.on_warning) how.on_warning(text);
  };
  for (const std::string& warning : run.warnings) warn(warning);
  auto fetch_options = value_or_throw(fetch::read_fetch_options(*current_environment()));
  MlflowClient client(how.target, mlflow_authorization(), fetch_options);
  client.send(run, how.experiment.empty() ? provenance.info.pipeline : how.experiment);
  const Value& result = provenance.info.result;
  if (result.is_nil() || result.kind() == Value::Kind::null) return client.page_url();
  auto folder = value_or_throw(make_temporary_folder());
  reader.get(id, "", *folder);
  if (!client.upload(artifacts_in(*folder)))
    warn(
        fmt::format("the artifacts were not uploaded: the server keeps those of this run at `{}` "
                    "and does not take them itself. Start it with --serve-artifacts and "
                    "--artifacts-destination, and create the experiment with that server",
                    display_url(client.artifact_uri())));
  return client.page_url();
}

void check_kind_of_target(const ExportOptions& how) {
  if (how.target.empty()) throw Failed(user_error("the path of the export is empty"));
  bool is_url = is_remote_url(how.target), is_web = is_url && !is_s3_url(how.target);
  if (how.format == ExportFormat::mlflow && !is_web)
    throw Failed(
        user_error(fmt::format("`{}` is not the URL of an MLflow tracking server: give one such as "
                               "http://localhost:5000",
                               display_url(how.target))));
  if (is_url &&
      !(is_web && (how.format == ExportFormat::openlineage || how.format == ExportFormat::mlflow)))
    throw Failed(
        user_error(fmt::format("`{}` is a URL: only the formats openlineage and mlflow go "
                               "to one, by http:// or https://",
                               display_url(how.target))));
}

}  // namespace

std::string write_trace(const EngineOptions& options, const std::string& selector,
                        const std::string& file, bool overwrites) {
  if (file.empty()) throw Failed(user_error("the path of the timeline is empty"));
  check_free(file, overwrites);
  auto no_text = [](const TaskDef&, const Value&) { return std::string(); };
  write_user_file(file,
                  trace_file_of(provenance_of(open_run(options, selector), no_text), now_ms()));
  return file;
}

std::vector<std::string> export_run(const EngineOptions& options, const std::string& selector,
                                    const ExportOptions& how) {
  check_kind_of_target(how);
  if (how.format == ExportFormat::mlflow) return {export_to_mlflow(options, selector, how)};
  if (how.format == ExportFormat::tensorboard)
    return Reader(options).write_tensorboard(how.target, selector);
  bool is_url = is_remote_url(how.target);
  if (!is_url) check_free(how.target, how.overwrites);
  if (how.format == ExportFormat::ro_crate) check_crate_folder(how.target);
  Provenance provenance = provenance_of(open_run(options, selector), command_text);
  switch (how.format) {
    case ExportFormat::ro_crate:
      return {write_ro_crate(provenance, how.target, agent_of(provenance))};
    case ExportFormat::openlineage:
      export_events(provenance, how);
      break;
    case ExportFormat::wfformat:
      write_user_file(how.target, wfformat_of(provenance));
      break;
    case ExportFormat::mlflow:
    case ExportFormat::tensorboard:
      break;  // returned above
  }
  return {is_url ? display_url(how.target) : how.target};
}

}  // namespace flow
