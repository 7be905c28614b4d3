#include "engine/sched/binding.hpp"

#include <algorithm>
#include <cstdio>

#include "engine/base/size_units.hpp"
#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/gpu_accounting.hpp"

namespace flow::core {

namespace {

constexpr size_t kNamesMax = 3;

std::string thousandths(int64_t milli) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", static_cast<double>(milli) / 1000);
  return text;
}

std::string cores(int64_t milli) { return thousandths(milli) + (milli == 1000 ? " CPU" : " CPUs"); }
std::string mib(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }
std::string are_free(int64_t milli) {
  return cores(milli) + (milli == 1000 ? " is free" : " are free");
}

/// Checks one worker for one unit, or for one more rank of it.
class ConstraintFinder {
 public:
  ConstraintFinder(const State& state, BlockingUnits& blocking_units, WorkerId at,
                   const SchedulingClass& request, uint32_t ranks)
      : worker_(state.workers[at]),
        state_(state),
        blocking_units_(blocking_units),
        at_(at),
        request_(request),
        ranks_(ranks),
        left_(worker_.free),
        request_prefix_(!request.is_gang() ? "it asks for "
                        : ranks == 0       ? "a rank asks for "
                                           : "one more asks for ") {
    for (uint32_t rank = 0; rank < ranks; rank++) {
      std::vector<std::string> gpus;
      if (request.gpu.milli > 0) gpus = choose_gpus(worker_.info.gpus, left_, request.gpu);
      allocate_gpus(worker_.info.gpus, left_, request.gpu, gpus);
      allocate(left_, request, 0);
    }
  }

  BindingConstraint binding() const {
    if (worker_.is_disconnected) return {"away", "it is disconnected"};
    if (worker_.is_draining)
      return {"draining", "that worker is about to leave, and accepts nothing new"};
    if (is_avoided(state_, at_, request_, worker_.free.units)) return avoided();
    if (!may_share(worker_.free, request_)) return shared();
    if (!matches_selector(request_.where, worker_.info.labels)) return {"where", why_not_where()};
    for (const auto& [name, requested] : request_.custom_resources)
      if (requested > quantity_of(left_.custom_resources, name))
        return custom_resource(name, requested);
    if (request_.memory_bytes > left_.memory_free_bytes) return memory();
    bool lacks_gpus =
        request_.gpu.milli > 0 && choose_gpus(worker_.info.gpus, left_, request_.gpu).empty();
    if (lacks_gpus) return gpus();
    if (request_.cpus_milli > left_.cpus_free_milli) return cpus();
    return {};
  }

 private:
  BindingConstraint avoided() const {
    if (!is_set_aside(worker_, worker_.free.units))
      return {"staging",
              "its attempts failed there, so it waits for another machine that it fits on"};
    std::string aside =
        std::to_string(kFailuresInRow) + " different tasks in a row failed there: it is set aside";
    if (worker_.aside_until == 0) return {"aside", aside + ", and runs one task to try it"};
    return {"aside", aside + " for " + std::to_string(kAsideMs / 1000) + " s"};
  }

  BindingConstraint shared() const {
    std::string held_by = names_of("", [](const SchedulingClass&) { return true; });
    if (worker_.free.alone > 0)
      return {"alone", held_by + " runs there alone, because workers that ran it died"};
    return {"alone", "workers that ran it died, so its next attempt runs alone; that worker runs " +
                         held_by};
  }

  /// "it runs where `disk == ssd`, and the labels there are rack=a"
  std::string why_not_where() const {
    std::string labels;
    for (const auto& [name, value] : worker_.info.labels)
      labels += (labels.empty() ? "" : ", ") + name + (value.empty() ? "" : "=" + value);
    return "it runs where `" + request_.where + "`, and " +
           (labels.empty() ? "there are no labels" : "the labels are " + labels);
  }

  BindingConstraint custom_resource(const std::string& name, int64_t requested) const {
    int64_t free = quantity_of(worker_.free.custom_resources, name),
            all = quantity_of(worker_.info.custom_resources, name);
    std::string request_text = request_prefix_ + name + " = " + thousandths(requested) + ", and ";
    if (all == 0) return {name, request_text + "there is none"};
    if (exceeds_capacity(requested, all))
      return {name, request_text + "there are " + thousandths(all) + " in all"};
    std::string held_by = names_of("resource " + name, [&](const SchedulingClass& held) {
      return quantity_of(held.custom_resources, name) > 0;
    });
    return {name, request_text + thousandths(free) + " of " + thousandths(all) +
                      " are free, the rest is held by " + held_by};
  }

  BindingConstraint memory() const {
    int64_t all = worker_.info.memory_bytes;
    std::string request_text = request_prefix_ + mib(request_.memory_bytes) + " of memory";
    if (exceeds_capacity(request_.memory_bytes, all))
      return {"memory", request_text + ", and there are " + std::to_string(all >> 20)};
    std::string held_by =
        names_of("memory", [](const SchedulingClass& held) { return held.memory_bytes > 0; });
    return {"memory", request_text + "; " + mib(worker_.free.memory_free_bytes) +
                          " are free, the rest is held by " + held_by};
  }

  BindingConstraint cpus() const {
    int64_t all = worker_.info.cpus_milli;
    std::string request_text = request_prefix_ + cores(request_.cpus_milli);
    if (exceeds_capacity(request_.cpus_milli, all))
      return {"cpus", request_text + ", and there is no more than " + cores(all)};
    std::string held_by =
        names_of("cpus", [](const SchedulingClass& held) { return held.cpus_milli > 0; });
    return {"cpus", request_text + "; " + are_free(std::max(worker_.free.cpus_free_milli, 0)) +
                        ", the rest is held by " + held_by};
  }

  BindingConstraint gpus() const {
    const std::vector<Gpu>& all = worker_.info.gpus;
    std::string request_text = request_prefix_ + flow::words_of(request_.gpu);
    if (all.empty()) return {"gpus", request_text + ", and there is none"};
    auto suiting = static_cast<size_t>(std::count_if(
        all.begin(), all.end(), [&](const Gpu& gpu) { return suits(request_.gpu, gpu); }));
    SchedulingClass of_gpus;
    of_gpus.gpu = request_.gpu;
    bool exceeds_capacity =
        ranks_that_fit(worker_.info, all_free(worker_.info), of_gpus, ranks_ + 1) <= ranks_;
    if (exceeds_capacity && suiting == all.size())
      return {"gpus", request_text + ", and there is no more than " + std::to_string(suiting)};
    if (exceeds_capacity) {
      return {"gpus", request_text + ", and " + std::to_string(suiting) + " of " +
                          std::to_string(all.size()) + (suiting == 1 ? " is" : " are") +
                          " suitable" + why_not_these() + failed()};
    }
    return held_gpus(request_text, suiting);
  }

  /// ": 2 are of another model (A100), 1 has less memory"
  std::string why_not_these() const {
    NameList models;
    std::vector<std::string> seen;
    size_t others = 0, instances = 0, small = 0;
    for (const Gpu& gpu : worker_.info.gpus) {
      if (matches_request(request_.gpu, gpu)) continue;
      bool is_model = request_.gpu.model.empty() || matches_model(request_.gpu.model, gpu.name);
      bool is_instance = gpu.is_mig && request_.gpu.milli > kWholeGpuMilli;
      (!is_model ? others : is_instance ? instances : small)++;
      bool is_new = !is_model && std::find(seen.begin(), seen.end(), gpu.name) == seen.end();
      if (!is_new) continue;
      seen.push_back(gpu.name);
      models.add(gpu.name);
    }
    std::string text;
    auto add = [&](size_t count, const char* is_one, const char* are, const std::string& what) {
      if (count == 0) return;
      text += (text.empty() ? ": " : ", ") + std::to_string(count) + (count == 1 ? is_one : are);
      text += what;
    };
    add(others, " is of another model", " are of other models", " (" + models.text() + ")");
    add(instances, " is an instance in MIG mode", " are instances in MIG mode",
        ", and a task can use only one");
    add(small, " has less memory", " have less memory", "");
    return text;
  }

  /// "; GPU 1 (GPU-a) fell off the bus, and is not used until its worker starts again"
  std::string failed() const {
    std::string text;
    for (const Gpu& gpu : worker_.info.gpus) {
      if (gpu.fault.empty() || !matches_request(request_.gpu, gpu)) continue;
      text += "; GPU " + std::to_string(gpu.index) + " (" + gpu.uuid + ") " + gpu.fault +
              ", and is not used until its " + (at_ == 0 ? "engine" : "worker") + " starts again";
    }
    return text;
  }

  /// "; 1 of 2 is free: GPU 0 has 0.5 free, held by `a`"
  BindingConstraint held_gpus(const std::string& request_text, size_t suiting) const {
    std::string text;
    size_t shown = 0, others = 0, free = 0;
    for (size_t i = 0; i < worker_.info.gpus.size(); i++) {
      const Gpu& gpu = worker_.info.gpus[i];
      const FreeGpu& free_gpu = worker_.free.gpus[i];
      if (!suits(request_.gpu, gpu)) continue;
      int32_t milli = std::min(request_.gpu.milli, kWholeGpuMilli);
      free +=
          free_gpu.milli_free >= milli && free_gpu.memory_free_bytes >= request_.gpu.memory_bytes;
      if (free_gpu.milli_free == kWholeGpuMilli) continue;  // free, but too few
      if (++shown > kNamesMax) {
        others++;
        continue;
      }
      text += (shown == 1 ? ": GPU " : "; GPU ") + std::to_string(gpu.index) + " has " +
              thousandths(free_gpu.milli_free);
      if (request_.gpu.memory_bytes > 0)
        text += " and " + format_bytes(static_cast<uint64_t>(free_gpu.memory_free_bytes));
      text += " free, held by " + names_with(gpu);
    }
    if (others > 0) text += "; and so " + std::to_string(others) + " more";
    bool is_part = request_.gpu.is_share() || request_.gpu.memory_bytes > 0;
    const char* are = is_part ? (free == 1 ? " has that much free" : " have that much free")
                              : (free == 1 ? " is free" : " are free");
    return {"gpus", request_text + "; " + std::to_string(free) + " of " + std::to_string(suiting) +
                        are + text + failed()};
  }

  /// Whether the request exceeds the capacity even if nothing else ran.
  bool exceeds_capacity(int64_t requested, int64_t all) const {
    return (ranks_ + 1) * requested > all;
  }

  /// The units on the worker whose request makes `holds` true.
  template <typename Holds>
  const std::string& names_of(const std::string& resource, Holds holds) const {
    return blocking_units_.names(at_, resource, [&](const BlockingUnit& unit) {
      return holds(held_on(worker_.info, *unit.run, unit.unit));
    });
  }
  const std::string& names_with(const Gpu& gpu) const {
    return blocking_units_.names(at_, "gpu " + gpu.uuid, [&](const BlockingUnit& unit) {
      bool is_held = false;
      for_each_rank(unit.run->units[unit.unit],
                    [&](WorkerId at, const std::vector<std::string>& held) {
                      bool has_it = std::find(held.begin(), held.end(), gpu.uuid) != held.end();
                      is_held = is_held || (at == at_ && has_it);
                    });
      return is_held;
    });
  }

  const WorkerState& worker_;
  const State& state_;
  BlockingUnits& blocking_units_;
  const WorkerId at_;
  const SchedulingClass& request_;
  const uint32_t ranks_;
  FreeResources left_;  // free resources next to those ranks
  const std::string request_prefix_;
};

}  // namespace

BlockingUnits::BlockingUnits(const State& state) : state_(state), by_worker_(state.workers.size()) {
  for (const auto& [id, run] : state.runs) {
    if (run.phase_count(Phase::running) == 0) continue;
    examined_ += run.units.size();
    for (UnitId unit = 0; unit < run.units.size(); unit++) {
      if (run.units[unit].phase != Phase::running) continue;
      for (WorkerId worker : workers_of(run.units[unit]))
        by_worker_[worker].push_back({&run, unit});
    }
  }
}

const std::string& BlockingUnits::names(WorkerId worker, const std::string& resource,
                                        const Holds& holds) {
  auto [place, is_new] = names_.try_emplace({worker, resource});
  if (!is_new) return place->second;
  NameList names;
  for (const BlockingUnit& each : by_worker_[worker]) {
    examined_++;
    if (holds(each)) names.add(*each.run, each.unit, of_run(state_, *each.run));
  }
  place->second = names.empty() ? "no task" : names.text();
  return place->second;
}

bool NameList::is_full() const { return count_ >= kNamesMax; }

void NameList::add(const std::string& name) {
  if (!is_full()) text_ += (text_.empty() ? "" : ", ") + name;
  count_++;
}

void NameList::add(const Run& run, UnitId unit, const std::string& after) {
  if (is_full()) {
    count_++;
  } else {
    add(quoted(run, unit) + after);
  }
}

std::string NameList::text() const {
  if (count_ <= kNamesMax) return text_;
  return text_ + " and " + std::to_string(count_ - kNamesMax) + " more";
}

BindingConstraint binding_constraint(const State& state, BlockingUnits& blocking_units, WorkerId at,
                                     const SchedulingClass& request, uint32_t ranks) {
  return ConstraintFinder(state, blocking_units, at, request, ranks).binding();
}

std::string words_of(const SchedulingClass& request) {
  std::string text;
  auto add = [&](const std::string& what) { text += (text.empty() ? "" : " and ") + what; };
  if (request.cpus_milli > 0) add(cores(request.cpus_milli));
  if (request.memory_bytes > 0) add(format_bytes(static_cast<uint64_t>(request.memory_bytes)));
  if (request.gpu.milli > 0) add(flow::words_of(request.gpu));
  if (!request.custom_resources.empty()) add(flow::words_of(request.custom_resources));
  if (text.empty()) text = cores(0);
  return request.where.empty() ? text : text + " where `" + request.where + "`";
}

std::string quoted(const Run& run, UnitId unit) { return "`" + shown_name(run, unit) + "`"; }

std::string of_run(const State& state, const Run& run) {
  return state.runs.size() > 1 ? " of run " + run.id : "";
}

}  // namespace flow::core
