// The tables that `flow top` shows. Pure. Rows are made when they are asked for: a run may have a
// hundred thousand tasks, and a screen shows a few of them.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/cli/display/text_style.hpp"
#include "flow/cluster_view.hpp"

namespace flow::cli {

enum class Tab : uint8_t { runs, tasks, workers, gpus, services, waiting };
constexpr std::array kTabs = {Tab::runs, Tab::tasks,    Tab::workers,
                              Tab::gpus, Tab::services, Tab::waiting};
const char* tab_name(Tab tab);

struct Cell {
  std::string text;
  double number = 0;  // if the column holds numbers, which sort by it
};

struct TopTable {
  std::vector<std::string> titles;
  std::vector<bool> has_numbers;      // by column
  std::vector<size_t> by_importance;  // columns: which one stays on a narrow terminal
  size_t rows = 0;
  std::function<std::vector<Cell>(size_t row)> cells;
  std::function<std::string(size_t row)> key;  // what the row is about, also after a refresh
  std::function<Color(size_t row)> color;
  std::function<int(size_t row)> rank;  // low ones first, unless the user sorts by a column
};

/// The table borrows `view`. `now_ms`: for the durations of what runs.
TopTable top_table(const ClusterView& view, Tab tab, int64_t now_ms);

/// Which column sorts the rows, and which rows there are.
struct TableOrder {
  size_t column = SIZE_MAX;  // SIZE_MAX: by rank
  bool is_reverse = false;
  std::string filter;  // rows that have this text in a cell, in any case; "": all
};
/// The numbers of the rows to show, in order.
std::vector<uint32_t> ordered_rows(const TopTable& table, const TableOrder& order);

/// The titles and these rows, as lines of at most `columns` characters: columns that do not fit are
/// left out, the least important first.
std::vector<std::string> table_lines(const TopTable& table, const std::vector<uint32_t>& rows,
                                     size_t columns);

}  // namespace flow::cli
