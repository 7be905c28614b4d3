// One lua_State with its script: it builds the graph, or it runs attempts. Used by one thread.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "lua/sandbox/sandbox.hpp"
#include "lua/state/memory.hpp"

namespace flow::lua {

class TensorBudget;  // tensor/memory_budget.hpp

/// Made, built or loaded in vm.cc; what it runs is in attempt.cc.
class State {
 public:
  State();
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Result<BuildResult> build(const BuildRequest& request);
  Status load(const Bundle& bundle);
  AttemptOutcome run(const AttemptRequest& request, AttemptHost& host);
  /// As run, and keeps the table that the service's function returned.
  AttemptOutcome start_service(const AttemptRequest& request, AttemptHost& host);
  Result<Value> predict(const Value& inputs);
  /// The last attempt may have left what no restore can put back.
  bool is_spent() const { return spent_; }

 private:
  struct Building {
    State* state;
    const BuildRequest* request;
    Status status;
  };
  struct Loading {
    State* state;
    const Bundle* bundle;
    Status status;
  };
  struct Attempt {
    State* state;
    const AttemptRequest* request;
    AttemptOutcome* outcome;
    bool is_service;
  };
  struct Prediction {
    State* state;
    const Value* inputs;
    Result<Value> result;
  };

  static int load_body(lua_State* L);
  static int build_body(lua_State* L);
  static int attempt_body(lua_State* L);
  static int predict_body(lua_State* L);

  void use_bundle(const Bundle& bundle);
  void use_folder(const std::string& root, const std::string& main);
  Status load_main();
  void read_result(const AttemptRequest& request, const TaskObject& task, AttemptOutcome& out);
  void keep_service(const AttemptRequest& request, const TaskObject& task, AttemptOutcome& out);
  AttemptOutcome attempt(const AttemptRequest& request, AttemptHost& host, bool is_service);
  void begin_attempt(const AttemptRequest& request, AttemptHost& host);
  void end_comm(AttemptOutcome& outcome);
  void end_attempt();
  void take_snapshots();

  std::shared_ptr<Memory> held_memory_ = std::make_shared<Memory>();  // tensors may outlive this
  Memory& memory_ = *held_memory_;
  std::shared_ptr<TensorBudget> budget_;
  lua_State* L_;
  VmContext context_;
  Sandbox sandbox_;
  GraphBuilder graph_;
  Bundle bundle_;
  std::vector<std::unique_ptr<Snapshot>> snapshots_;  // by ordinal; null: none can be taken
  bool spent_ = false;
  int service_ref_ = LUA_NOREF;
  AttemptRequest service_request_;
};

/// An attempt that failed for `message`.
AttemptOutcome failed(std::string message);

}  // namespace flow::lua
