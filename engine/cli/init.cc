// flow init DIR: a small pipeline that runs as it is.
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/cli/verbs.hpp"

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
  names = flow.param.list { of = "string", default = { "world", "moon" }, help = "whom to greet" },
}, function(p)
  local greetings = flow.map(greet, p.names)
  return report(greetings, count(greetings[1]))
end)
)";
constexpr const char* kIgnore = ".flow/\n";

void write_new(const fs::path& path, const char* content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  if (!file) fail_environment("cannot write `" + path.string() + "`: " + std::strerror(errno));
}

}  // namespace

void add_init(CLI::App& app, Session& session) {
  auto dir = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, session, "init", "make a folder with a small pipeline");
  verb->add_option("dir", *dir, "the folder")->type_name("DIR")->required();
  verb->callback([&session, dir] {
    session.action = [&session, dir] {
      std::error_code failed;
      fs::create_directories(*dir, failed);
      if (failed) fail_environment("cannot make the folder `" + *dir + "`: " + failed.message());
      fs::path script = fs::path(*dir) / "pipeline.lua", ignore = fs::path(*dir) / ".gitignore";
      if (fs::exists(script, failed)) {
        fail("`" + script.string() +
             "` is there already and stays as it is. Choose another folder.");
      }
      write_new(script, kScript);
      bool ignored = fs::exists(ignore, failed);
      if (!ignored) write_new(ignore, kIgnore);
      for (const fs::path& path : {script, ignore}) {
        if (path == ignore && ignored) continue;
        print_line(session.json ? "{\"path\":" + json_text(path.string()) + "}"
                                : "wrote " + path.string());
      }
      if (!session.json) print_line("try: flow run " + *dir);
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
