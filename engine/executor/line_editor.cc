#include "engine/executor/line_editor.hpp"

#include <unistd.h>

#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#ifdef FLOW_HAS_LIBEDIT
#include <histedit.h>
#endif

namespace flow {

namespace fs = std::filesystem;

std::string repl_history_path() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder = state == nullptr ? "" : state;
  if (!folder.is_absolute()) folder = home == nullptr ? "" : fs::path(home) / ".local" / "state";
  if (!folder.is_absolute()) return "";  // the standard ignores relative paths
  folder /= "flow";
  std::error_code failed;
  fs::create_directories(folder, failed);
  return fs::is_directory(folder, failed) ? (folder / "repl_history").string() : "";
}

#ifdef FLOW_HAS_LIBEDIT

namespace {

constexpr int kHistoryMax = 1000;

/// The locale of the calling thread, for its lifetime: how typed characters are encoded.
class ThreadLocale {
 public:
  explicit ThreadLocale(locale_t locale)
      : before_(locale == locale_t{} ? locale_t{} : uselocale(locale)) {}
  ~ThreadLocale() {
    if (before_ != locale_t{}) uselocale(before_);
  }
  ThreadLocale(const ThreadLocale&) = delete;
  ThreadLocale& operator=(const ThreadLocale&) = delete;

 private:
  const locale_t before_;
};

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

class LibeditEditor : public LineEditor {
 public:
  LibeditEditor(std::FILE* input, const std::string& history_path)
      : input_(input), history_path_(history_path) {
    locale_ = newlocale(LC_CTYPE_MASK, "", nullptr);
    ThreadLocale scope(locale_);
    editor_ = el_init("flow", input_.get(), stderr, stderr);
    history_ = history_init();
    if (editor_ == nullptr || history_ == nullptr) return;
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistoryMax);
    history(history_, &event, H_SETUNIQUE, 1);
    if (!history_path_.empty()) history(history_, &event, H_LOAD, history_path_.c_str());
    el_set(editor_, EL_CLIENTDATA, this);
    el_set(editor_, EL_PROMPT, &LibeditEditor::prompt_of);
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_SIGNAL, 1);
    el_set(editor_, EL_HIST, history, history_);
    bind_keys();
  }
  ~LibeditEditor() override {
    if (editor_ != nullptr) el_end(editor_);
    if (history_ != nullptr) history_end(history_);
    if (locale_ != locale_t{}) freelocale(locale_);
  }
  LibeditEditor(const LibeditEditor&) = delete;
  LibeditEditor& operator=(const LibeditEditor&) = delete;

  bool is_usable() const { return editor_ != nullptr && history_ != nullptr; }

  std::optional<Line> read(const std::string& prompt) override {
    ThreadLocale scope(locale_);
    prompt_ = prompt;
    is_cancelled_ = false;
    int size = 0;
    const char* typed = el_gets(editor_, &size);
    std::optional<Line> line;
    if (is_cancelled_) {
      std::fputc('\n', stderr);
      line = Line{"", true};
    } else if (typed != nullptr && size > 0) {
      line = Line{std::string(typed, static_cast<size_t>(size)), false};
      while (!line->text.empty() && line->text.back() == '\n') line->text.pop_back();
      remember(line->text);
    }
    return line;
  }

 private:
  static LibeditEditor& self(EditLine* editor) {
    void* client = nullptr;
    el_get(editor, EL_CLIENTDATA, &client);
    return *static_cast<LibeditEditor*>(client);
  }
  static char* prompt_of(EditLine* editor) { return self(editor).prompt_.data(); }
  static unsigned char cancel(EditLine* editor, int) {
    self(editor).is_cancelled_ = true;
    return CC_EOF;
  }

  static unsigned char suspend(EditLine*, int) {
    ::kill(0, SIGTSTP);
    return CC_REDISPLAY;
  }
  static unsigned char ignore(EditLine*, int) { return CC_NORM; }

  void bind(const std::string& key, const char* function) {
    el_set(editor_, EL_BIND, key.c_str(), function, nullptr);
  }

  void bind_keys() {
    // While a line is edited, Ctrl-C is a key. While Lua computes, it ends the process.
    el_set(editor_, EL_SETTY, "-d", "-isig", nullptr);
    el_set(editor_, EL_ADDFN, "flow-cancel", "cancel the line", &LibeditEditor::cancel);
    el_set(editor_, EL_ADDFN, "flow-suspend", "stop the process", &LibeditEditor::suspend);
    el_set(editor_, EL_ADDFN, "flow-ignore", "do nothing", &LibeditEditor::ignore);
    bind("^C", "flow-cancel");
    bind("^Z", "flow-suspend");
    bind("^R", "em-inc-search-prev");
    // Keys without a meaning, of which libedit would insert the last characters.
    constexpr int kKeysMax = 34;
    for (int key = 1; key <= kKeysMax; key++)
      bind("\\e[" + std::to_string(key) + "~", "flow-ignore");
    for (char key = 'P'; key <= 'S'; key++) bind(std::string("\\eO") + key, "flow-ignore");
    bind("\\e[1~", "ed-move-to-beg");
    bind("\\e[3~", "ed-delete-next-char");
    bind("\\e[4~", "ed-move-to-end");
    bind("\\e[1;5C", "em-next-word");
    bind("\\e[1;5D", "ed-prev-word");
  }

  void remember(const std::string& text) {
    if (text.empty()) return;
    HistEvent event;
    history(history_, &event, H_ENTER, text.c_str());
    // Kept as well if the process is then killed. A history that cannot be written is no error.
    if (!history_path_.empty()) history(history_, &event, H_SAVE, history_path_.c_str());
  }

  std::unique_ptr<std::FILE, FileCloser> input_;
  const std::string history_path_;
  locale_t locale_{};
  EditLine* editor_ = nullptr;
  History* history_ = nullptr;
  std::string prompt_;
  bool is_cancelled_ = false;
};

}  // namespace

std::unique_ptr<LineEditor> LineEditor::open(int input, const std::string& history_path) {
  std::FILE* file = fdopen(input, "r");
  if (file == nullptr) {
    ::close(input);
    return nullptr;
  }
  auto editor = std::make_unique<LibeditEditor>(file, history_path);
  return editor->is_usable() ? std::move(editor) : nullptr;
}

#else

std::unique_ptr<LineEditor> LineEditor::open(int input, const std::string&) {
  ::close(input);
  return nullptr;
}

#endif

}  // namespace flow
