#include "engine/front/front_backend.hpp"

#include "engine/front/recorded_responder.hpp"
#include "engine/serve/model_version.hpp"

namespace flow {

FrontBackend::FrontBackend(EventLoop& loop, const VersionSet& versions, RequestLog& requests,
                           Callbacks callbacks)
    : loop_(loop), versions_(versions), requests_(requests), callbacks_(std::move(callbacks)) {}

std::string FrontBackend::model() const {
  std::lock_guard lock(mutex_);
  return model_;
}

bool FrontBackend::permits(std::string_view authorization) const {
  std::lock_guard lock(mutex_);
  return !model_.empty() && (!keys_ || keys_->permit(authorization));
}

bool FrontBackend::is_ready() const { return ask(Endpoint::ready).status == 200; }

std::string FrontBackend::describe(Endpoint endpoint) const { return ask(endpoint).body; }

// ---- Questions

HttpResponse FrontBackend::ask(Endpoint endpoint) const {
  std::future<HttpResponse> answer;
  {
    std::lock_guard lock(mutex_);
    if (model_.empty() || is_closed_) return {.status = 503, .body = "{}"};
    answer = questions_.emplace_back(Question{endpoint, {}}).answer.get_future();
  }
  loop_.post([this] { answer_all(); });
  return answer.get();
}

void FrontBackend::answer_all() const {
  std::vector<Question> questions;
  {
    std::lock_guard lock(mutex_);
    questions.swap(questions_);
  }
  for (Question& each : questions) each.answer.set_value(callbacks_.describe(each.endpoint));
}

void FrontBackend::close() {
  {
    std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  answer_all();
}

void FrontBackend::set_primary(const VersionSet::Entry& primary) {
  const ServiceOptions& options = primary.version->options();
  std::lock_guard lock(mutex_);
  model_ = options.name;
  keys_ = options.keys.empty() ? std::nullopt : std::optional(primary.keys);
}

// ---- Requests

void FrontBackend::infer(InferRequest request, InferCallInfo call,
                         std::unique_ptr<InferResponder> responder) {
  struct Arrival {
    InferRequest request;
    InferCallInfo call;
    std::unique_ptr<InferResponder> responder;
  };
  auto arrival =
      std::make_shared<Arrival>(Arrival{std::move(request), std::move(call), std::move(responder)});
  loop_.post([this, arrival] {
    std::shared_ptr<RequestRecord> record;
    if (requests_.is_on()) {
      record = std::make_shared<RequestRecord>(std::move(arrival->call.record));
      arrival->responder =
          std::make_unique<RecordedResponder>(std::move(arrival->responder), record, requests_);
    }
    auto found = callbacks_.route(model(), "");
    if (!found.ok()) return arrival->responder->fail(503, "the service is stopping");
    auto& version = static_cast<ModelVersion&>(**found);
    std::optional<Clock::duration> timeout;
    if (arrival->call.deadline) timeout = *arrival->call.deadline - Clock::now();
    auto pending = version.new_request(std::move(arrival->responder), timeout);
    pending->request = std::move(arrival->request);
    pending->traceparent = std::move(arrival->call.traceparent);
    pending->record = std::move(record);
    version.admit(std::move(pending));
    callbacks_.admitted();
  });
}

void FrontBackend::count_refused(RequestRecord record) {
  // As over HTTP, where only requests for the model with a key are counted.
  bool is_counted = record.status != 401 && record.status != 404;
  if (is_counted) {
    loop_.post([this, status = record.status, duration = Clock::now() - record.arrived] {
      if (const VersionSet::Entry* primary = versions_.primary())
        primary->version->count_refused(status, duration);
    });
  }
  note(std::move(record));
}

void FrontBackend::note(RequestRecord record) {
  if (!requests_.is_on()) return;
  loop_.post([this, record = std::move(record)] { requests_.add(record); });
}

}  // namespace flow
