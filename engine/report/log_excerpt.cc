#include "engine/report/log_excerpt.hpp"

#include <fmt/format.h>

#include "engine/page/page_json.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

void LogExcerpt::Tail::add(std::pair<int64_t, size_t> key, const LogLine& line,
                           const LogBounds& bounds) {
  lines.emplace(key, line);
  bytes += line.text.size();
  while (lines.size() > bounds.lines_max || bytes > bounds.bytes_max) {
    bytes -= lines.begin()->second.text.size();
    lines.erase(lines.begin());
  }
}

void LogExcerpt::add(LogLine line, bool is_detailed) {
  if (line.task != task_) end_task();
  task_ = line.task;
  std::pair key(line.at_ms, total_++);
  counts_[line.task][line.attempt]++;
  line.text = cut_text(std::move(line.text), kTextMax);
  of_run_.add(key, line, run_bounds_);
  if (is_detailed) of_task_.add(key, line, task_bounds_);
}

void LogExcerpt::end_task() {
  of_ended_tasks_.merge(of_task_.lines);
  of_task_ = {};
}

std::string LogExcerpt::json() {
  end_task();
  of_ended_tasks_.merge(of_run_.lines);
  std::string counts, lines;
  for (const auto& [task, attempts] : counts_) {
    std::string of_task;
    for (const auto& [attempt, number] : attempts)
      of_task += fmt::format("{}\"{}\":{}", of_task.empty() ? "" : ",", attempt, number);
    counts += fmt::format("{}{}:{{{}}}", counts.empty() ? "" : ",", text_to_json(task), of_task);
  }
  for (const auto& [key, line] : of_ended_tasks_)
    lines += (lines.empty() ? "" : ",") + page_log_line(line);
  return fmt::format(R"({{"total":{},"counts":{{{}}},"lines":[{}]}})", total_, counts, lines);
}

}  // namespace flow
