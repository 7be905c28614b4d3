// Read access to the state of this engine: runs, plans, results, workers.
#include <unistd.h>

#include <optional>

#include "engine/api/local_engine.hpp"
#include "engine/client/request_marks.hpp"
#include "engine/query/export_result.hpp"
#include "engine/query/plan_preview.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/query/upload_result.hpp"
#include "engine/runs/detached_runs.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/runtime/garbage_collection.hpp"
#include "engine/runtime/submission_context.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/submission/remote_inputs.hpp"

namespace flow {

RunInfo LocalEngine::describe_run(const RunId& id, bool tasks) {
  RunInfo info;
  bool found = false;
  auto describe = [&](const core::Run& run, const RunRecord& record, InputResolver& resolver,
                      const core::State* state) {
    info = tasks ? info_of_run(run, record, resolver, state)
                 : summary_of_run(run, record, resolver, state);
    bool was_interrupted = info.status == "interrupted";
    if (was_interrupted) info.not_resumed = why_not_resumed(engine_loop_->parts().store, id);
    found = true;
  };
  EngineLoop* engine_loop = engine_loop_.get();
  engine_loop->inspect([&](const core::State& state, InputResolver& resolver) {
    auto run = state.runs.find(id);
    if (run == state.runs.end()) return;
    if (auto record = record_of(engine_loop->parts().store, id))
      describe(run->second, *record, resolver, &state);
  });
  if (found) return info;
  if (auto error = engine_loop->stopped_by()) throw Failed(*error);
  RunRecord record = value_or_throw(select_record(engine_loop->parts().store, id));
  InputResolver resolver(
      [engine_loop](const Digest& digest) { return engine_loop->parts().blobs.get(digest); });
  if (!tasks) return summary_of_record(record, resolver);
  LoadedRun loaded =
      value_or_throw(load_run(engine_loop->parts().store, engine_loop->parts().blobs, record));
  if (loaded.run == nullptr) return info_of_record(record);
  describe(*loaded.run, record, resolver, loaded.state.get());
  return info;
}

std::vector<ServiceInfo> LocalEngine::services() { return Reader(reader_options()).services(); }

PlanInfo LocalEngine::plan(const std::string& script, const RunOptions& options) {
  Submission submission = local_submission(options);
  submission.script = script;
  return plan_for(submission);
}

// In a turn: all decisions of earlier turns are durable, and gc does not run meanwhile. Functions
// of the script are called between turns.
PlanInfo LocalEngine::preview(const Prepared& prepared, bool fresh, const RunRecord* resumed) {
  PreviewTags tags(*engine_loop_->parts().builder, prepared);
  PlanInfo info;
  do {
    engine_loop_->inspect([&](const core::State&, InputResolver&) {
      const EngineLoopOptions& options = engine_loop_->parts().options;
      PlanPreview preview(engine_loop_->parts().store, engine_loop_->parts().blobs,
                          {options.jobs, options.custom_resources},
                          engine_loop_->parts().clock.now());
      info = preview.preview(*prepared.plan, fresh, resumed, &tags);
    });
  } while (tags.resolve());
  return info;
}

PlanInfo LocalEngine::plan_for(const Submission& submission) {
  Prepared prepared = value_or_throw(prepare(*engine_loop_, submission, Purpose::preview));
  return preview(prepared, submission.options.fresh, nullptr);
}

Counts LocalEngine::counts(const RunId& id) {
  std::optional<Counts> counts;
  engine_loop_->inspect([&](const core::State& state, InputResolver&) {
    auto run = state.runs.find(id);
    if (run != state.runs.end()) counts = counts_of(run->second);
  });
  if (counts) return *counts;
  auto record =
      record_of(engine_loop_->parts().store, id);  // the state no longer holds a finished run
  return record ? record->counts : Counts{};
}

std::vector<CountedTask> LocalEngine::counts_by_task(const RunId& id) {
  std::vector<CountedTask> tasks;
  engine_loop_->inspect([&](const core::State& state, InputResolver&) {
    auto run = state.runs.find(id);
    if (run != state.runs.end()) tasks = flow::counts_by_task(run->second);
  });
  return tasks;
}

RunInfo LocalEngine::show(const std::string& selector, bool tasks) {
  return describe_run(value_or_throw(select_record(engine_loop_->parts().store, selector)).id,
                      tasks);
}

EngineOptions LocalEngine::reader_options() const {
  EngineOptions options = options_;
  options.state = engine_loop_->parts().options.state_dir;
  return options;
}

Value LocalEngine::value(const std::string& selector, const std::string& part) const {
  return Reader(reader_options()).value(selector, part);
}

std::vector<std::string> LocalEngine::get_folders(const std::string& selector) const {
  return Reader(reader_options()).get_folders(selector);
}

std::vector<std::string> LocalEngine::get(const std::string& selector, const std::string& part,
                                          const std::string& directory) {
  std::vector<std::string> folders;
  if (part.empty()) folders = get_folders(selector);
  const EngineComponents& parts = engine_loop_->parts();
  return export_to_target(directory, parts.options.state_dir, [&](const std::string& folder) {
    return export_result(parts.blobs, value(selector, part), part, folder, folders);
  });
}

Result<cluster::BlobReader> LocalEngine::open_blob(const Digest& digest,
                                                   const std::string& origin) const {
  auto inlined = engine_loop_->parts().store.get(Family::blobs, digest.view());
  FLOW_TRY(inlined);
  if (inlined->has_value()) return cluster::BlobReader::of_bytes(std::move(**inlined));
  std::string path = engine_loop_->parts().blobs.path_of(digest);
  if (origin.empty() || ::access(path.c_str(), R_OK) == 0)
    return cluster::BlobReader::of_file(path, false);
  return cluster::BlobReader::of_file(origin, true);
}

uint64_t LocalEngine::gc(uint32_t keep) {
  uint64_t freed =
      value_or_throw(collect_garbage(*engine_loop_, keep, [this] { return watched_runs(); }));
  return freed + remove_unfinished_downloads(engine_loop_->parts().blobs);
}

std::set<std::string> LocalEngine::watched_runs() {
  std::set<std::string> runs;
  std::lock_guard lock(watched_mutex_);
  for (const auto& watched : watched_) {
    if (auto state = watched.lock()) runs.insert(state->id);
  }
  for (const std::string& request : live_requests(engine_loop_->parts().options.state_dir)) {
    auto run = engine_loop_->parts().store.get(Family::kv, request_key(request));
    if (run.ok() && *run) runs.insert(**run);
  }
  return runs;
}

}  // namespace flow
