// Why a unit is not running, in words.
#include <cstdio>

#include "engine/base/units.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/graph.hpp"
#include "engine/sched/gangs.hpp"
#include "engine/sched/sched.hpp"

namespace flow::core {

namespace {

constexpr size_t kNamesMax = 3;
constexpr size_t kHostsShownMax = 8;

std::string quoted(const Run& run, UnitId unit) { return "`" + unit_name(run, unit) + "`"; }

/// "`a`, `b`, `c` and 4 more"
class Names {
 public:
  void add(const std::string& name) {
    if (count_++ < kNamesMax) text_ += (text_.empty() ? "" : ", ") + name;
  }
  bool empty() const { return count_ == 0; }
  std::string text() const {
    if (count_ <= kNamesMax) return text_;
    return text_ + " and " + std::to_string(count_ - kNamesMax) + " more";
  }

 private:
  size_t count_ = 0;
  std::string text_;
};

/// "2026-11-21 05:17:00 UTC"
std::string utc(Time at_ms) {
  std::string text = format_time(at_ms);
  text.resize(text.rfind('.'));
  text[text.find('T')] = ' ';
  return text + " UTC";
}

std::string thousandths(int64_t milli) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", static_cast<double>(milli) / 1000);
  return text;
}

std::string cores(int64_t milli) { return thousandths(milli) + (milli == 1000 ? " CPU" : " CPUs"); }

std::string open_edges(const Run& run, UnitId unit, const std::vector<Edge>& edges) {
  Names inputs, branches;
  for (const Edge& edge : edges) {
    if (is_satisfied(run, unit, edge)) continue;
    (edge.guard ? branches : inputs).add(quoted(run, edge.from));
  }
  if (inputs.empty()) return "it waits for " + branches.text() + " to choose a branch";
  if (branches.empty()) return "it waits for " + inputs.text();
  return "it waits for " + inputs.text() + ", and for " + branches.text() + " to choose a branch";
}

/// Those that run now and are `wanted`, of one run or of all.
template <typename Wanted>
std::string running(const State& state, const Run* only, Wanted wanted) {
  Names names;
  for (const auto& [id, run] : state.runs) {
    if (only != nullptr && &run != only) continue;
    if (run.phase_count(Phase::running) == 0) continue;
    for (UnitId unit = 0; unit < run.units.size(); unit++) {
      if (run.units[unit].phase != Phase::running || !wanted(run, unit)) continue;
      names.add(quoted(run, unit) +
                (only == nullptr && state.runs.size() > 1 ? " of run " + id : ""));
    }
  }
  return names.empty() ? "nobody" : names.text();
}

/// Who holds CPU slots: of a run, or on a host.
std::string holders(const State& state, const Run& only) {
  return running(state, &only, [](const Run& run, UnitId unit) { return !is_service(run, unit); });
}
std::string holders(const State& state, HostId host) {
  return running(state, nullptr, [host](const Run& run, UnitId unit) {
    return is_on(run.units[unit], host) && !is_service(run, unit);
  });
}

std::string holders_of(const State& state, HostId host, const std::string& name) {
  return running(state, nullptr, [&](const Run& run, UnitId unit) {
    return is_on(run.units[unit], host) && amount_of(def_of(run, unit)->resources.named, name) > 0;
  });
}

std::string holders_of(const State& state, HostId host, const Gpu& gpu) {
  return running(state, nullptr, [&](const Run& run, UnitId unit) {
    bool is_held = false;
    for_each_rank(run.units[unit], [&](HostId at, const std::vector<std::string>& held) {
      is_held =
          is_held || (at == host && std::find(held.begin(), held.end(), gpu.uuid) != held.end());
    });
    return is_held;
  });
}

/// "it asks for gpus = 1; GPU 0 has 0.5 free, held by `a`": the devices that would suit it.
std::string why_no_gpu(const State& state, HostId at, const GpuNeeds& needs) {
  const Host& host = state.hosts[at];
  std::string text = "it asks for " + words_of(needs);
  size_t shown = 0, others = 0;
  for (size_t i = 0; i < host.info.gpus.size(); i++) {
    const Gpu& gpu = host.info.gpus[i];
    const GpuRoom& room = host.room.gpus[i];
    if (!suits(needs, gpu)) continue;
    if (room.milli_free == kWholeGpuMilli) continue;  // free, but too few
    if (++shown > kNamesMax) {
      others++;
      continue;
    }
    text += "; GPU " + std::to_string(gpu.index) + " has " + thousandths(room.milli_free);
    if (needs.memory_bytes > 0) {
      text += " and " + format_bytes(static_cast<uint64_t>(room.memory_free_bytes));
    }
    text += " free, held by " + holders_of(state, at, gpu);
  }
  return others == 0 ? text : text + "; and so " + std::to_string(others) + " more";
}

/// "it runs where `disk == ssd`, and the labels there are rack=a"
std::string why_not_where(const HostInfo& host, const std::string& where) {
  std::string labels;
  for (const auto& [name, value] : host.labels)
    labels += (labels.empty() ? "" : ", ") + name + (value.empty() ? "" : "=" + value);
  return "it runs where `" + where + "`, and " +
         (labels.empty() ? "there are no labels" : "the labels are " + labels);
}

/// "it asks for fpga = 2; 1 is free, held by `a`", or that it has no more of them at all.
std::string why_not_named(const State& state, HostId at, const ReadyClass& needs) {
  const Host& host = state.hosts[at];
  for (const auto& [name, asked] : needs.named) {
    int64_t free = amount_of(host.room.named, name), all = amount_of(host.info.named, name);
    if (asked <= free) continue;
    std::string asks = "it asks for " + name + " = " + thousandths(asked) + ", and ";
    if (all == 0) return asks + "there is none";
    if (asked > all) return asks + "there are " + thousandths(all) + " in all";
    return asks + thousandths(free) + " of " + thousandths(all) +
           " are free, the rest is held by " + holders_of(state, at, name);
  }
  return "";
}

/// What binds on the host, or "" where the unit fits.
std::string why_not_on(const State& state, HostId at, const ReadyClass& needs) {
  const Host& host = state.hosts[at];
  const Room& room = host.room;
  if (host.is_draining) return "that worker is about to leave, and takes nothing new";
  if (!suits_where(needs.where, host.info.labels)) return why_not_where(host.info, needs.where);
  std::string lacks_named = why_not_named(state, at, needs);
  if (!lacks_named.empty()) return lacks_named;
  if (needs.memory_bytes > host.info.memory_bytes) {
    return "it asks for " + std::to_string(needs.memory_bytes >> 20) +
           " MiB of memory, and there are " + std::to_string(host.info.memory_bytes >> 20);
  }
  if (needs.memory_bytes > room.memory_free_bytes) {
    return "it asks for " + std::to_string(needs.memory_bytes >> 20) + " MiB of memory; " +
           std::to_string(room.memory_free_bytes >> 20) + " MiB are free, the rest is held by " +
           holders(state, at);
  }
  bool lacks_gpus = needs.gpu.milli > 0 && choose_gpus(host.info.gpus, room, needs.gpu).empty();
  if (lacks_gpus) return why_no_gpu(state, at, needs.gpu);
  if (needs.cpus_milli > room.cpus_free_milli) {
    return "it asks for " + cores(needs.cpus_milli) + "; " +
           cores(std::max(room.cpus_free_milli, 0)) + " are free, the rest is held by " +
           holders(state, at);
  }
  return "";
}

std::string name_of(const State& state, HostId at) {
  return at == 0 ? "this machine" : "`" + state.hosts[at].info.name + "`";
}

std::string of_run(const State& state, const RunId& run) {
  return state.runs.size() > 1 ? " of run " + run : "";
}

/// Whether units that ask for such may run on the host at all.
bool is_for(const State& state, HostId at, const ReadyClass& needs) {
  if (needs.is_home) return at == 0;
  return state.hosts[at].info.cpus_milli > 0 || needs.cpus_milli == 0;
}

/// "it starts next", or for whom what it would take is kept.
std::string why_not_yet(const State& state, const ReadyClass& needs) {
  const ReadyHead* gang = waiting_gang(state);
  if (gang == nullptr || gang->what.priority < needs.priority) return "it starts next";
  return quoted(state.runs.at(gang->run), gang->unit) + of_run(state, gang->run) + " needs " +
         std::to_string(gang->what.ranks) + " ranks at once, and what is free is kept for them";
}

/// "it needs 4 ranks at once, each with 2 CPUs; there is room for: this machine 0, `a` 2"
std::string why_no_gang(const State& state, const ReadyClass& needs) {
  std::string each = cores(needs.cpus_milli);
  if (needs.memory_bytes > 0)
    each += " and " + format_bytes(static_cast<uint64_t>(needs.memory_bytes));
  if (needs.gpu.milli > 0) each += " and " + words_of(needs.gpu);
  if (!needs.named.empty()) each += " and " + words_of(needs.named);
  if (!needs.where.empty()) each += " where `" + needs.where + "`";
  std::string text;
  uint64_t room = 0;
  size_t others = 0, shown = 0;
  for (size_t i = 0; i < state.hosts.size(); i++) {
    auto at = static_cast<HostId>(i);
    const Host& host = state.hosts[i];
    if (host.is_lost() || !is_for(state, at, needs)) continue;
    uint32_t ranks =
        host.takes_attempts() ? ranks_that_fit(host.info, host.room, needs, needs.ranks_max) : 0;
    room += ranks;
    if (++shown > kHostsShownMax) {
      others++;
      continue;
    }
    text += (text.empty() ? "" : ", ") + name_of(state, at) + " " +
            (!host.is_up        ? "is waited for to come back"
             : host.is_draining ? "is about to leave"
                                : std::to_string(ranks));
  }
  if (room >= needs.ranks) return why_not_yet(state, needs);
  if (others > 0) text += ", and so on " + std::to_string(others) + " more";
  return "it needs " + std::to_string(needs.ranks) + " ranks at once, each with " + each +
         (text.empty() ? "; no worker has joined" : "; free: " + text);
}

/// What binds on each host, or that it starts next.
std::string why_on_no_host(const State& state, const ReadyClass& needs) {
  std::string text;
  Names away;
  size_t shown = 0, others = 0;
  for (size_t i = 0; i < state.hosts.size(); i++) {
    auto at = static_cast<HostId>(i);
    const Host& host = state.hosts[at];
    if (host.is_lost() || !is_for(state, at, needs)) continue;
    if (host.is_awaited) {
      away.add("`" + host.info.name + "`");
      continue;
    }
    std::string why = why_not_on(state, at, needs);
    if (why.empty()) return why_not_yet(state, needs);
    if (state.hosts.size() == 1) return why;
    if (++shown > kHostsShownMax) {
      others++;
      continue;
    }
    text += (text.empty() ? "on " : "; on ") + name_of(state, at) + ": " + why;
  }
  if (others > 0) text += "; and so on " + std::to_string(others) + " more";
  if (!away.empty()) {
    text += (text.empty() ? "it waits for " : "; it also waits for ") + away.text() +
            " to come back, which nothing is heard of";
  }
  if (!text.empty()) return text;
  return "no worker has joined: `flow worker --join ADDRESS` on a machine that has what it asks "
         "for";
}

std::string why_ready(const State& state, const Run& run, UnitId unit) {
  ReadyClass needs = needs_of(state, run, unit);
  if (needs.limited_map != kNoNode) {
    uint32_t limit = run.node(run.units[needs.limited_map].node).limit;
    auto running = run.map_running.find(needs.limited_map);
    if (running != run.map_running.end() && running->second >= limit) {
      return quoted(run, needs.limited_map) + " runs at most " + std::to_string(limit) +
             " instances at once, and as many run";
    }
  }
  if (!may_start(state, run, needs, run.cpus_used_milli, 0)) {
    return "its run has " + std::to_string(run.jobs) + " CPU slots, held by " + holders(state, run);
  }
  return needs.is_gang() ? why_no_gang(state, needs) : why_on_no_host(state, needs);
}

std::string why_elsewhere(const State& state, const Run& run, const Unit& u) {
  UnitId own = own_holder(run, u.key);
  if (own != kNoNode) {
    return quoted(run, own) + " computes the same (equal code and inputs); its result will serve";
  }
  const KeyTable::Holder* shared = shared_holder(state, u.key);
  if (shared == nullptr) return "another computes the same";
  auto [number, unit] = *shared;
  const RunId& id = state.run_numbers.at(number);
  const Run& other = state.runs.at(id);
  std::string of_run = &other == &run ? "" : " of run " + id;
  return quoted(other, unit) + of_run +
         " computes the same (equal code and inputs); its result will serve";
}

std::string why_running(const State& state, const Unit& u) {
  for (HostId host : hosts_of(u)) {
    if (state.hosts[host].is_awaited)
      return "it runs on " + name_of(state, host) +
             ", which nothing is heard of: it goes on if that comes back in time";
  }
  if (!u.extra || u.extra->others.empty()) return "it runs";
  std::string text = "it runs as " + std::to_string(u.extra->others.size() + 1) + " ranks";
  if (u.extra->is_growing) return text + ", and was asked to stop, to begin again with more";
  if (u.extra->grew_from == 0) return text;
  return text + ": it began again when there was room for more than " +
         std::to_string(u.extra->grew_from);
}

}  // namespace

std::string explain_wait(const State& state, const RunId& run_id, UnitId unit) {
  auto found = state.runs.find(run_id);
  if (found == state.runs.end()) return "the run " + run_id + " is not active";
  const Run& run = found->second;
  if (unit >= run.units.size()) return "the run " + run_id + " has no such task";
  const Unit& u = run.units[unit];
  std::vector<Edge> edges;
  switch (u.phase) {
    case Phase::edges:
      EdgeReader(run).before(unit, edges);
      return open_edges(run, unit, edges);
    case Phase::branch:
      result_edges(run, unit, edges);
      return open_edges(run, unit, edges) + ", which its result names";
    case Phase::instances: {
      Names open;
      for (UnitId instance : instances_of(run, unit)) {
        if (!is_final(run.units[instance].status)) open.add(quoted(run, instance));
      }
      return "it waits for its instances " + open.text();
    }
    case Phase::resolving:
      return "its inputs are being read";
    case Phase::gathering:
      return "its result is being put together";
    case Phase::held:
      return run.status == RunStatus::interrupted
                 ? "its run was interrupted: `flow resume " + run_id + "` goes on"
                 : "its run is being stopped";
    case Phase::elsewhere:
      return why_elsewhere(state, run, u);
    case Phase::ready:
      return why_ready(state, run, unit);
    case Phase::signal: {
      std::string text = "it waits for the signal `" + u.extra->waiting_for + "`";
      Time deadline = u.extra->waits.at(u.extra->wait_name).first;
      if (deadline != 0) text += " until " + utc(deadline);
      return text + ": `flow signal " + run_id + " " + u.extra->waiting_for + "` sends it";
    }
    case Phase::backoff:
      return "its attempt " + std::to_string(u.attempts) + " failed (" + u.extra->failure.message +
             "); the next starts at " + utc(u.extra->retry_at);
    case Phase::running:
      return why_running(state, u);
    case Phase::done:
      if (u.status == UnitStatus::skipped && !u.extra)
        return "it was skipped: its branch was not taken";
      if (u.status != UnitStatus::succeeded && u.extra && !u.extra->failure.message.empty()) {
        return std::string("it ") +
               (u.status == UnitStatus::failed ? "failed: " : "did not run: ") +
               u.extra->failure.message;
      }
      return std::string("it is ") + status_name(u.status);
  }
  return "";
}

}  // namespace flow::core
