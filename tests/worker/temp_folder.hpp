// A worker in a temporary folder, and orders of shell tasks for it.
#pragma once
#include <stdlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/plan/plan.hpp"
#include "engine/worker/worker.hpp"
#include "flow/value.hpp"

namespace flow::test {

namespace fs = std::filesystem;

class TempFolder {
 public:
  TempFolder() { REQUIRE(mkdtemp(path_.data()) != nullptr); }
  ~TempFolder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_ = fs::temp_directory_path() / "flow-worker-XXXXXX";
};

inline AttemptOrder shell_order(core::UnitId unit, const std::string& command) {
  AttemptOrder order;
  order.id = {"r", unit, 1, 1};
  order.task = order.task_name = "t" + std::to_string(unit);
  order.kind = TaskKind::shell;
  order.args = encode_value(Value::list({}));
  ShellSpec shell;
  shell.command = command;
  shell.shell = {"sh", "-c"};
  order.shell = std::make_shared<const ShellSpec>(std::move(shell));
  using Environment = std::vector<std::pair<std::string, std::string>>;
  order.environment = std::make_shared<const Environment>(Environment{{"PATH", getenv("PATH")}});
  return order;
}

inline AttemptOrder lua_order(core::UnitId unit, const std::string& script,
                              const std::vector<std::string>& args) {
  AttemptOrder order = shell_order(unit, "");
  order.kind = TaskKind::lua;
  order.shell = nullptr;
  order.args = encode_value(Value::list({args.begin(), args.end()}));
  Bundle bundle;
  bundle.main = "p.lua";
  bundle.files = {{bundle.main, script}};
  order.bundle = bundle.digest();
  order.bundle_bytes = std::make_shared<const std::string>(encode_bundle(bundle));
  return order;
}

inline std::unique_ptr<Worker> worker_in(const TempFolder& temp, Worker::OnReport on_report,
                                         int32_t executors = 1) {
  WorkerOptions options;
  options.state_dir = temp / "state";
  options.executor = getenv("FLOW_TEST_EXECUTOR");
  options.executors_max = executors;
  auto worker = make_worker(options, std::move(on_report));
  REQUIRE(worker.ok());
  return std::move(*worker);
}

}  // namespace flow::test
