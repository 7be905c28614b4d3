// Containers: which runtime runs an image, its command line, and the record by which a container is
// removed after a crash. The command lines are pure.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/environment_variables.hpp"
#include "flow/result.hpp"

namespace flow {

enum class RuntimeKind : uint8_t { podman, docker, apptainer };

struct ContainerRuntime {
  RuntimeKind kind = RuntimeKind::podman;
  std::string program;  // absolute path
  /// Whether containers live outside the process that started them, and have to be removed.
  bool has_own_processes() const { return kind != RuntimeKind::apptainer; }
};

/// The first of podman, docker and apptainer on PATH that runs such an image; nothing if none does.
std::optional<ContainerRuntime> find_runtime(const std::string& container,
                                             const EnvironmentVariables& variables);
/// The programs that could run it, for an error: "podman, docker or apptainer".
std::string runtimes_of(const std::string& container);

/// The id of the image, without "sha256:". With `pulls` an image that is not there is pulled. For
/// apptainer it is the digest in the name, and a name without one is an error.
Result<std::string> image_id(const ContainerRuntime& runtime, const std::string& container,
                             const EnvironmentVariables& variables, bool pulls);

/// What a container is started with.
struct ContainerOrder {
  std::string image;                    // an image id; for apptainer a name or a path
  std::string name;                     // of the container
  std::string directory;                // the working directory, mounted read-write at its own path
  std::vector<std::string> writable{};  // further files, at their own paths
  std::vector<std::string> read_only{};  // files and folders, at their own paths
  std::string variables_file{};          // NAME=value lines
  std::vector<std::string> inherited{};  // names of variables that the runtime passes on
  int64_t memory_bytes = 0;              // 0: no limit
  std::vector<std::string> gpus{};       // UUIDs
  bool has_cdi = false;                  // the machine describes its GPUs by CDI
  uid_t user = 0;
  gid_t group = 0;
  std::vector<std::string> command{};
};
/// The whole command line. Error if a path cannot be mounted.
Result<std::vector<std::string>> container_words(const ContainerRuntime& runtime,
                                                 const ContainerOrder& order);
/// The text of `variables_file`, and the names of variables whose values have several lines, which
/// the file cannot hold.
std::string variables_text(const ContainerRuntime& runtime,
                           const std::map<std::string, std::string>& variables,
                           std::vector<std::string>& inherited);
/// Whether the machine describes NVIDIA GPUs by CDI.
bool has_cdi();

/// A container that exists: the file scratch/slots/PID.container, "PROGRAM NAME" and then the
/// variables that the runtime needs to find its storage.
struct ContainerRecord {
  std::string program, name;
  EnvironmentVariables variables{};
};
std::string container_record_path(const std::string& state_dir, pid_t executor);
/// Where the variables of the executor's container are while it begins. They may be secrets.
std::string container_variables_path(const std::string& state_dir, pid_t executor);
std::string encode_container_record(const ContainerRecord& record);
/// Nothing if it is not one that flow wrote.
std::optional<ContainerRecord> parse_container_record(std::string_view text);
/// Those of `variables` by which a runtime finds its storage.
EnvironmentVariables runtime_variables(const std::map<std::string, std::string>& variables);
/// Ends and removes the container of the record at `path`, and then the record. Returns false if
/// that failed, for example because the runtime was killed; then the record stays.
bool end_container(const std::string& path);
/// The same. A record that stays is renamed to the container's name, so that no executor's next
/// container replaces it: the next start of the engine tries again.
void remove_container(const std::string& path);
/// Whether the kernel ended the container for its memory limit.
bool is_out_of_memory(const ContainerRecord& record);

}  // namespace flow
