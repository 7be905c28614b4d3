#include "engine/query/earlier_attempts.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/base/throwing.hpp"
#include "engine/runs/attempt_history.hpp"

namespace flow {

EarlierAttempts earlier_attempts(const OpenedRun& opened, const std::string& task, size_t limit) {
  const core::Run& run = *opened.loaded.run;
  // By name, because another unit may have taken the place of one with this name.
  const std::string wanted =
      task.empty() ? "" : InputResolver::unit_name(run, value_or_throw(find_unit(run, task)));
  EarlierAttempts earlier;
  for (auto& [unit, rows] : value_or_throw(attempt_rows_of(*opened.store, run))) {
    const core::Unit& u = run.units[unit];
    if (u.dropped) continue;
    const std::string name = InputResolver::unit_name(run, unit);
    if (!task.empty() && name != wanted) continue;
    for (AttemptRow& row : rows)
      // The newest one is that of the state, unless its task was found in the cache afterwards.
      if (row.attempt < u.attempts || u.cached) earlier.list.push_back({name, std::move(row)});
  }
  std::ranges::sort(earlier.list, [](const EarlierAttempt& a, const EarlierAttempt& b) {
    return std::tie(a.row.assigned, a.task, a.row.attempt) <
           std::tie(b.row.assigned, b.task, b.row.attempt);
  });
  earlier.total = earlier.list.size();
  if (earlier.list.size() > limit)
    earlier.list.erase(earlier.list.begin(), earlier.list.end() - static_cast<ptrdiff_t>(limit));
  return earlier;
}

}  // namespace flow
