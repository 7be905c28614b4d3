// What `flow top` shows and how it answers keys. Pure: takes views and keys, returns lines and
// requests.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/cli/display/text_style.hpp"
#include "engine/cli/top/top_tables.hpp"
#include "flow/cluster_view.hpp"

namespace flow::cli {

/// A key: a Unicode code point, or one of these beyond them.
enum Key : uint32_t {
  kEnter = '\n',
  kTabulator = '\t',
  kEscape = 27,
  kBackspace = 127,
  kUp = 0x110000,
  kDown,
  kLeft,
  kRight,
  kPageUp,
  kPageDown,
  kHome,
  kEnd,
  kRedraw,  // Ctrl-L
};

/// Something that the user has asked for, and has confirmed.
struct TopRequest {
  enum class Kind : uint8_t { cancel, signal };
  Kind kind = Kind::cancel;
  std::string run;           // id
  std::string signal, json;  // of a signal: its name and value, "" for true
};

struct TopFrame {
  std::vector<Line> lines;        // at most as many as the terminal has rows
  size_t highlighted = SIZE_MAX;  // the line of the selected row; SIZE_MAX: none
};

class TopView {
 public:
  void set_view(std::shared_ptr<const ClusterView> view);
  /// Why the newest state could not be read; "": it could.
  void set_problem(std::string problem) { problem_ = std::move(problem); }
  /// The outcome of a request. It stays until the next key.
  void set_note(std::string note) { note_ = std::move(note); }

  /// Takes a key. Returns what the user asks for with it.
  std::optional<TopRequest> on_key(uint32_t key);
  bool has_ended() const { return has_ended_; }
  /// The run whose tasks are shown; "": the view chooses it.
  const std::string& run() const { return run_; }
  void set_run(std::string run) { run_ = std::move(run); }

  /// `now_ms`: for the durations of what runs.
  TopFrame frame(size_t columns, size_t rows, int64_t now_ms);

 private:
  enum class Mode : uint8_t { list, filter, confirm, prompt, help };
  std::optional<TopRequest> on_list_key(uint32_t key);
  std::optional<TopRequest> on_text_key(uint32_t key);
  std::optional<TopRequest> on_confirmation(uint32_t key);
  std::optional<TopRequest> on_signal_line();
  void choose_tab(size_t tab);
  void move(uint32_t key);
  void sort_by_next();
  void open_selected();
  /// The run that a request is about: of the selected row, or the shown one. Null, with a note, if
  /// there is none that has not ended.
  const RunInfo* run_of_request();
  void begin_cancel();
  void begin_signal();
  /// Makes the table, its order and the selection again, after any of them changed.
  void arrange();
  std::string selected_key() const;
  std::vector<Line> head_lines(size_t columns) const;
  Line tabs_line() const;
  Line bottom_line() const;
  void add_rows(size_t columns, size_t rows, TopFrame& frame);
  TopFrame help_frame(size_t rows) const;

  std::shared_ptr<const ClusterView> view_;
  std::string problem_, note_, run_;
  bool has_ended_ = false;
  Mode mode_ = Mode::list;
  std::string text_;  // the line that is edited
  TopRequest asked_;  // waits for its confirmation, or for its signal
  size_t tab_ = 0;    // index in kTabs
  std::array<TableOrder, kTabs.size()> orders_;
  TopTable table_;  // of the tab
  int64_t now_ms_ = 0;
  std::vector<uint32_t> rows_;  // of the table, in the order in which they are shown
  size_t selected_ = 0, first_ = 0, page_ = 1;  // in rows_; the first one on the screen
};

/// Everything at once, for a pipe: at most `rows_max` rows of each table.
std::string top_text(const ClusterView& view, size_t columns, size_t rows_max, int64_t now_ms);

}  // namespace flow::cli
