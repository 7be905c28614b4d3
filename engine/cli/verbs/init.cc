// flow init DIR: creates a small pipeline that runs as it is.
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace fs = std::filesystem;

namespace {

constexpr const char* kScript = R"(local flow = require "flow"

local greet = flow.task("greet", function(ctx, name)
  ctx:log("greeting %s", name)
  return "Hello, " .. name .. "!"
end)

local count = flow.shell("count", {
  args = { "text" },
  command = [[printf %s {text} | wc -c]],
})

local report = flow.task("report", { retries = 1 }, function(ctx, greetings, counted)
  return { greetings = greetings, first_length = tonumber(counted.stdout) }
end)

return flow.pipeline("hello", {
  names = flow.param.list { of = "string", default = { "world", "moon" }, help = "names to greet" },
}, function(p)
  local greetings = flow.map(greet, p.names)
  return report(greetings, count(greetings[1]))
end)
)";
constexpr const char* kIgnore = ".flow/\n";

/// Where lua-language-server finds flow's definitions; "" if they are not installed.
std::string annotations() {
  std::error_code failed;
  fs::path program = fs::read_symlink("/proc/self/exe", failed);
  fs::path folder =
      (program.parent_path() / ".." / "share" / "flow" / "library").lexically_normal();
  return fs::exists(folder / "flow.lua", failed) ? folder.string() : "";
}

std::string editor_settings(const std::string& library) {
  return "{\n  \"runtime.version\": \"Lua 5.4\",\n  \"workspace.library\": [" + json_text(library) +
         "]\n}\n";
}

void write_new(const fs::path& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  if (!file) fail_environment("cannot write `" + path.string() + "`: " + std::strerror(errno));
}

}  // namespace

void add_init(CLI::App& app, VerbContext& context) {
  auto dir = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, context, "init", "create a folder with a small pipeline");
  verb->add_option("dir", *dir, "folder to create")->type_name("DIR")->required();
  verb->callback([&context, dir] {
    context.action = [&context, dir] {
      std::error_code failed;
      fs::create_directories(*dir, failed);
      if (failed) fail_environment("cannot create the folder `" + *dir + "`: " + failed.message());
      fs::path script = fs::path(*dir) / "pipeline.lua", ignore = fs::path(*dir) / ".gitignore";
      if (fs::exists(script, failed)) {
        fail("`" + script.string() + "` exists already and is not changed. Choose another folder.");
      }
      std::vector<std::pair<fs::path, std::string>> files = {{script, kScript}};
      if (!fs::exists(ignore, failed)) files.emplace_back(ignore, kIgnore);
      fs::path settings = fs::path(*dir) / ".luarc.json";
      std::string library = annotations();
      if (!library.empty() && !fs::exists(settings, failed))
        files.emplace_back(settings, editor_settings(library));
      for (const auto& [path, content] : files) {
        write_new(path, content);
        print_line(context.json ? "{\"path\":" + json_text(path.string()) + "}"
                                : "wrote " + path.string());
      }
      if (!context.json) print_line("try: flow run " + *dir);
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
