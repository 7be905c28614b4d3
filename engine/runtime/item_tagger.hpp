// Calls the tag functions of maps over handles, once their lists are known: in build processes,
// because the engine loads no user code. The tags enter the journal with the map's expansion, so
// that a replay or a resume does not call the function again.
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/runs/input_resolver.hpp"
#include "engine/runtime/active_runs.hpp"
#include "engine/runtime/inbox.hpp"
#include "engine/runtime/recorder.hpp"
#include "engine/worker/worker.hpp"

namespace flow {

class ItemTagger {
 public:
  ItemTagger(const core::State& state, Builder& builder, Inbox& inbox, Recorder& recorder,
             InputResolver& resolver, ActiveRuns& active_runs)
      : state_(state),
        builder_(builder),
        inbox_(inbox),
        recorder_(recorder),
        resolver_(resolver),
        active_runs_(active_runs) {}
  ~ItemTagger();
  ItemTagger(const ItemTagger&) = delete;
  ItemTagger& operator=(const ItemTagger&) = delete;

  /// In a turn. A later turn answers the query ExpandMap of this unit, whose list is known.
  void request(const core::RunId& run, core::UnitId unit);

 private:
  struct Job {
    core::RunId run;
    core::UnitId unit = 0;
    BuildOrder order;
    Digest list;  // of the items
  };
  void work();
  void answer(const Job& job, const Result<std::vector<std::string>>& tags);  // in a turn
  void fail(const Job& job, const std::string& why);

  const core::State& state_;
  Builder& builder_;
  Inbox& inbox_;
  Recorder& recorder_;
  InputResolver& resolver_;
  ActiveRuns& active_runs_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;  // at most one per map that is expanded now
  bool quit_ = false;
  std::thread thread_;  // started by the first request
};

}  // namespace flow
