#include "engine/cli/top/top_tables.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>
#include <sstream>
#include <utility>

#include "engine/cli/display/common.hpp"

namespace flow::cli {

namespace {

constexpr size_t kNameColumnsMax = 40;

Color color_of(const std::string& status) {
  if (status == "running" || status == "serving" || status == "up" || status == "ready")
    return Color::green;
  if (status == "failed" || status == "lost") return Color::red;
  if (status == "waiting" || status == "interrupted" || status == "away" || status == "draining")
    return Color::yellow;
  if (status == "skipped" || status == "cancelled") return Color::dim;
  return Color::none;
}

/// What needs attention comes first.
int rank_of(const std::string& status) {
  const char* const order[] = {"running", "serving", "waiting",   "failed",
                               "ready",   "pending", "cancelled", "skipped"};
  for (size_t i = 0; i < std::size(order); i++)
    if (status == order[i]) return static_cast<int>(i);
  return static_cast<int>(std::size(order));
}

Cell text_cell(std::string text) { return {std::move(text)}; }

Cell count_cell(uint64_t count) { return {std::to_string(count), static_cast<double>(count)}; }

/// From the start to the end, or to now if it has not ended.
Cell time_cell(int64_t started_ms, int64_t finished_ms, int64_t now_ms) {
  if (started_ms == 0) return {"-", -1};
  int64_t end = finished_ms == 0 ? std::max(now_ms, started_ms) : finished_ms;
  return {format_duration(end - started_ms), static_cast<double>(end - started_ms)};
}

std::string run_name(const RunInfo& run) {
  return run.name.empty() ? run.pipeline : run.pipeline + " (" + run.name + ")";
}

TopTable runs_table(const ClusterView& view, int64_t now_ms) {
  const std::vector<RunInfo>& runs = view.runs;
  TopTable table;
  table.titles = {"run",  "status", "pipeline", "done", "running",
                  "wait", "failed", "time",     "retry"};
  table.has_numbers = {false, false, false, true, true, true, true, true, true};
  table.by_importance = {0, 1, 3, 4, 6, 7, 2, 5, 8};
  table.rows = runs.size();
  table.cells = [&runs, now_ms](size_t row) -> std::vector<Cell> {
    const RunInfo& run = runs[row];
    const Counts& c = run.counts;
    uint64_t done = uint64_t{c.succeeded} + c.failed + c.skipped + c.cancelled;
    uint64_t total = done + c.pending + c.ready + c.running + c.waiting;
    bool is_at_rest = run.status == "interrupted";
    return {text_cell(run.id),
            text_cell(run.status),
            text_cell(shortened(run_name(run), kNameColumnsMax)),
            {std::to_string(done) + "/" + std::to_string(total), static_cast<double>(done)},
            count_cell(c.running),
            count_cell(uint64_t{c.waiting} + c.ready + c.pending),
            count_cell(c.failed),
            is_at_rest ? Cell{"-", -1} : time_cell(run.started_ms, run.finished_ms, now_ms),
            count_cell(run.retried)};
  };
  table.key = [&runs](size_t row) { return runs[row].id; };
  table.color = [&runs](size_t row) { return color_of(runs[row].status); };
  table.rank = [size = runs.size()](size_t row) { return static_cast<int>(size - row); };
  return table;
}

std::string gpus_text(const std::vector<std::string>& uuids) {
  constexpr size_t kShown = 12;  // unique enough
  std::string text;
  for (const std::string& uuid : uuids) text += (text.empty() ? "" : ",") + uuid.substr(0, kShown);
  return text;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string note_of(const TaskInfo& task) {
  if (!task.waits_for.empty()) return task.waits_for;
  if (!task.error.empty()) return first_line(task.error);
  if (!task.url.empty()) return "serves at " + task.url;
  if (task.fraction >= 0 && task.status == "running")
    return std::to_string(static_cast<int>(task.fraction * 100)) + "%";
  return "";
}

TopTable tasks_table(const ClusterView& view, int64_t now_ms) {
  static const std::vector<TaskInfo> none;
  const std::vector<TaskInfo>& tasks = view.run ? view.run->tasks : none;
  bool is_at_rest = view.run && view.run->status == "interrupted";
  TopTable table;
  table.titles = {"task", "status", "attempt", "time", "worker", "gpus", "what"};
  table.has_numbers = {false, false, true, true, false, false, false};
  table.by_importance = {0, 1, 3, 6, 4, 5, 2};
  table.rows = tasks.size();
  table.cells = [&tasks, now_ms, is_at_rest](size_t row) -> std::vector<Cell> {
    const TaskInfo& task = tasks[row];
    bool was_running = is_at_rest && task.status == "running";
    return {text_cell(shortened(tagged_name(task.name, task.tag), kNameColumnsMax)),
            text_cell(task.cached   ? "cached"
                      : was_running ? "was running"
                                    : task.status),
            count_cell(task.attempts),
            was_running ? Cell{"-", -1} : time_cell(task.started_ms, task.finished_ms, now_ms),
            text_cell(task.worker),
            text_cell(gpus_text(task.gpus)),
            text_cell(first_line(note_of(task)))};
  };
  table.key = [&tasks](size_t row) { return tasks[row].name; };
  table.color = [&tasks](size_t row) { return color_of(tasks[row].status); };
  table.rank = [&tasks](size_t row) { return rank_of(tasks[row].status); };
  return table;
}

std::string worker_name(const NodeInfo& worker) {
  return worker.name.empty() ? "(head)" : worker.name;
}

std::string share_text(double used, double all) {
  return number_text(used) + "/" + number_text(all);
}

TopTable workers_table(const ClusterView& view) {
  const std::vector<NodeInfo>& workers = view.workers;
  TopTable table;
  table.titles = {"worker", "status", "tasks", "CPUs", "memory", "GPUs", "address", "note"};
  table.has_numbers = {false, false, true, true, true, true, false, false};
  table.by_importance = {0, 1, 2, 3, 5, 4, 7, 6};
  table.rows = workers.size();
  table.cells = [&workers](size_t row) -> std::vector<Cell> {
    const NodeInfo& worker = workers[row];
    double used = 0;
    for (const GpuUse& use : worker.gpu_uses) used += use.used;
    auto gpus = static_cast<double>(worker.gpus.size());
    return {text_cell(worker_name(worker)),
            text_cell(worker.status),
            count_cell(worker.tasks.size()),
            {share_text(worker.cpus_used, worker.cpus), worker.cpus_used},
            {format_bytes(static_cast<uint64_t>(worker.memory_bytes)),
             static_cast<double>(worker.memory_bytes)},
            {share_text(used, gpus), used},
            text_cell(worker.address),
            text_cell(worker.note)};
  };
  table.key = [&workers](size_t row) { return workers[row].name; };
  table.color = [&workers](size_t row) { return color_of(workers[row].status); };
  return table;
}

/// What a GPU measures, in whole units; "" if it does not.
template <typename Number>
Cell measured_cell(const std::optional<Number>& number, double factor, const char* unit) {
  if (!number) return {"", -1};
  double value = static_cast<double>(*number) * factor;
  return {std::to_string(std::lround(value)) + unit, value};
}

struct GpuRow {
  const NodeInfo* worker;
  size_t gpu;
};

TopTable gpus_table(const ClusterView& view) {
  auto gpus = std::make_shared<std::vector<GpuRow>>();
  for (const NodeInfo& worker : view.workers)
    for (size_t gpu = 0; gpu < worker.gpus.size(); gpu++) gpus->push_back({&worker, gpu});
  TopTable table;
  table.titles = {"GPU", "worker", "model", "used", "memory", "busy", "temp", "power", "held by"};
  table.has_numbers = {false, false, false, true, true, true, true, true, false};
  table.by_importance = {0, 3, 8, 1, 5, 4, 7, 6, 2};
  table.rows = gpus->size();
  table.cells = [gpus](size_t row) -> std::vector<Cell> {
    const auto& [worker, index] = (*gpus)[row];
    const Gpu& gpu = worker->gpus[index];
    const GpuUse use = index < worker->gpu_uses.size() ? worker->gpu_uses[index] : GpuUse{};
    std::string holders;
    for (const std::string& task : use.tasks) holders += (holders.empty() ? "" : ", ") + task;
    auto memory = static_cast<uint64_t>(std::max<int64_t>(use.memory_used_bytes, 0));
    const GpuReading* reading = worker->reading_of(gpu);
    const GpuReading measured = reading != nullptr ? *reading : GpuReading{};
    constexpr double kPercent = 100;
    return {text_cell(gpu.uuid),
            text_cell(worker_name(*worker)),
            text_cell(gpu.name),
            {number_text(use.used), use.used},
            {format_bytes(memory) + "/" + format_bytes(static_cast<uint64_t>(gpu.memory_bytes)),
             static_cast<double>(memory)},
            measured_cell(measured.utilisation, kPercent, "%"),
            measured_cell(measured.temperature_celsius, 1, " C"),
            measured_cell(measured.power_watts, 1, " W"),
            text_cell(gpu.fault.empty() ? holders : fault_text(*worker, gpu))};
  };
  table.key = [gpus](size_t row) { return (*gpus)[row].worker->gpus[(*gpus)[row].gpu].uuid; };
  table.color = [gpus](size_t row) {
    const auto& [worker, index] = (*gpus)[row];
    if (!worker->gpus[index].fault.empty()) return Color::red;
    bool is_used = index < worker->gpu_uses.size() && worker->gpu_uses[index].used > 0;
    return is_used ? Color::green : Color::none;
  };
  return table;
}

TopTable services_table(const ClusterView& view) {
  const std::vector<ServiceInfo>& services = view.services;
  TopTable table;
  table.titles = {"service", "status", "ready", "traffic", "rate", "p99", "errors", "url", "run"};
  table.has_numbers = {false, false, true, true, true, true, true, false, false};
  table.by_importance = {0, 1, 2, 4, 7, 3, 5, 6, 8};
  table.rows = services.size();
  table.cells = [&services](size_t row) -> std::vector<Cell> {
    const ServiceInfo& service = services[row];
    auto ready = std::ranges::count_if(service.replicas, [](const ReplicaInfo& replica) {
      return replica.status == "ready" || replica.status == "busy";
    });
    std::vector<Cell> cells = {
        text_cell(service.name.empty() ? service.service : service.name + "/" + service.service),
        text_cell(service.status),
        {std::to_string(ready) + "/" + std::to_string(service.replicas_wanted),
         static_cast<double>(ready)}};
    if (const auto& traffic = service.traffic) {
      constexpr double kUsPerMs = 1000;
      double p99_ms = static_cast<double>(traffic->p99_us) / kUsPerMs;
      char rate[32], p99[32];
      std::snprintf(rate, sizeof rate, "%.1f/s", traffic->requests_per_second);
      std::snprintf(p99, sizeof p99, "%.1fms", p99_ms);
      cells.insert(cells.end(),
                   {{std::to_string(traffic->percent) + "%", static_cast<double>(traffic->percent)},
                    {rate, traffic->requests_per_second},
                    {p99, p99_ms},
                    count_cell(traffic->errors)});
    } else {
      cells.insert(cells.end(), {{"-", -1}, {"-", -1}, {"-", -1}, {"-", -1}});
    }
    cells.push_back(text_cell(service.url.empty() ? "-" : service.url));
    cells.push_back(text_cell(service.version));
    return cells;
  };
  table.key = [&services](size_t row) { return services[row].version + services[row].service; };
  table.color = [&services](size_t row) { return color_of(services[row].status); };
  return table;
}

TopTable waiting_table(const ClusterView& view) {
  const std::vector<WaitingTasks>& waiting = view.waiting;
  TopTable table;
  table.titles = {"tasks", "first", "why"};
  table.has_numbers = {true, false, false};
  table.by_importance = {0, 2, 1};
  table.rows = waiting.size();
  table.cells = [&waiting](size_t row) -> std::vector<Cell> {
    const WaitingTasks& each = waiting[row];
    return {count_cell(each.tasks), text_cell(shortened(each.first, kNameColumnsMax)),
            text_cell(each.reason.empty() ? "other reasons" : first_line(each.reason))};
  };
  table.key = [&waiting](size_t row) { return waiting[row].reason; };
  table.color = [](size_t) { return Color::none; };
  return table;
}

bool holds_text(const std::string& text, const std::string& lower) {
  auto is_same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == static_cast<unsigned char>(b);
  };
  return std::ranges::search(text, lower, is_same).begin() != text.end();
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

const char* tab_name(Tab tab) {
  switch (tab) {
    case Tab::runs:
      return "runs";
    case Tab::tasks:
      return "tasks";
    case Tab::workers:
      return "workers";
    case Tab::gpus:
      return "GPUs";
    case Tab::services:
      return "services";
    case Tab::waiting:
      return "waiting";
  }
  return "";
}

TopTable top_table(const ClusterView& view, Tab tab, int64_t now_ms) {
  TopTable table = [&] {
    switch (tab) {
      case Tab::runs:
        return runs_table(view, now_ms);
      case Tab::tasks:
        return tasks_table(view, now_ms);
      case Tab::workers:
        return workers_table(view);
      case Tab::gpus:
        return gpus_table(view);
      case Tab::services:
        return services_table(view);
      case Tab::waiting:
        break;
    }
    return waiting_table(view);
  }();
  if (!table.rank) table.rank = [](size_t) { return 0; };
  return table;
}

std::vector<uint32_t> ordered_rows(const TopTable& table, const TableOrder& order) {
  std::vector<uint32_t> rows(table.rows);
  std::iota(rows.begin(), rows.end(), uint32_t{0});
  if (!order.filter.empty()) {
    const std::string wanted = lower_case(order.filter);
    std::erase_if(rows, [&](uint32_t row) {
      return std::ranges::none_of(table.cells(row),
                                  [&](const Cell& cell) { return holds_text(cell.text, wanted); });
    });
  }
  if (order.column >= table.titles.size()) {
    std::ranges::stable_sort(rows, {}, table.rank);
  } else {
    std::vector<Cell> cells(table.rows);
    for (uint32_t row : rows) cells[row] = std::move(table.cells(row)[order.column]);
    bool by_number = table.has_numbers[order.column];
    std::ranges::stable_sort(rows, [&](uint32_t a, uint32_t b) {
      return by_number ? cells[a].number < cells[b].number : cells[a].text < cells[b].text;
    });
  }
  if (order.is_reverse) std::ranges::reverse(rows);
  return rows;
}

std::vector<std::string> table_lines(const TopTable& table, const std::vector<uint32_t>& rows,
                                     size_t columns) {
  const size_t last = table.titles.size() - 1;
  std::vector<std::vector<std::string>> texts = {table.titles};
  std::vector<std::string> last_cells = {table.titles[last]};
  for (uint32_t row : rows) {
    std::vector<std::string>& line = texts.emplace_back();
    for (Cell& cell : table.cells(row))  // on one line, without control characters
      line.push_back(shortened(cell.text, columns));
    // The last column takes what the others leave. Some of it has to have room.
    last_cells.push_back(line[last]);
    line[last] = shortened(line[last], columns / 2);
  }
  FittingColumns fitting = fitting_columns(texts, table.by_importance, columns);
  bool has_last = std::ranges::find(fitting.omitted, table.titles[last]) == fitting.omitted.end();
  for (size_t i = 0; has_last && i < fitting.rows.size(); i++)
    fitting.rows[i].back() = std::move(last_cells[i]);
  std::istringstream text(cli::table(fitting.rows));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(shortened(line, columns));
  lines.resize(texts.size());
  return lines;
}

}  // namespace flow::cli
