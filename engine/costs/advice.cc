#include "engine/costs/advice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/base/size_units.hpp"

namespace flow {

namespace {

constexpr int64_t kMib = 1 << 20;

using Samples = std::vector<const AttemptSample*>;

double median(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  size_t half = numbers.size() / 2;
  return numbers.size() % 2 == 1 ? numbers[half] : (numbers[half - 1] + numbers[half]) / 2;
}

std::string seconds_text(double seconds) {
  constexpr double kMsPerSecond = 1000;
  return format_duration(std::llround(seconds * kMsPerSecond));
}

std::string attempts_text(size_t count) {
  return fmt::format("{} attempt{}", count, count == 1 ? "" : "s");
}

std::vector<double> durations_of(const Samples& samples) {
  std::vector<double> durations;
  for (const AttemptSample* each : samples) durations.push_back(each->duration_s);
  return durations;
}

void advise_memory(const std::string& task, const Samples& samples, std::vector<Advice>& out) {
  int64_t asked = 0, peak = -1, lowest = INT64_MAX;
  uint32_t count = 0;
  for (const AttemptSample* each : samples) {
    if (each->memory_bytes <= 0 || each->peak_memory < 0) continue;
    asked = std::max(asked, each->memory_bytes);
    peak = std::max(peak, each->peak_memory);
    lowest = std::min(lowest, each->peak_memory);
    count++;
  }
  if (count == 0) return;
  auto needed = static_cast<int64_t>(std::ceil(static_cast<double>(peak) * kMemoryMargin));
  int64_t advised = (std::max(needed, kMib) + kMib - 1) / kMib * kMib;
  bool is_waste = static_cast<double>(asked) >= kMemoryWaste * static_cast<double>(advised) &&
                  asked - advised >= kMemorySavedMin;
  if (!is_waste) return;
  auto text = [](int64_t bytes) { return format_bytes(static_cast<uint64_t>(bytes)); };
  out.push_back({.kind = "memory",
                 .task = task,
                 .change = fmt::format("memory = \"{}MiB\"", advised / kMib),
                 .evidence = fmt::format("{}: peak {} to {}; it asks for {}", attempts_text(count),
                                         text(lowest), text(peak), text(asked)),
                 .gain = fmt::format("{} less per attempt", text(asked - advised)),
                 .attempts = count,
                 .value = static_cast<double>(advised)});
}

void advise_cpus(const std::string& task, const Samples& samples, std::vector<Advice>& out) {
  double asked = 0, most = 0, least = INFINITY;
  uint32_t count = 0;
  for (const AttemptSample* each : samples) {
    bool is_measured = each->cpus > 0 && each->cpu_s >= 0 && each->duration_s >= kCpuSecondsMin &&
                       each->ranks == 1;
    if (!is_measured) continue;
    double used = each->cpu_s / each->duration_s;
    asked = std::max(asked, each->cpus);
    most = std::max(most, used);
    least = std::min(least, used);
    count++;
  }
  double advised = std::max(1.0, std::ceil(most * kCpuMargin));
  if (count == 0 || advised + 1 > asked) return;
  out.push_back(
      {.kind = "cpus",
       .task = task,
       .change = fmt::format("cpus = {}", advised),
       .evidence = fmt::format("{}: {:.2f} to {:.2f} CPUs busy on average; it asks for {}",
                               attempts_text(count), least, most, asked),
       .gain = fmt::format("{} fewer CPUs per attempt", asked - advised),
       .attempts = count,
       .value = advised});
}

void advise_ranks(const std::string& task, const Samples& samples, std::vector<Advice>& out) {
  std::map<uint32_t, std::vector<double>> durations;
  for (const AttemptSample* each : samples) durations[each->ranks].push_back(each->duration_s);
  if (durations.size() < 2) return;
  auto few = durations.begin();
  auto many = std::prev(durations.end());
  double slow = median(few->second), fast = median(many->second);
  if (slow <= 0 || fast <= 0) return;
  double ideal = static_cast<double>(many->first) / few->first, speedup = slow / fast;
  std::string evidence;
  uint32_t count = 0;
  for (const auto& [ranks, times] : durations) {
    evidence += fmt::format("{}{} rank{}: {} ({})", evidence.empty() ? "" : "; ", ranks,
                            ranks == 1 ? "" : "s", seconds_text(median(times)),
                            attempts_text(times.size()));
    count += static_cast<uint32_t>(times.size());
  }
  if (speedup >= kRanksGain * ideal)
    out.push_back(
        {.kind = "ranks",
         .task = task,
         .change = fmt::format("ranks = {} or more", many->first),
         .evidence = evidence,
         .gain = fmt::format("{:.1f} times as fast with {:.1f} times the ranks", speedup, ideal),
         .attempts = count,
         .value = static_cast<double>(many->first)});
  else if (speedup < kRanksLoss * ideal)
    out.push_back(
        {.kind = "ranks",
         .task = task,
         .change = fmt::format("ranks = {}", few->first),
         .evidence = evidence,
         .gain = fmt::format("{:.0f}% fewer resources per attempt", 100 * (1 - speedup / ideal)),
         .attempts = count,
         .value = static_cast<double>(few->first)});
}

void advise_workers(const std::string& task, const Samples& samples, std::vector<Advice>& out) {
  std::map<std::string, Samples> by_worker;
  for (const AttemptSample* each : samples)
    if (each->ranks == 1) by_worker[each->worker].push_back(each);
  for (const auto& [worker, own] : by_worker) {
    Samples others;
    for (const auto& [other, theirs] : by_worker)
      if (other != worker) others.insert(others.end(), theirs.begin(), theirs.end());
    if (own.size() < kWorkerSamplesMin || others.size() < kWorkerSamplesMin) continue;
    double here = median(durations_of(own)), there = median(durations_of(others));
    if (there < kStragglerSecondsMin || here < kWorkerSlow * there) continue;
    out.push_back({.kind = "worker",
                   .task = task,
                   .change = fmt::format(
                       "look at the worker `{}`, or keep tasks off it with `where`", worker),
                   .evidence = fmt::format("{} there: median {}; {} on other workers: median {}",
                                           attempts_text(own.size()), seconds_text(here),
                                           attempts_text(others.size()), seconds_text(there)),
                   .gain = fmt::format("{} per attempt", seconds_text(here - there)),
                   .attempts = static_cast<uint32_t>(own.size() + others.size())});
  }
}

/// Instances of the newest run only: others had other inputs.
void advise_stragglers(const std::string& task, const std::string& run, const Samples& samples,
                       std::vector<Advice>& out) {
  Samples own;
  for (const AttemptSample* each : samples)
    if (each->run == run && each->is_of_map) own.push_back(each);
  if (own.size() < kStragglerSamplesMin) return;
  double usual = median(durations_of(own));
  Samples slow;
  for (const AttemptSample* each : own)
    if (each->duration_s >= kStragglerSecondsMin && each->duration_s >= kStragglerSlow * usual)
      slow.push_back(each);
  if (slow.empty()) return;
  auto slowest = *std::ranges::max_element(slow, {}, &AttemptSample::duration_s);
  out.push_back(
      {.kind = "straggler",
       .task = task,
       .change =
           fmt::format("give `{}` a smaller part of the work, or start it first", slowest->name),
       .evidence = fmt::format("{}: median {}; {} took {} or more, `{}` on `{}` {}",
                               attempts_text(own.size()), seconds_text(usual), slow.size(),
                               seconds_text(kStragglerSlow * usual), slowest->name, slowest->worker,
                               seconds_text(slowest->duration_s)),
       .gain = fmt::format("up to {} of the run's time", seconds_text(slowest->duration_s - usual)),
       .attempts = static_cast<uint32_t>(own.size())});
}

void advise_cache(const std::string& task, const std::vector<const KeyMiss*>& misses,
                  std::vector<Advice>& out) {
  std::set<std::string> runs;
  std::map<std::string, std::set<std::string>> runs_of_cause;
  for (const KeyMiss* miss : misses) {
    runs.insert(miss->run);
    if (miss->causes.size() == 1) runs_of_cause[miss->causes[0]].insert(miss->run);
  }
  if (runs.size() < kMissesMin) return;
  for (const auto& [cause, with] : runs_of_cause) {
    if (with.size() != runs.size()) continue;  // in some runs something else changed
    double seconds = 0;
    for (const KeyMiss* miss : misses)
      if (miss->run == misses.front()->run) seconds += miss->duration_s;
    out.push_back(
        {.kind = "cache",
         .task = task,
         .change = fmt::format("keep {} the same from run to run, or leave it out: it is the only "
                               "part of the key that changes",
                               cause),
         .evidence = fmt::format("it differed in each of {} runs in a row; the last time: {}",
                                 with.size(), misses.front()->text),
         .gain = fmt::format("{} per run", seconds_text(seconds)),
         .attempts = static_cast<uint32_t>(misses.size())});
  }
}

}  // namespace

std::vector<Advice> advice_of(const std::vector<AttemptSample>& samples,
                              const std::vector<KeyMiss>& misses) {
  std::map<std::string, Samples> by_task;
  for (const AttemptSample& each : samples) by_task[each.task].push_back(&each);
  std::map<std::string, std::vector<const KeyMiss*>> misses_by_task;
  for (const KeyMiss& miss : misses) misses_by_task[miss.task].push_back(&miss);
  std::string newest = samples.empty() ? "" : samples.front().run;
  std::vector<Advice> advice;
  for (const auto& [task, own] : by_task) advise_memory(task, own, advice);
  for (const auto& [task, own] : by_task) advise_cpus(task, own, advice);
  for (const auto& [task, own] : by_task) advise_ranks(task, own, advice);
  for (const auto& [task, own] : misses_by_task) advise_cache(task, own, advice);
  for (const auto& [task, own] : by_task) advise_workers(task, own, advice);
  for (const auto& [task, own] : by_task) advise_stragglers(task, newest, own, advice);
  return advice;
}

}  // namespace flow
