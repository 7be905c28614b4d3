// Runs a scenario text: events in, exactly these commands out, invariants after every event.
//
//   def NAME [kind=lua|shell|dynamic|service|native] [replicas=N] [max=N] [retries=N]
//            [backoff=MS] [factor=F] [cap=MS] [oom=N]
//            [infra=N] [cpus=MILLI] [memory=N] [priority=N] [cache=no] [effect]
//            [gpus=MILLI] [gpu=MODEL] [gpu_memory=N] [ranks=N] [ranks_max=N]
//            [canary=P,P,100] [every=MS] [min=N] [max_errors=RATE] [max_p99=US] [gate=DEF]
//            [replace]
//   node NAME DEF [args=a,b] [after=a,b] [in=w:then|w:else] [items=a,1,b] [list=a] [limit=N]
//   node NAME when=a then=b else=c [in=…]
//   result a,b
//   calls NAME … end              the nodes and the result of a call list
//   at MS                         the time of what follows
//   run ID                        the run that the following lines mean
//   EVENT -> COMMAND; COMMAND     nothing else may come out
//   refused EVENT                 not admitted
//   gpus A:MODEL:MEMORY[:mig] …   the machine's GPUs are found, an event
//   gpu A FAULT [dead] [at=WORKER]  a GPU fails, an event
//   join NAME [cpus=N] [memory=N] [gpus=A:MODEL:MEMORY[:mig|:FAULT[:dead]],…] [labels=rack:a,…]
//   [with=a,b@1!65536,RUN:0]
//                                 a worker comes, with attempts that it still has, an event
//   disconnect NAME WHY                 nothing is heard of a worker, an event
//   lost NAME WHY                 a worker is gone, an event
//   assign UNIT [on=A,B] [at=WORKER]   an event
//   assign UNIT ranks=w1,w1:A+B,.      of a gang, a place a rank; "." is the engine's own machine
//   schedule -> a@1, b@1 on A at w, c@1 ranks .,w   what the scheduler proposes
//   go -> COMMANDS                admits and applies what it proposes
//   scale_up UNIT [after=MS] -> ranks 3; stop …   what is asked of a gang that saved a checkpoint
//   is UNIT STATUS [WORD…]        WORDs: cached, attempts=N, since=MS, phase=N, on=A,B, at=WORKER,
//                                      ranks=w1,.
//   shifted STEP [ERROR] / measured STEP [requests=N] [errors=N] [p99=US] [error=TEXT] /
//   gated STEP / answered STEP true|WORD / rollovertimer SERIAL   of the run's rollover, events
//   scaled UNIT N                 how many replicas of a service are in use, an event
//   status STATUS                 of the run
//   rollover PHASE [from RUN]     of the run
//   counts succeeded=1 …          those not named are 0
//   why UNIT TEXT / error UNIT TEXT   the explanation, the failure's message, hold this text
//   restarts UNIT N                   how often the service died after it was ready
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/core.hpp"

namespace flow::core {

class Scenario {
 public:
  /// Returns "" or the error with its line.
  std::string play(const std::string& text);

 private:
  using Words = std::vector<std::string>;
  std::string line(const std::string& text);
  std::string declare(const Words& words);
  std::string check(const Words& words, const std::string& rest);
  bool parse(const Words& words, Event& event);
  void place_ranks(const Words& ranks, Assigned& gang) const;
  std::string rank_text(WorkerId at, const std::vector<std::string>& gpus) const;
  bool parse_attempt(const Words& words, Event& event);
  std::string step(const Event& event, std::vector<std::string>& printed);
  std::string text_of(const Command& command) const;
  std::string text_of(const AttemptId& id) const;
  std::string in_run(const RunId& run) const;
  UnitId unit(const std::string& name) const;
  WorkerId worker(const std::string& name) const;
  AttemptId attempt(const std::string& name) const;
  std::string scale_up(const Words& words, const std::string& expected);
  std::string proposals(const Words& words, const std::string& expected);

  std::shared_ptr<Plan> plan_ = std::make_shared<Plan>();
  std::vector<TaskNode>* nodes_ = &plan_->nodes;
  Value* result_ = &plan_->result;
  std::map<std::string, std::shared_ptr<PlanFragment>> calls_;
  State state_;
  std::vector<Record> records_;
  Time now_ = 0;
  RunId run_ = "r";
};

}  // namespace flow::core
