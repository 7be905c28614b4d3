#include "engine/cli/top/top_view.hpp"

#include <algorithm>
#include <utility>

#include "engine/cli/display/common.hpp"
#include "engine/cli/display/task_rows.hpp"

namespace flow::cli {

namespace {

constexpr size_t kRowsMin = 3, kColumnsMin = 20;  // of a terminal; of a lower one a message
constexpr size_t kWholeRowsMin = 8;               // for the lines about the state and the run
constexpr size_t kTextMax = 400;                  // bytes of a line that is edited

bool is_over(const std::string& status) {
  return status == "succeeded" || status == "failed" || status == "cancelled";
}

std::string named(const RunInfo& run) {
  return run.id + (run.name.empty() ? "" : " (" + run.name + ")");
}

void add_code_point(uint32_t code, std::string& to) {
  auto add = [&](uint32_t byte) { to += static_cast<char>(byte); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xc0 | code >> 6);
  } else if (code < 0x10000) {
    add(0xe0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3f));
  } else {
    add(0xf0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3f));
    add(0x80 | (code >> 6 & 0x3f));
  }
  add(0x80 | (code & 0x3f));
}

void remove_code_point(std::string& text) {
  while (!text.empty() && (text.back() & 0xc0) == 0x80) text.pop_back();
  if (!text.empty()) text.pop_back();
}

/// The names of signals that tasks of the run wait for: the reasons name them.
std::string awaited_signal(const ClusterView& view) {
  if (!view.run) return "";
  std::vector<std::string> signals = awaited_signals(*view.run);
  return signals.empty() ? "" : signals.front();
}

const char* const kHelp[] = {
    "1 to 6, Tab, Left, Right   choose a table: runs, tasks, workers, GPUs, services, waiting",
    "Up, Down, PgUp, PgDn, Home, End   choose a row",
    "Enter    show the tasks of the chosen run",
    "/        show only rows with a text; Esc shows all again",
    "s, r     sort by the next column; reverse the order",
    "k        cancel the chosen run, or the run whose tasks are shown, after a question",
    "g        send a signal to it: NAME, or NAME and a value as JSON",
    "Ctrl-L   draw the screen again",
    "q        quit",
};

}  // namespace

void TopView::set_view(std::shared_ptr<const ClusterView> view) {
  std::string key = selected_key();
  view_ = std::move(view);
  arrange();
  auto same = std::ranges::find_if(rows_, [&](uint32_t row) { return table_.key(row) == key; });
  if (same != rows_.end()) selected_ = static_cast<size_t>(same - rows_.begin());
}

std::string TopView::selected_key() const {
  return selected_ < rows_.size() ? table_.key(rows_[selected_]) : "";
}

void TopView::arrange() {
  if (!view_) return;
  table_ = top_table(*view_, kTabs[tab_], now_ms_);
  rows_ = ordered_rows(table_, orders_[tab_]);
  selected_ = std::min(selected_, rows_.empty() ? 0 : rows_.size() - 1);
}

// ---- keys

std::optional<TopRequest> TopView::on_key(uint32_t key) {
  note_.clear();
  switch (mode_) {
    case Mode::list:
      return on_list_key(key);
    case Mode::filter:
    case Mode::prompt:
      return on_text_key(key);
    case Mode::confirm:
      return on_confirmation(key);
    case Mode::help:
      mode_ = Mode::list;
      break;
  }
  return std::nullopt;
}

std::optional<TopRequest> TopView::on_list_key(uint32_t key) {
  if (key >= '1' && key < '1' + kTabs.size()) {
    choose_tab(key - '1');
    return std::nullopt;
  }
  switch (key) {
    case 'q':
    case 'Q':
      has_ended_ = true;
      break;
    case '?':
    case 'h':
      mode_ = Mode::help;
      break;
    case kTabulator:
    case kRight:
      choose_tab((tab_ + 1) % kTabs.size());
      break;
    case kLeft:
      choose_tab((tab_ + kTabs.size() - 1) % kTabs.size());
      break;
    case '/':
      mode_ = Mode::filter;
      text_ = orders_[tab_].filter;
      break;
    case kEscape:
      orders_[tab_].filter.clear();
      arrange();
      break;
    case 's':
      sort_by_next();
      break;
    case 'r':
      orders_[tab_].is_reverse = !orders_[tab_].is_reverse;
      arrange();
      break;
    case kEnter:
      open_selected();
      break;
    case 'k':
      begin_cancel();
      break;
    case 'g':
      begin_signal();
      break;
    default:
      move(key);
  }
  return std::nullopt;
}

void TopView::choose_tab(size_t tab) {
  tab_ = tab;
  selected_ = first_ = 0;
  arrange();
}

void TopView::move(uint32_t key) {
  size_t last = rows_.empty() ? 0 : rows_.size() - 1;
  size_t at = selected_;
  if (key == kUp) at -= std::min<size_t>(at, 1);
  if (key == kDown) at++;
  if (key == kPageUp) at -= std::min(at, page_);
  if (key == kPageDown) at += page_;
  if (key == kHome) at = 0;
  if (key == kEnd) at = last;
  selected_ = std::min(at, last);
}

void TopView::sort_by_next() {
  TableOrder& order = orders_[tab_];
  order.column = order.column >= table_.titles.size() ? 0 : order.column + 1;
  if (order.column >= table_.titles.size()) order.column = SIZE_MAX;
  arrange();
}

void TopView::open_selected() {
  if (kTabs[tab_] != Tab::runs || selected_ >= rows_.size()) return;
  run_ = selected_key();
  choose_tab(1);
}

const RunInfo* TopView::run_of_request() {
  if (!view_) return nullptr;
  const RunInfo* run = view_->run ? &*view_->run : nullptr;
  if (kTabs[tab_] == Tab::runs)
    run = selected_ < rows_.size() ? &view_->runs[rows_[selected_]] : nullptr;
  if (run == nullptr) {
    note_ = "no run is selected";
  } else if (is_over(run->status)) {
    note_ = "the run " + named(*run) + " has ended: " + run->status;
    run = nullptr;
  }
  return run;
}

void TopView::begin_cancel() {
  const RunInfo* run = run_of_request();
  if (run == nullptr) return;
  asked_ = {TopRequest::Kind::cancel, run->id, "", ""};
  text_ = "cancel " + named(*run) + "? It cannot be resumed. y or n";
  mode_ = Mode::confirm;
}

void TopView::begin_signal() {
  const RunInfo* run = run_of_request();
  if (run == nullptr) return;
  asked_ = {TopRequest::Kind::signal, run->id, "", ""};
  bool is_shown = view_->run && view_->run->id == run->id;
  text_ = is_shown ? awaited_signal(*view_) : "";
  mode_ = Mode::prompt;
}

std::optional<TopRequest> TopView::on_confirmation(uint32_t key) {
  mode_ = Mode::list;
  if (key == 'y' || key == 'Y') return asked_;
  note_ = "not cancelled";
  return std::nullopt;
}

std::optional<TopRequest> TopView::on_text_key(uint32_t key) {
  const bool is_filter = mode_ == Mode::filter;
  if (key == kEscape || key == kEnter) {
    mode_ = Mode::list;
    if (!is_filter && key == kEnter) return on_signal_line();
    if (is_filter && key == kEscape) text_.clear();
  } else if (key == kBackspace || key == '\b') {
    remove_code_point(text_);
  } else if (key >= ' ' && key < kUp && text_.size() < kTextMax) {
    add_code_point(key, text_);
  }
  if (is_filter && orders_[tab_].filter != text_) {
    orders_[tab_].filter = text_;
    selected_ = first_ = 0;
    arrange();
  }
  return std::nullopt;
}

std::optional<TopRequest> TopView::on_signal_line() {
  size_t name_end = std::min(text_.find(' '), text_.size());
  asked_.signal = text_.substr(0, name_end);
  size_t value = text_.find_first_not_of(' ', name_end);
  asked_.json = value == std::string::npos ? "" : text_.substr(value);
  if (asked_.signal.empty()) {
    note_ = "no signal was sent: it needs a name";
    return std::nullopt;
  }
  if (auto json = from_json(asked_.json); !asked_.json.empty() && !json.ok()) {
    note_ = "no signal was sent: its value is not JSON: " + json.error().message;
    return std::nullopt;
  }
  return asked_;
}

// ---- lines

TopFrame TopView::frame(size_t columns, size_t rows, int64_t now_ms) {
  now_ms_ = now_ms;
  TopFrame frame;
  if (rows < kRowsMin || columns < kColumnsMin) {
    frame.lines = {{{"terminal too small"}}};
    return frame;
  }
  if (mode_ == Mode::help) return help_frame(rows);
  if (view_ && !rows_.empty()) table_ = top_table(*view_, kTabs[tab_], now_ms);
  if (rows >= kWholeRowsMin) frame.lines = head_lines(columns);
  frame.lines.push_back(tabs_line());
  if (view_) add_rows(columns, rows - frame.lines.size() - 1, frame);
  frame.lines.resize(rows - 1);
  frame.lines.push_back(bottom_line());
  return frame;
}

std::vector<Line> TopView::head_lines(size_t) const {
  if (!view_) return {{{problem_.empty() ? "reading the state" : problem_, Color::bold}}, {}};
  Line state = {{"flow top  ", Color::bold}, {view_->state}};
  if (!view_->has_writer) state.push_back({"  no process writes it", Color::yellow});
  state.push_back({"  " + local_time(view_->at_ms)});
  if (!view_->run) return {state, {{"no run yet: `flow run FILE` starts one"}}};
  Line run = {{named(*view_->run) + "  " + view_->run->status + "  ", Color::bold}};
  Line counts = counts_line(view_->run->counts);
  run.insert(run.end(), counts.begin(), counts.end());
  return {state, run};
}

Line TopView::tabs_line() const {
  Line line;
  for (size_t tab = 0; tab < kTabs.size(); tab++) {
    std::string text = std::to_string(tab + 1) + " " + tab_name(kTabs[tab]);
    bool is_chosen = tab == tab_;
    line.push_back(
        {is_chosen ? "[" + text + "]" : " " + text + " ", is_chosen ? Color::bold : Color::dim});
  }
  if (!view_) return line;
  const TableOrder& order = orders_[tab_];
  std::string text = "  " + std::to_string(rows_.size());
  if (rows_.size() < table_.rows) text += " of " + std::to_string(table_.rows);
  if (!order.filter.empty()) text += " with `" + order.filter + "`";
  if (order.column < table_.titles.size()) text += ", by " + table_.titles[order.column];
  if (order.is_reverse) text += ", reversed";
  line.push_back({text});
  return line;
}

Line TopView::bottom_line() const {
  switch (mode_) {
    case Mode::filter:
      return {{"/" + text_ + "_", Color::bold}};
    case Mode::prompt:
      return {{"signal NAME [JSON]: " + text_ + "_", Color::bold}};
    case Mode::confirm:
      return {{text_, Color::yellow}};
    default:
      break;
  }
  if (!note_.empty()) return {{note_, Color::bold}};
  if (!problem_.empty()) return {{problem_, Color::red}};
  return {
      {"q quit  ? help  / filter  s sort  r reverse  Enter tasks  k cancel  g signal", Color::dim}};
}

void TopView::add_rows(size_t columns, size_t rows, TopFrame& frame) {
  page_ = rows > 1 ? rows - 1 : 1;  // without the titles
  if (selected_ < first_) first_ = selected_;
  if (selected_ >= first_ + page_) first_ = selected_ - page_ + 1;
  if (first_ + page_ > rows_.size()) first_ = rows_.size() - std::min(rows_.size(), page_);
  size_t end = std::min(rows_.size(), first_ + page_);
  std::vector<uint32_t> shown(rows_.begin() + static_cast<int64_t>(first_),
                              rows_.begin() + static_cast<int64_t>(end));
  std::vector<std::string> lines = table_lines(table_, shown, columns);
  if (rows > 1) frame.lines.push_back({{lines[0], Color::bold}});
  if (selected_ < rows_.size()) frame.highlighted = frame.lines.size() + selected_ - first_;
  for (size_t i = 0; i < shown.size(); i++)
    frame.lines.push_back({{lines[i + 1], table_.color(shown[i])}});
}

TopFrame TopView::help_frame(size_t rows) const {
  TopFrame frame;
  for (const char* line : kHelp)
    if (frame.lines.size() + 1 < rows) frame.lines.push_back({{line}});
  frame.lines.resize(rows - 1);
  frame.lines.push_back({{"any key goes back", Color::dim}});
  return frame;
}

// ---- without a terminal

std::string top_text(const ClusterView& view, size_t columns, size_t rows_max, int64_t now_ms) {
  auto whole = [](const Line& line) { return rendered(line, SIZE_MAX, false) + "\n"; };
  std::string text = "state " + view.state + (view.has_writer ? "" : ", which no process writes") +
                     "  " + local_time(view.at_ms) + "\n";
  if (view.run) {
    text += "run " + named(*view.run) + "  " + view.run->status + "  " +
            whole(counts_line(view.run->counts));
  } else {
    text += "no run yet: `flow run FILE` starts one\n";
  }
  for (Tab tab : kTabs) {
    TopTable table = top_table(view, tab, now_ms);
    if (table.rows == 0) continue;
    std::vector<uint32_t> rows = ordered_rows(table, {});
    size_t left_out = rows.size() - std::min(rows.size(), rows_max);
    rows.resize(rows.size() - left_out);
    text += "\n" + std::string(tab_name(tab)) + " " + std::to_string(table.rows) + "\n";
    for (const std::string& line : table_lines(table, rows, columns - 2))
      text += "  " + line + "\n";
    if (left_out > 0) text += "  " + std::to_string(left_out) + " more\n";
  }
  return text;
}

}  // namespace flow::cli
