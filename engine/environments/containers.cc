#include "engine/environments/containers.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "engine/base/files.hpp"
#include "engine/environments/command_output.hpp"
#include "engine/process/run_command.hpp"

namespace flow {

namespace {

constexpr int64_t kPullLimitMs = 3'600'000, kInspectLimitMs = 60'000, kRemoveLimitMs = 60'000;
constexpr std::string_view kDocker = "docker://", kPodman = "podman://", kIdPrefix = "sha256:";
constexpr uint64_t kRecordMax = 64 * 1024;

struct KnownRuntime {
  const char* name;
  RuntimeKind kind;
};
constexpr KnownRuntime kRuntimes[] = {{"podman", RuntimeKind::podman},
                                      {"docker", RuntimeKind::docker},
                                      {"apptainer", RuntimeKind::apptainer}};

bool may_run(RuntimeKind kind, const std::string& container) {
  if (container.starts_with(kPodman)) return kind == RuntimeKind::podman;
  if (container.starts_with(kDocker)) return true;
  return kind == RuntimeKind::apptainer;
}

/// The name without its scheme.
std::string reference(const std::string& container) {
  bool has_scheme = container.starts_with(kDocker) || container.starts_with(kPodman);
  return has_scheme ? container.substr(kDocker.size()) : container;
}

/// The id that the runtime prints, or "".
std::string inspect(const ContainerRuntime& runtime, const std::string& image,
                    const EnvironmentVariables& variables) {
  auto result = run_command({runtime.program, "image", "inspect", "--format", "{{.Id}}", image},
                            kInspectLimitMs, variables);
  if (!result.ok() || result->code != 0) return "";
  std::string id = result->out.substr(0, result->out.find('\n'));
  return id.starts_with(kIdPrefix) ? id.substr(kIdPrefix.size()) : id;
}

Result<std::string> digest_in_name(const std::string& container) {
  size_t at = container.find("@sha256:");
  if (at != std::string::npos) return container.substr(at + 1 + kIdPrefix.size());
  return user_error(fmt::format(
      "`{0}` has no digest, and apptainer cannot say which image it names: write `{0}@sha256:…`, "
      "use a .sif, or install podman or docker",
      container));
}

Result<std::string> mount_text(const std::string& path, bool is_writable) {
  if (path.find(',') != std::string::npos || path.find('"') != std::string::npos)
    return user_error(
        fmt::format("`{}` cannot be mounted in a container: rename it so that its "
                    "path has no comma and no quote",
                    path));
  return fmt::format("type=bind,source={0},target={0}{1}", path, is_writable ? "" : ",readonly");
}

Status add_mounts(const ContainerOrder& order, std::vector<std::string>& words) {
  auto add = [&](const std::string& path, bool is_writable) -> Status {
    auto mount = mount_text(path, is_writable);
    FLOW_TRY(mount);
    words.insert(words.end(), {"--mount", *mount});
    return {};
  };
  FLOW_TRY(add(order.directory, true));
  for (const std::string& path : order.writable) FLOW_TRY(add(path, true));
  for (const std::string& path : order.read_only) FLOW_TRY(add(path, false));
  return {};
}

void add_gpus(RuntimeKind kind, const ContainerOrder& order, std::vector<std::string>& words) {
  if (order.gpus.empty()) return;
  if (kind == RuntimeKind::docker && !order.has_cdi) {
    std::string devices;
    for (const std::string& uuid : order.gpus) devices += (devices.empty() ? "" : ",") + uuid;
    // The quotes are part of the value: without them docker splits it at the commas.
    words.insert(words.end(), {"--gpus", fmt::format("\"device={}\"", devices)});
    return;
  }
  for (const std::string& uuid : order.gpus)
    words.insert(words.end(), {"--device", "nvidia.com/gpu=" + uuid});
}

Result<std::vector<std::string>> run_words(const ContainerRuntime& runtime,
                                           const ContainerOrder& order) {
  std::vector<std::string> words{runtime.program, "run",
                                 "--name",        order.name,
                                 "--pull",        "never",
                                 "--network",     "host",
                                 "--entrypoint",  "",
                                 "--workdir",     order.directory,
                                 "--user",        fmt::format("{}:{}", order.user, order.group)};
  bool is_rootless = runtime.kind == RuntimeKind::podman && order.user != 0;
  if (is_rootless) words.insert(words.end(), {"--userns", "keep-id"});
  // The labels of SELinux would forbid the mounts.
  words.insert(words.end(), {"--security-opt", "label=disable"});
  words.insert(words.end(), {"--env-file", order.variables_file});
  for (const std::string& name : order.inherited) words.insert(words.end(), {"--env", name});
  if (order.memory_bytes > 0)
    words.insert(words.end(), {"--memory", fmt::format("{}b", order.memory_bytes)});
  add_gpus(runtime.kind, order, words);
  FLOW_TRY(add_mounts(order, words));
  words.push_back(order.image);
  words.insert(words.end(), order.command.begin(), order.command.end());
  return words;
}

Result<std::vector<std::string>> exec_words(const ContainerRuntime& runtime,
                                            const ContainerOrder& order) {
  std::vector<std::string> words{runtime.program, "exec",         "--cleanenv",
                                 "--no-mount",    "home,cwd,tmp", "--pwd",
                                 order.directory, "--env-file",   order.variables_file};
  if (!order.gpus.empty()) words.push_back("--nv");
  auto bind = [&](const std::string& path, const char* mode) -> Status {
    if (path.find(',') != std::string::npos || path.find(':') != std::string::npos)
      return user_error(
          fmt::format("`{}` cannot be mounted in a container: rename it so that its "
                      "path has no comma and no colon",
                      path));
    words.insert(words.end(), {"--bind", fmt::format("{0}:{0}:{1}", path, mode)});
    return {};
  };
  FLOW_TRY(bind(order.directory, "rw"));
  for (const std::string& path : order.writable) FLOW_TRY(bind(path, "rw"));
  for (const std::string& path : order.read_only) FLOW_TRY(bind(path, "ro"));
  words.push_back(order.image);
  words.insert(words.end(), order.command.begin(), order.command.end());
  return words;
}

bool is_container_name(std::string_view name) {
  return name.starts_with("flow-") && std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-';
         });
}

}  // namespace

std::optional<ContainerRuntime> find_runtime(const std::string& container,
                                             const EnvironmentVariables& variables) {
  const std::string* path = nullptr;
  for (const auto& [name, value] : variables) {
    if (name == "PATH") path = &value;
  }
  for (const KnownRuntime& runtime : kRuntimes) {
    if (!may_run(runtime.kind, container)) continue;
    std::string program = find_in_path(runtime.name, path);
    if (!program.empty()) return ContainerRuntime{runtime.kind, program};
  }
  return std::nullopt;
}

std::string runtimes_of(const std::string& container) {
  if (container.starts_with(kPodman)) return "podman";
  return container.starts_with(kDocker) ? "podman, docker or apptainer" : "apptainer";
}

Result<std::string> image_id(const ContainerRuntime& runtime, const std::string& container,
                             const EnvironmentVariables& variables, bool pulls) {
  if (runtime.kind == RuntimeKind::apptainer) return digest_in_name(container);
  std::string image = reference(container);
  std::string id = inspect(runtime, image, variables);
  if (!id.empty()) return id;
  if (!pulls) return environment_error(fmt::format("the image `{}` is not on this machine", image));
  // podman takes a name without a registry for one of Docker's only if the name has the scheme.
  bool keeps_scheme = runtime.kind == RuntimeKind::podman && container.starts_with(kDocker);
  auto pulled = run_command({runtime.program, "pull", "--quiet", keeps_scheme ? container : image},
                            kPullLimitMs, variables);
  FLOW_TRY(pulled);
  if (pulled->code == 0) id = inspect(runtime, image, variables);
  if (!id.empty()) return id;
  return environment_error(fmt::format("the image `{}` cannot be pulled: {}", container,
                                       last_lines(pulled->err + pulled->out)));
}

Result<std::vector<std::string>> container_words(const ContainerRuntime& runtime,
                                                 const ContainerOrder& order) {
  return runtime.kind == RuntimeKind::apptainer ? exec_words(runtime, order)
                                                : run_words(runtime, order);
}

std::string variables_text(const ContainerRuntime& runtime,
                           const std::map<std::string, std::string>& variables,
                           std::vector<std::string>& inherited) {
  std::string text;
  bool is_shell_text = runtime.kind == RuntimeKind::apptainer;
  for (const auto& [name, value] : variables) {
    bool fits = is_shell_text || value.find('\n') == std::string::npos;
    if (fits) text += fmt::format("{}={}\n", name, is_shell_text ? quote_shell(value) : value);
    if (!fits) inherited.push_back(name);
  }
  return text;
}

bool has_cdi() {
  for (const char* folder : {"/etc/cdi", "/var/run/cdi"}) {
    std::error_code ignored;
    for (std::filesystem::directory_iterator walk(folder, ignored), end; !ignored && walk != end;
         walk.increment(ignored)) {
      if (walk->path().filename().string().find("nvidia") != std::string::npos) return true;
    }
  }
  return false;
}

std::string container_record_path(const std::string& state_dir, pid_t executor) {
  return fmt::format("{}/scratch/slots/{}.container", state_dir, executor);
}

std::string container_variables_path(const std::string& state_dir, pid_t executor) {
  return fmt::format("{}/scratch/slots/{}.env", state_dir, executor);
}

std::string encode_container_record(const ContainerRecord& record) {
  std::string text = fmt::format("{} {}\n", record.name, record.program);
  for (const auto& [name, value] : record.variables) {
    if (value.find('\n') == std::string::npos) text += fmt::format("{}={}\n", name, value);
  }
  return text;
}

std::optional<ContainerRecord> parse_container_record(std::string_view text) {
  if (!text.ends_with('\n') || text.find('\0') != text.npos) return std::nullopt;
  ContainerRecord record;
  size_t end = text.find('\n'), blank = text.find(' ');
  if (blank > end) return std::nullopt;
  record.name = std::string(text.substr(0, blank));
  record.program = std::string(text.substr(blank + 1, end - blank - 1));
  std::string program = std::filesystem::path(record.program).filename().string();
  bool is_valid = is_container_name(record.name) && record.program.starts_with('/') &&
                  (program == "podman" || program == "docker");
  if (!is_valid) return std::nullopt;
  for (text.remove_prefix(end + 1); !text.empty(); text.remove_prefix(end + 1)) {
    end = text.find('\n');
    std::string_view line = text.substr(0, end);
    size_t equals = line.find('=');
    if (equals == line.npos || equals == 0) return std::nullopt;
    record.variables.emplace_back(line.substr(0, equals), line.substr(equals + 1));
  }
  return record;
}

EnvironmentVariables runtime_variables(const std::map<std::string, std::string>& variables) {
  EnvironmentVariables found;
  for (const char* name : {"PATH", "HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
                           "TMPDIR", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINER_HOST",
                           "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT"}) {
    auto variable = variables.find(name);
    if (variable != variables.end()) found.emplace_back(name, variable->second);
  }
  return found;
}

namespace {

/// podman would give the container 10 s to end.
std::vector<std::string> remove_words(const ContainerRecord& record) {
  std::vector<std::string> words{record.program, "rm", "--force"};
  bool is_podman = std::filesystem::path(record.program).filename() == "podman";
  if (is_podman) words.insert(words.end(), {"--time", "0"});
  words.push_back(record.name);
  return words;
}

/// podman fails to remove a container whose process ends at that moment ("could not be stopped:
/// container state improper"). The next call succeeds.
bool run_remove(const ContainerRecord& record) {
  constexpr int kTries = 4;
  constexpr auto kPause = std::chrono::milliseconds(100);
  for (int i = 1;; i++) {
    auto removed = run_command(remove_words(record), kRemoveLimitMs, record.variables);
    bool is_removed = removed.ok() && removed->code == 0;
    bool may_succeed = removed.ok() && removed->err.find("state improper") != std::string::npos;
    if (is_removed || !may_succeed || i == kTries) return is_removed;
    std::this_thread::sleep_for(kPause * i);
  }
}

}  // namespace

bool end_container(const std::string& path) {
  auto text = read_file(path, kRecordMax);
  if (!text.ok()) return true;
  if (auto record = parse_container_record(*text)) {
    if (!run_remove(*record)) return false;
  }
  ::unlink(path.c_str());
  return true;
}

void remove_container(const std::string& path) {
  if (end_container(path)) return;
  auto text = read_file(path, kRecordMax);
  auto record = text.ok() ? parse_container_record(*text) : std::nullopt;
  if (!record) return;
  std::string kept = std::filesystem::path(path).parent_path() / (record->name + ".container");
  ::rename(path.c_str(), kept.c_str());
}

bool is_out_of_memory(const ContainerRecord& record) {
  auto result = run_command(
      {record.program, "container", "inspect", "--format", "{{.State.OOMKilled}}", record.name},
      kInspectLimitMs, record.variables);
  return result.ok() && result->code == 0 && result->out.starts_with("true");
}

}  // namespace flow
