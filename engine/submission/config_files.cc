// Where flow.toml is looked for.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/files.hpp"
#include "engine/config/configuration.hpp"
#include "engine/config/toml_reader.hpp"
#include "flow/flow.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

/// FLOW_CONFIG, or the files that exist of the two places.
std::vector<std::string> config_paths(const std::string& folder) {
  auto variable = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text == nullptr ? "" : text);
  };
  if (std::string named = variable("FLOW_CONFIG"); !named.empty()) return {named};
  std::string base = variable("XDG_CONFIG_HOME"), home = variable("HOME");
  if (base.empty() && !home.empty()) base = home + "/.config";
  std::vector<std::string> paths = {(fs::path(folder) / "flow.toml").string()};
  if (!base.empty()) paths.push_back(base + "/flow/flow.toml");
  std::error_code failed;
  std::erase_if(paths, [&](const std::string& path) { return !fs::exists(path, failed); });
  return paths;
}

}  // namespace

std::vector<ConfigFile> find_config(const std::string& folder) {
  std::vector<ConfigFile> files;
  for (const std::string& path : config_paths(folder)) {
    auto text = read_file(path, kTomlBytesMax);
    if (!text.ok()) throw Failed(user_error("the configuration: " + text.error().message));
    files.push_back({path, std::move(*text)});
  }
  for (size_t i = 0, count = files.size(); i < count; i++) {
    for (const std::string& path : price_files_of(files[i])) {
      auto text = read_file(path, kTomlBytesMax);  // one that applies is missed when it is used
      if (text.ok()) files.push_back({path, std::move(*text), true});
    }
  }
  return files;
}

}  // namespace flow
