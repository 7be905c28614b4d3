// The addresses of the page and of its data. Pure.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace flow {

enum class PageEndpoint : uint8_t {
  unknown,
  home,      // /
  asset,     // /assets/NAME
  session,   // /api/session
  events,    // /api/events?run=ID
  runs,      // /api/runs?q=TEXT&status=STATUS
  run,       // /api/runs/ID
  tasks,     // /api/runs/ID/tasks?table=N&since=N
  graph,     // /api/runs/ID/graph
  task,      // /api/runs/ID/task?name=TASK
  values,    // /api/runs/ID/values?task=TASK
  logs,      // /api/runs/ID/logs?task=TASK&q=TEXT
  metrics,   // /api/runs/ID/metrics?task=TASK
  attempts,  // /api/runs/ID/attempts?task=TASK
  cost,      // /api/runs/ID/cost?by=WHAT
  cancel,    // POST /api/runs/ID/cancel
  signal,    // POST /api/runs/ID/signal?name=NAME, with a value as JSON
  stop,      // POST /api/runs/ID/stop
  retry,     // POST /api/runs/ID/retry?task=TASK
  rollback,  // POST /api/runs/NAME/rollback
  picture,   // /api/runs/ID/picture?task=TASK&digest=HEX
  cluster,   // /api/cluster
  services,  // /api/services
  waiting,   // /api/waiting
  costs,     // /api/cost?since_s=SECONDS&by=WHAT
  sign_in,   // POST /sign-in
};

struct PageRoute {
  PageEndpoint endpoint = PageEndpoint::unknown;
  std::string name = {};  // of the asset or the run, decoded
};

/// Whether it asks the process that writes the state to do something.
bool is_action(PageEndpoint endpoint);
PageRoute page_route_of(std::string_view path);
/// As in `Allow`; empty for an unknown path.
std::string_view page_methods(std::string_view path);

/// The fields of a query, decoded; of a repeated one the first.
class PageQuery {
 public:
  explicit PageQuery(std::string_view query);
  /// "" if it is missing.
  const std::string& get(const std::string& name) const;
  /// A whole number of at most `max`; without a valid one, `otherwise`.
  uint64_t number(const std::string& name, uint64_t otherwise, uint64_t max) const;

 private:
  std::map<std::string, std::string> fields_;
};

}  // namespace flow
