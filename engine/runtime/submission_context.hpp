// What an engine offers to a submission.
#pragma once
#include "engine/runtime/engine_loop.hpp"
#include "engine/submission/prepare.hpp"
#include "engine/submission/requirements.hpp"

namespace flow {

/// What a run of this engine may use. Looks for GPUs only if the plan may ask for one.
Result<Capacity> capacity_for(const Plan& plan, EngineLoop& engine_loop,
                              Purpose purpose = Purpose::run);

/// `staging` takes the content of the script's files. `engine_loop` outlives the context.
SubmissionContext submission_context(EngineLoop& engine_loop, Purpose purpose, Blobs& staging);
/// With the content of the script's files in the state.
Result<Prepared> prepare(EngineLoop& engine_loop, const Submission& submission,
                         Purpose purpose = Purpose::run);

}  // namespace flow
