// Within a turn: resolves queries and asks the scheduler until neither has anything left.
#pragma once
#include <vector>

#include "engine/cluster/transfer/blob_directory.hpp"
#include "engine/core/core.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/runtime/query_handler.hpp"
#include "engine/runtime/recorder.hpp"

namespace flow {

/// Used by the turn's thread.
class Scheduling {
 public:
  /// `grow_after`: how long a gang runs with fewer ranks before it may begin again with more, ms.
  Scheduling(const core::State& state, Recorder& recorder, QueryHandler& queries,
             const InputResolver& resolver, const cluster::BlobDirectory& blob_directory,
             core::Time grow_after)
      : state_(state),
        recorder_(recorder),
        queries_(queries),
        resolver_(resolver),
        blob_directory_(blob_directory),
        grow_after_(grow_after) {}

  /// Adds the effects of all that it records. With very many queries it returns early, and the next
  /// turn continues.
  void run_until_stable(core::Time now, std::vector<core::Command>& effects);

 private:
  std::vector<core::Event> next_resize();

  const core::State& state_;
  Recorder& recorder_;
  QueryHandler& queries_;
  const InputResolver& resolver_;
  const cluster::BlobDirectory& blob_directory_;
  const core::Time grow_after_;
};

}  // namespace flow
