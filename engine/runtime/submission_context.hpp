// The part of an engine that a submission uses.
#pragma once
#include "engine/runtime/engine_loop.hpp"
#include "engine/submission/prepare.hpp"
#include "engine/submission/requirements.hpp"

namespace flow {

/// The resources that a run of this engine may use. Detects GPUs only if the plan may request one.
Result<Capacity> capacity_for(const Plan& plan, EngineLoop& engine_loop,
                              Purpose purpose = Purpose::run);

/// `staging` stores the script's files as blobs. `engine_loop` outlives the context.
SubmissionContext submission_context(EngineLoop& engine_loop, Purpose purpose, Blobs& staging);
/// With the script's files stored as blobs in the state.
Result<Prepared> prepare(EngineLoop& engine_loop, const Submission& submission,
                         Purpose purpose = Purpose::run);

}  // namespace flow
