// One lua_State with its script: it builds the graph, or runs attempts. Used by one thread.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "lua/sandbox/sandbox.hpp"
#include "lua/state/memory.hpp"

namespace flow::lua {

class TensorBudget;  // tensor/memory_budget.hpp

/// Construction, build and load are in vm.cc, attempts in attempt.cc.
class ScriptState {
 public:
  ScriptState();
  ~ScriptState();
  ScriptState(const ScriptState&) = delete;
  ScriptState& operator=(const ScriptState&) = delete;

  Result<BuildResult> build(const BuildRequest& request);
  Status load(const Bundle& bundle);
  AttemptOutcome run(const AttemptRequest& request, AttemptHost& host);
  /// Like run, and keeps the table that the service's function returned.
  AttemptOutcome start_service(const AttemptRequest& request, AttemptHost& host);
  Result<PredictedValues> predict(const Value& inputs,
                                  const std::vector<PredictedRequest>& requests);
  void collect();
  /// The last attempt may have left changes that cannot be restored.
  bool must_be_replaced() const { return must_be_replaced_; }

 private:
  struct BuildCall {
    ScriptState* state;
    const BuildRequest* request;
    Status status;
    std::vector<std::string> tags;
    std::vector<CallResources> resources;
  };
  struct LoadCall {
    ScriptState* state;
    const Bundle* bundle;
    Status status;
  };
  struct AttemptCall {
    ScriptState* state;
    const AttemptRequest* request;
    AttemptOutcome* outcome;
    bool is_service;
  };
  struct PredictCall {
    ScriptState* state;
    const Value* inputs;
    const std::vector<PredictedRequest>* requests;
    Result<PredictedValues> result;
  };

  static int load_body(lua_State* L);
  static int build_body(lua_State* L);
  static int attempt_body(lua_State* L);
  static int predict_body(lua_State* L);

  void use_bundle(const Bundle& bundle);
  void use_folder(const std::string& root, const std::string& main, const std::string& main_text);
  Status load_main();
  void read_result(const AttemptRequest& request, const TaskObject& task, AttemptOutcome& out);
  void keep_service(const AttemptRequest& request, const TaskObject& task, AttemptOutcome& out);
  AttemptOutcome attempt(const AttemptRequest& request, AttemptHost& host, bool is_service);
  void begin_attempt(const AttemptRequest& request, AttemptHost& host);
  void end_comm(AttemptOutcome& outcome);
  void end_attempt();
  void take_snapshots();

  std::shared_ptr<VmMemory> held_memory_ =
      std::make_shared<VmMemory>();  // shared, because tensors may outlive this
  VmMemory& memory_ = *held_memory_;
  std::shared_ptr<TensorBudget> budget_;
  lua_State* L_;
  VmContext context_;
  Sandbox sandbox_;
  GraphBuilder graph_;
  Bundle bundle_;
  std::vector<std::unique_ptr<Snapshot>>
      snapshots_;  // by ordinal; null: a snapshot is not possible
  bool must_be_replaced_ = false;
  int service_ref_ = LUA_NOREF;
  AttemptRequest service_request_;
};

/// An attempt that failed with `message`.
AttemptOutcome failed(std::string message);

}  // namespace flow::lua
