// flow::Engine: the writer of a state if its lock is free, else a client of the process that holds
// it; or a client of a head on another machine.
#include <fmt/format.h>

#include "engine/api/cluster_transport.hpp"
#include "engine/api/local_engine.hpp"
#include "engine/client/local_client.hpp"
#include "engine/client/remote_client.hpp"
#include "engine/log/log_output.hpp"
#include "engine/store/lock.hpp"

namespace flow {

Engine::Engine(EngineOptions options) {
  if (!options.head.empty()) {
    log_ = value_or_throw(log::open_log(options.log, ""));
    impl_ = value_or_throw(RemoteEngine::open(options, cluster_transport));
    return;
  }
  std::string dir = value_or_throw(find_state(options));
  log_ = value_or_throw(log::open_log(options.log, dir));
  impl_ = value_or_throw(open_engine(options, dir, LocalEngine::open_writer));
}

Engine::~Engine() = default;

void Engine::define(const std::string& name, const std::string& version, NativeTask task) {
  impl_->define(name, version, std::move(task));
}

void Engine::define_operations(const std::string& name, const std::string& library) {
  impl_->define_operations(name, library);
}

Run Engine::run(const std::string& script, const std::vector<std::pair<std::string, Value>>& params,
                const RunOptions& options) {
  std::vector<std::pair<Value, Value>> fields;
  for (const auto& [name, value] : params) fields.emplace_back(Value(name), value);
  return Run(impl_->run(script, Value::map(std::move(fields)), options));
}

Run Engine::resume(const std::string& selector, const RunOptions& options, bool new_code) {
  return Run(impl_->resume(selector, options, new_code));
}

Run Engine::retry(const std::string& selector, const std::string& task, const RunOptions& options) {
  return Run(impl_->retry(selector, task, options));
}

Run Engine::serve(const std::string& selector, const RunOptions& options) {
  return Run(impl_->serve(selector, options));
}

Run Engine::rollback(const std::string& name, const RunOptions& options) {
  return Run(impl_->rollback(name, options));
}

std::vector<RunInfo> Engine::stop(const std::string& selector, int64_t within_ms) {
  return impl_->stop(selector, within_ms);
}

std::vector<ServiceInfo> Engine::services() { return impl_->services(); }

void Engine::cancel(const std::string& selector) { impl_->cancel(selector); }

void Engine::signal(const std::string& selector, const std::string& name, const std::string& json) {
  impl_->signal(selector, name, json);
}

PlanInfo Engine::plan(const std::string& script, const RunOptions& options) {
  return impl_->plan(script, options);
}

RunInfo Engine::show(const std::string& selector) { return impl_->show(selector); }

std::vector<std::string> Engine::get(const std::string& selector, const std::string& part,
                                     const std::string& directory) {
  return impl_->get(selector, part, directory);
}

uint64_t Engine::gc(uint32_t keep) { return impl_->gc(keep); }

uint64_t Engine::state_bytes() const { return impl_->state_bytes(); }

uint32_t Engine::client_runs() const { return impl_->client_runs(); }

void Engine::wait_for_clients() { impl_->wait_for_clients(); }

std::string Engine::address() const { return impl_->address(); }

std::string Engine::metrics_address() const { return impl_->metrics_address(); }

std::vector<NodeInfo> Engine::nodes() const { return impl_->nodes(); }

bool Engine::is_writer() const { return impl_->is_writer(); }

std::string Engine::stopped_by() const { return impl_->stopped_by(); }

}  // namespace flow
