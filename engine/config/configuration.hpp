// Options of flow.toml files in the order of their precedence, each with its origin. Knows names
// and types; what a value means is checked where it is applied.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "flow/flow.hpp"

namespace flow {

/// The tables of flow.toml.
enum class ConfigTable : uint8_t { tasks, defaults, slurm, head, prices, notify };
const char* table_name(ConfigTable table);

/// An option as a file sets it.
struct ConfigSetting {
  ConfigTable table = ConfigTable::defaults;
  std::string pattern;  // of `tasks`
  std::string option;   // "cpus", "env.MODE", "gpu_hour.H200"
  Value value;          // { env = NAME } of a secret
  std::string file;     // path
  uint32_t line = 0;
  std::string header;  // of its table: `[profile.gpu.tasks."train*"]`
  uint32_t header_line = 0;

  /// `flow.toml:12 [tasks."train*"]`; without the table in a file of prices
  std::string origin() const;
  /// `flow.toml:12: `, for errors.
  std::string location() const;
};

struct Configuration {
  std::vector<ConfigSetting> settings;  // of the files and their profile, highest precedence first
  /// The options of [tasks] of profiles that are not chosen: they are only checked.
  std::vector<ConfigSetting> others;
};

/// Reads the files, the first of which has precedence. Error (user) with file and line for unknown
/// tables and keys, for wrong types, and for a profile that no file has.
Result<Configuration> read_configuration(const ConfigOptions& config);

/// The setting `include` of [prices] with the highest precedence; null if there is none.
const ConfigSetting* price_include(const Configuration& configuration);
/// The path that it names, from the folder of its own file.
std::string included_path(const ConfigSetting& include);
/// The paths of all files of prices that `file` names, also in profiles. None if it is invalid.
std::vector<std::string> price_files_of(const ConfigFile& file);
/// The prices of such a file: the options of [prices], outside of tables.
Result<std::vector<ConfigSetting>> read_price_file(const ConfigFile& file);

/// Whether the option is one of a task, such as `cpus` or `env.MODE`, and not of a run.
bool is_task_option(const std::string& option);
/// Whether a task's name matches a pattern: `*`, `?`, `[…]`, `{a,b}`.
bool matches_task(const std::string& pattern, const std::string& task);
/// The name of the variable of a secret, `{ env = NAME }`; null for other values.
const std::string* secret_of(const Value& value);

}  // namespace flow
