#include "engine/base/temporary_folder.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace flow {

namespace fs = std::filesystem;

Result<std::shared_ptr<const std::string>> make_temporary_folder() {
  std::error_code failed;
  fs::path parent = fs::temp_directory_path(failed);
  std::string path = ((failed ? "/tmp" : parent) / "flow-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr)
    return environment_error(
        fmt::format("cannot create the temporary folder `{}`: {}. TMPDIR names "
                    "the folder for it",
                    path, std::strerror(errno)));
  return std::shared_ptr<const std::string>(new std::string(path), [](const std::string* folder) {
    std::error_code ignored;
    fs::remove_all(*folder, ignored);
    delete folder;
  });
}

}  // namespace flow
