// The attempt of a service: an HTTP front, and one thread that calls the script.
#include <fmt/format.h>

#include <algorithm>

#include "engine/executor/attempt.hpp"
#include "engine/executor/service_options.hpp"
#include "engine/serve/model_server.hpp"
#include "engine/serve/predict_result.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kPredictErrorMax =
    4096;                        // bytes of a script's error, in a response and in the log
constexpr int64_t kEndMs = 500;  // between the last response and the end of the attempt

/// The worker kills the attempt at the end of its grace.
int64_t drain_ms_of(int64_t grace_ms) { return grace_ms - std::min(kEndMs, grace_ms / 4); }

}  // namespace

void run_service(Attempt& attempt, ScriptVm& vm, const AttemptRequest& request) {
  const wire::Start& start = attempt.start();
  auto access = read_service_access(start);
  if (!access.ok()) {
    attempt.fail(core::Cause::user_error,
                 fmt::format("{}: {}", start.shell().defined_at(), access.error().message), "");
    return;
  }
  attempt.hide(access->keys);
  attempt.set_serving();
  AttemptOutcome outcome = vm.start_service(request, attempt);
  bool is_ready = outcome.kind == AttemptOutcome::Kind::succeeded;
  if (!is_ready && !attempt.close_checkpoints(outcome.kind)) return;
  if (outcome.kind == AttemptOutcome::Kind::stopped) return attempt.stopped();
  if (outcome.kind == AttemptOutcome::Kind::waiting) {
    return attempt.fail(core::Cause::user_error,
                        fmt::format("the service `{}` waited for a signal: a service only "
                                    "answers, wait in a task that it comes after",
                                    attempt.shown_task()),
                        "");
  }
  if (outcome.kind != AttemptOutcome::Kind::succeeded) return attempt.fail(outcome);
  ServiceOptions options;
  options.name = start.task_name();
  set_service_options(*access, options);
  if (start.request_timeout_ms() > 0) options.request_timeout_ms = start.request_timeout_ms();
  options.drain_ms = drain_ms_of(start.grace_ms());
  options.log = [&attempt](const std::string& line) { attempt.log(line); };
  auto server = ModelServer::open(options);
  if (!server.ok()) {
    vm.end_service();
    attempt.fail(core::Cause::user_error,
                 fmt::format("{}: {}", start.shell().defined_at(), server.error().message), "");
    return;
  }
  attempt.service_ready((*server)->url());
  (*server)->run(
      [&](const Tensors& inputs) -> Result<Tensors> {
        std::vector<std::pair<Value, Value>> fields;
        for (const auto& [name, tensor] : inputs) fields.emplace_back(Value(name), Value(tensor));
        auto result = vm.predict(Value::map(std::move(fields)));
        if (!result.ok())
          return Error{ErrorKind::task,
                       cut_text(attempt.hidden(result.error().message), kPredictErrorMax)};
        return tensors_by_name(*result, attempt.shown_task());
      },
      [&attempt] { return attempt.stopping(); });
  bool are_checkpoints_done = attempt.close_checkpoints(AttemptOutcome::Kind::stopped);
  vm.end_service();
  if (are_checkpoints_done) attempt.stopped();
}

}  // namespace flow
