// flow::ClusterViewer: of a state on this machine, or of a head.
#include <algorithm>
#include <set>

#include "engine/base/clock.hpp"
#include "engine/query/state_view.hpp"
#include "flow/cluster_view.hpp"

namespace flow {

namespace {

/// Adds what the writer keeps and the state does not: readings of GPUs, and what is known only
/// while a worker is connected. Adds nothing if the writer does not answer.
void add_unstored(const EngineOptions& options, std::vector<NodeInfo>& workers) {
  auto has_unstored = [](const NodeInfo& worker) {
    return !worker.gpus.empty() || !worker.name.empty();
  };
  if (std::ranges::none_of(workers, has_unstored)) return;
  ClusterInfo cluster;
  try {
    cluster = cluster_info(options);
  } catch (const Failed&) {
    return;
  }
  for (NodeInfo& worker : workers) {
    auto found = std::ranges::find(cluster.nodes, worker.name, &NodeInfo::name);
    if (found == cluster.nodes.end()) continue;
    worker.gpu_readings = std::move(found->gpu_readings);
    worker.address = std::move(found->address);
    worker.version = std::move(found->version);
    worker.note = std::move(found->note);
    worker.from_head = found->from_head;
    worker.from_workers = found->from_workers;
    worker.to_workers = found->to_workers;
  }
}

}  // namespace

struct ClusterViewer::Impl {
  EngineOptions options;
  std::unique_ptr<Engine> head;  // null: the state is read

  ClusterView view_of_head(const std::string& selector) {
    ClusterView view;
    view.state = head->address();
    view.at_ms = now_ms();
    view.has_writer = true;
    view.workers = head->nodes();
    view.services = head->services();
    std::set<std::string> ids;  // they sort by time
    for (const NodeInfo& worker : view.workers)
      for (const std::string& task : worker.tasks) ids.insert(task.substr(0, task.find(' ')));
    for (const ServiceInfo& service : view.services) ids.insert(service.version);
    add_selected(selector.empty() && !ids.empty() ? *ids.rbegin() : selector, view);
    if (view.run) ids.insert(view.run->id);
    for (const std::string& id : ids) add_run(id, view);
    return view;
  }

  void add_selected(const std::string& selector, ClusterView& view) {
    try {
      view.run = head->show(selector);
      view.waiting = waiting_tasks(*view.run);
    } catch (const Failed& failed) {
      bool has_no_run = selector.empty() && failed.error.kind == ErrorKind::user;
      if (!has_no_run) throw;
    }
  }

  void add_run(const std::string& id, ClusterView& view) {
    RunInfo run;
    if (view.run && view.run->id == id) {
      run = *view.run;
    } else {
      try {
        run = head->show(id);
      } catch (const Failed& failed) {
        if (failed.error.kind != ErrorKind::user) throw;
        return;  // it was deleted meanwhile
      }
    }
    run.tasks.clear();
    view.runs.push_back(std::move(run));
  }
};

ClusterViewer::ClusterViewer(const EngineOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  if (!options.head.empty()) impl_->head = std::make_unique<Engine>(options);
}

ClusterViewer::~ClusterViewer() = default;

ClusterView ClusterViewer::view(const std::string& run) {
  if (impl_->head) return impl_->view_of_head(run);
  ClusterView view = view_state(impl_->options, run);
  if (view.has_writer) add_unstored(impl_->options, view.workers);
  return view;
}

}  // namespace flow
