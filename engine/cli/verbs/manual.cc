// flow manual DIR: writes the manual pages. Only an installation calls it, so no help lists it.
#include "engine/cli/manual/manual_page.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace {

/// The day of the pages: that of a reproducible build, else today.
std::time_t day_of_pages() {
  const char* seconds = std::getenv("SOURCE_DATE_EPOCH");
  return seconds != nullptr ? static_cast<std::time_t>(std::strtoll(seconds, nullptr, 10))
                            : std::time(nullptr);
}

void write_page(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) fail_environment("cannot write `" + path.string() + "`: " + std::strerror(errno));
}

}  // namespace

void add_manual(CLI::App& app, VerbContext& context) {
  auto dir = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("manual", "write the manual pages into a folder");
  verb->group("");
  verb->add_option("dir", *dir, "folder to write to")->type_name("DIR")->required();
  verb->callback([&context, dir] {
    context.action = [&context, dir] {
      std::filesystem::path folder = *dir;
      std::error_code failed;
      std::filesystem::create_directories(folder, failed);
      if (failed) fail_environment("cannot create the folder `" + *dir + "`: " + failed.message());
      std::time_t day = day_of_pages();
      write_page(folder / "flow.1", program_page(*context.app, day));
      write_page(folder / "flow-executor.1", executor_page(day));
      for (const CLI::App* each : listed_verbs(*context.app))
        write_page(folder / ("flow-" + each->get_name() + ".1"), verb_page(*each, day));
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
