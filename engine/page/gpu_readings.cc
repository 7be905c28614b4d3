#include "engine/page/gpu_readings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <mutex>
#include <utility>

#include "engine/page/page_json.hpp"
#include "engine/process/run_command.hpp"
#include "engine/serve/http/field_text.hpp"

namespace flow {

namespace {

constexpr int64_t kWithinMs = 5'000;
constexpr std::chrono::seconds kFreshFor{2};
constexpr size_t kFields = 6;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr const char* kQuery =
    "--query-gpu=uuid,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw";

/// The driver writes `[N/A]` for what it does not know.
std::string number_or_null(std::string_view text, int64_t unit) {
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  bool is_number = error == std::errc() && end == text.data() + text.size();
  if (!is_number || !std::isfinite(number)) return "null";
  return unit == 1 ? fmt::format("{}", number)
                   : fmt::format("{}", static_cast<int64_t>(number * static_cast<double>(unit)));
}

}  // namespace

std::string gpu_readings_json(std::string_view table) {
  std::string list;
  while (!table.empty()) {
    std::string_view line = table.substr(0, table.find('\n'));
    table.remove_prefix(std::min(line.size() + 1, table.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    std::array<std::string_view, kFields> fields;
    size_t count = 0;
    for (; count < kFields; count++) {
      fields[count] = without_blanks(line.substr(0, line.find(',')));
      bool is_last = line.find(',') == std::string_view::npos;
      if (is_last) break;
      line.remove_prefix(line.find(',') + 1);
    }
    if (count + 1 != kFields || !fields[0].starts_with("GPU-")) continue;
    list += fmt::format(
        R"({}{}:{{"utilisation":{},"memory_used":{},"memory":{},"temperature":{},"power":{}}})",
        list.empty() ? "" : ",", text_to_json(fields[0]), number_or_null(fields[1], 1),
        number_or_null(fields[2], kMiB), number_or_null(fields[3], kMiB),
        number_or_null(fields[4], 1), number_or_null(fields[5], 1));
  }
  return "{" + list + "}";
}

// One program at a time: with a broken driver it may not end.
std::string gpu_readings() {
  using Clock = std::chrono::steady_clock;
  struct Newest {
    std::mutex mutex;
    std::string json = "{}";
    Clock::time_point at{};
    bool is_asked = false;
  };
  static Newest& newest = *new Newest;  // detached threads may outlive statics
  {
    std::lock_guard lock(newest.mutex);
    if (newest.is_asked || Clock::now() < newest.at + kFreshFor) return newest.json;
    newest.is_asked = true;
  }
  auto result = run_command({"nvidia-smi", kQuery, "--format=csv,noheader,nounits"}, kWithinMs);
  std::string json = result.ok() && result->code == 0 ? gpu_readings_json(result->out) : "{}";
  std::lock_guard lock(newest.mutex);
  newest.is_asked = false;
  newest.at = Clock::now();
  return newest.json = std::move(json);
}

}  // namespace flow
