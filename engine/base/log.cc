#include "engine/base/log.hpp"

#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "engine/base/clock.hpp"

namespace flow {

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::trace:
      return "trace";
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warning:
      return "warning";
    case LogLevel::error:
      return "error";
    case LogLevel::off:
      return "off";
  }
  return "off";
}

}  // namespace flow

namespace flow::log {

namespace {

std::atomic<Backend*> attached{nullptr};

struct HiddenValues {
  std::mutex mutex;
  std::shared_ptr<const std::vector<std::string>> values =
      std::make_shared<std::vector<std::string>>();  // the oldest first
  std::unordered_set<std::string> known;             // the same
};

/// Lives as long as the process: threads may still log while it exits.
HiddenValues& hidden() {
  static auto* values = new HiddenValues;
  return *values;
}

}  // namespace

void write(EngineLogLine line) {
  if (!is_on(line.level)) return;
  Backend* backend = attached.load(std::memory_order_acquire);
  if (backend == nullptr) return;
  line.time_ms = now_ms();
  backend->write(line);
}

void write(LogLevel level, std::string_view message, const Fields& fields) {
  EngineLogLine line;
  line.level = level;
  line.message = message;
  line.run = fields.run;
  line.task = fields.task;
  line.attempt = fields.attempt;
  line.worker = fields.worker;
  line.detail = fields.detail;
  write(std::move(line));
}

void attach(Backend* backend, LogLevel level) {
  if (backend != nullptr) attached.store(backend, std::memory_order_release);
  internal::threshold.store(level, std::memory_order_relaxed);
}

void hide(const std::vector<std::string>& values) {
  if (values.empty()) return;
  HiddenValues& all = hidden();
  std::lock_guard lock(all.mutex);
  auto is_known = [&](const std::string& value) { return all.known.contains(value); };
  if (std::all_of(values.begin(), values.end(), is_known)) return;
  auto grown = std::make_shared<std::vector<std::string>>(*all.values);
  for (const std::string& value : values)
    if (all.known.insert(value).second) grown->push_back(value);
  if (grown->size() > kSecretsMax) {
    auto kept = grown->end() - static_cast<std::ptrdiff_t>(kSecretsMax);
    std::for_each(grown->begin(), kept, [&](const std::string& old) { all.known.erase(old); });
    grown->erase(grown->begin(), kept);
  }
  all.values = std::move(grown);
}

std::string redacted(std::string text) {
  Backend* backend = attached.load(std::memory_order_acquire);
  return backend == nullptr ? text : backend->redacted(std::move(text));
}

std::shared_ptr<const std::vector<std::string>> hidden_values() {
  HiddenValues& all = hidden();
  std::lock_guard lock(all.mutex);
  return all.values;
}

}  // namespace flow::log
