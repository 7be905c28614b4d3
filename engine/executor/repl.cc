// The prompt is a task of a small script, so that the input runs in the sandbox and this file
// contains no Lua API.
#include "engine/executor/repl.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "lua/state/script.hpp"

namespace flow {

namespace {

constexpr const char* kScript = R"lua(
local flow = require "flow"

local repl = flow.task("repl", function(ctx, interactive)
  local function global(_, name)
    local value = _G[name]
    if value == nil then error("`" .. tostring(name) .. "` is not defined", 2) end
    return value
  end
  local names = setmetatable({ flow = flow }, { __index = global })
  local terminal = interactive and io.open("/dev/stderr", "w")

  local function ask(prompt)
    if terminal then terminal:write(prompt) terminal:flush() end
    return io.read("l")
  end
  local function compile(source)
    local chunk = load("return " .. source, "=repl", "t", names)
    if chunk then return chunk end
    return load(source, "=repl", "t", names)
  end
  local function text(value)
    if type(value) ~= "table" or getmetatable(value) then return tostring(value) end
    local ok, json = pcall(function() return flow.json.encode(value) end)
    return ok and json or tostring(value)
  end
  local function show(ok, ...)
    if not ok then return print("error: " .. tostring((...))) end
    local texts = {}
    for i = 1, select("#", ...) do texts[i] = text((select(i, ...))) end
    if #texts > 0 then print(table.concat(texts, "\t")) end
  end

  for source in ask, "> " do
    local chunk, problem = compile(source)
    while not chunk and problem:find("<eof>", 1, true) do
      local more = ask(">> ")
      if not more then break end
      source = source .. "\n" .. more
      chunk, problem = compile(source)
    end
    if chunk then show(pcall(chunk)) else print("error: " .. problem) end
  end
end)

return flow.pipeline("repl", {}, function() return repl(false) end)
)lua";

/// A prompt has no run: output goes to stdout, and operations that need a state are rejected.
class Terminal : public AttemptHost {
 public:
  void log(std::string_view text) override {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fputc('\n', stdout);
    std::fflush(stdout);
  }
  void progress(double, const Value&) override {}
  void metric(const std::string&, double, std::optional<int64_t>) override {}
  Status save_step(const std::string&, const Value&) override { return {}; }
  Status save_checkpoint(Value) override { return {}; }
  Status finish_checkpoints() override { return {}; }
  Result<std::optional<Value>> newest_checkpoint() override { return std::optional<Value>(); }
  bool stopping() const override { return false; }
  void service_ready(const std::string&) override {}
  void wait_durable() override {}
  void reach_outside() override {}
  Status make_scratch() override { return {}; }
  Result<Bytes> blob(const Digest&) override { return no_state(); }
  Result<std::string> file_path(const File& file) override {
    if (!file.origin.empty()) return file.origin;
    return no_state();
  }
  Result<File> store_file(const std::string&) override { return no_state(); }
  Status store_tensor(const Tensor&) override { return {}; }
  std::string env(const std::string& name, bool& found) override {
    const char* value = std::getenv(name.c_str());
    found = value != nullptr;
    return found ? value : "";
  }
  std::string hidden(std::string text) const override { return text; }

 private:
  static Error no_state() { return user_error("the prompt has no run and no state behind it"); }
};

int failed(const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  return 2;
}

}  // namespace

int run_repl() {
  bool interactive = ::isatty(STDIN_FILENO) == 1;
  if (interactive) {
    std::fputs("Lua as a task of a pipeline sees it; flow is loaded. Ctrl-D ends.\n", stderr);
  }
  Bundle bundle;
  std::error_code removed;
  bundle.root = std::filesystem::current_path(removed).string();
  if (removed) return failed("the working directory cannot be used: " + removed.message());
  bundle.main = "repl";
  bundle.files = {{bundle.main, kScript}};
  std::unique_ptr<ScriptVm> vm = make_script_vm();
  if (Status loaded = vm->load(bundle); !loaded.ok()) return failed(loaded.error().message);
  AttemptRequest request;
  request.run = request.task = "repl";
  request.dir = bundle.root;
  request.args = Value::list({Value(interactive)});
  Terminal terminal;
  AttemptOutcome outcome = vm->run(request, terminal);
  if (interactive) std::fputc('\n', stderr);
  if (outcome.kind == AttemptOutcome::Kind::failed) return failed(outcome.message);
  return 0;
}

}  // namespace flow
