// The prompt is a task of a small script, so that the input runs in the sandbox and this file
// contains no Lua API.
#include "engine/executor/repl.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "engine/executor/line_editor.hpp"
#include "lua/state/script.hpp"

namespace flow {

namespace {

constexpr const char* kScript = R"lua(
local flow = require "flow"

local HELP = [[
Lua as a task of a pipeline sees it; `flow` is loaded. An expression prints its value; a line that
is not complete continues at the prompt >>. Variables without `local` are kept.
  flow.zeros { 2, 3 }     the value of an expression
  x = 3                   a variable
  help, exit, quit        this text; leave (so does Ctrl-D)
The functions: docs/reference-lua.md]]

-- `requests`: the path to write prompts to, if a line editor reads the terminal; else "".
local repl = flow.task("repl", function(ctx, interactive, requests)
  local function global(_, name)
    local value = _G[name]
    if value == nil then error("`" .. tostring(name) .. "` is not defined", 2) end
    return value
  end
  local names = setmetatable({ flow = flow }, { __index = global })
  local terminal = interactive and io.open(requests == "" and "/dev/stderr" or requests, "w")
  local separator = requests == "" and "" or "\n"
  local CANCELLED = "\3"

  local function ask(prompt)
    if terminal then terminal:write(prompt, separator) terminal:flush() end
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
  local function word(source)
    local name = interactive and source:match("^%s*(%a+)%s*$")
    return name and rawget(names, name) == nil and name
  end
  -- Reads further lines until the source is complete. Nil if that was cancelled.
  local function complete(source)
    local chunk, problem = compile(source)
    while not chunk and problem:find("<eof>", 1, true) do
      local more = ask(">> ")
      if more == CANCELLED then return nil end
      if not more then break end
      source = source .. "\n" .. more
      chunk, problem = compile(source)
    end
    return chunk, problem
  end

  for source in ask, "> " do
    local command = word(source)
    if command == "exit" or command == "quit" then break end
    if command == "help" then
      print(HELP)
    elseif source ~= CANCELLED then
      local chunk, problem = complete(source)
      if chunk then show(pcall(chunk)) elseif problem then print("error: " .. problem) end
    end
  end
end)

return flow.pipeline("repl", {}, function() return repl(false, "") end)
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

/// Gives lines of the terminal's editor to Lua, whose standard input becomes a pipe. Lua writes a
/// prompt to requests(), and the line follows on its standard input.
class EditedInput {
 public:
  /// Null if there is no editor, or no pipe.
  static std::unique_ptr<EditedInput> start() {
    int requests[2], lines[2];
    std::unique_ptr<LineEditor> editor = LineEditor::open(::dup(STDIN_FILENO), repl_history_path());
    if (editor == nullptr || pipe2(requests, O_CLOEXEC) != 0) return nullptr;
    if (pipe2(lines, O_CLOEXEC) != 0) {
      ::close(requests[0]);
      ::close(requests[1]);
      return nullptr;
    }
    ::dup2(lines[0], STDIN_FILENO);
    ::close(lines[0]);
    auto input = std::unique_ptr<EditedInput>(new EditedInput);
    input->editor_ = std::move(editor);
    input->requests_in_ = requests[0];
    input->requests_out_ = requests[1];
    input->lines_ = lines[1];
    input->thread_ = std::thread([self = input.get()] { self->serve(); });
    return input;
  }
  ~EditedInput() {
    (void)!::write(requests_out_, kEnd, sizeof kEnd - 1);
    thread_.join();
    ::close(requests_in_);
    ::close(requests_out_);
    ::close(lines_);
  }
  EditedInput(const EditedInput&) = delete;
  EditedInput& operator=(const EditedInput&) = delete;

  std::string requests() const { return "/proc/self/fd/" + std::to_string(requests_out_); }

 private:
  static constexpr char kEnd[] = "end\n";  // not a prompt
  EditedInput() = default;

  void serve() {
    std::string prompt;
    for (char c; ::read(requests_in_, &c, 1) == 1;) {
      if (c != '\n') {
        prompt += c;
        continue;
      }
      if (prompt + '\n' == kEnd) return;
      if (!give(editor_->read(prompt))) return;
      prompt.clear();
    }
  }

  /// Whether Lua reads on.
  bool give(const std::optional<LineEditor::Line>& line) {
    if (!line) {  // Lua reads the end of its input
      int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
      ::dup2(null, lines_);
      ::close(null);
      return false;
    }
    std::string bytes = (line->is_cancelled ? "\3" : line->text) + "\n";
    for (size_t at = 0; at < bytes.size();) {
      ssize_t written = ::write(lines_, bytes.data() + at, bytes.size() - at);
      if (written < 0) return false;
      at += static_cast<size_t>(written);
    }
    return true;
  }

  std::unique_ptr<LineEditor> editor_;
  int requests_in_ = -1, requests_out_ = -1, lines_ = -1;
  std::thread thread_;
};

int failed(const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  return 2;
}

}  // namespace

int run_repl() {
  bool interactive = ::isatty(STDIN_FILENO) == 1;
  if (interactive) {
    std::fputs("Lua as a task of a pipeline sees it; flow is loaded. `help` helps, Ctrl-D ends.\n",
               stderr);
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
  std::unique_ptr<EditedInput> input;
  if (interactive) input = EditedInput::start();
  request.args = Value::list({Value(interactive), Value(input ? input->requests() : "")});
  Terminal terminal;
  AttemptOutcome outcome = vm->run(request, terminal);
  if (interactive) std::fputc('\n', stderr);
  if (outcome.kind == AttemptOutcome::Kind::failed) return failed(outcome.message);
  return 0;
}

}  // namespace flow
