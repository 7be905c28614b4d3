#include "engine/serve/grpc/infer_call.hpp"

#include <new>
#include <utility>

#include "engine/serve/grpc/infer_messages.hpp"
#include "engine/serve/grpc/message_coding.hpp"

namespace flow {

namespace {

constexpr size_t kTimedBytes = 64 * 1024;  // a smaller answer is not worth a timer

}  // namespace

class InferCall::Responder final : public InferResponder {
 public:
  explicit Responder(std::shared_ptr<InferCall> call) : call_(std::move(call)) {}
  ~Responder() override { fail(500, "the service dropped the request"); }
  bool is_abandoned() const override { return call_->is_cancelled_; }
  // The response shares the memory of the outputs.
  uint64_t inline_bytes_max() const override { return UINT64_MAX; }
  Status encode(const std::string& model, const InferRequest& request,
                const Tensors& outputs) override {
    auto encoded = infer_response(model, request, outputs);
    FLOW_TRY(encoded);
    response_ = std::move(*encoded);
    return {};
  }
  uint64_t response_bytes() const override { return response_.Length(); }
  void send() override { call_->send(response_); }
  void fail(int status, const std::string& message) override { call_->finish({status, message}); }

 private:
  std::shared_ptr<InferCall> call_;
  grpc::ByteBuffer response_;
};

InferCall::InferCall(const InferCallOptions& options, grpc::CallbackServerContext& context)
    : options_(options), context_(context) {}

CallReactor* InferCall::start(const InferCallOptions& options,
                              grpc::CallbackServerContext& context) {
  auto call = std::make_shared<InferCall>(options, context);
  call->self_ = call;
  CallStatus key = check_key(options.backend, options.connections, context);
  if (key.status != 200) {
    call->refuse(record_of(context, "ModelInfer"), key);
  } else {
    call->timer_.start(context, options.message_time);
    call->StartRead(&call->request_);
  }
  return call.get();
}

void InferCall::OnReadDone(bool ok) {
  timer_.stop();
  if (!ok) return finish(no_message());
  try {
    take();
  } catch (const std::bad_alloc&) {
    finish({503, "the service has too little memory left for this request"});
  }
}

void InferCall::take() {
  RequestRecord record = record_of(context_, "ModelInfer");
  record.bytes_in = request_.Length();
  auto refuse = [&](const CallStatus& status) { this->refuse(std::move(record), status); };
  if (CallStatus plain = decompress_message(request_, options_.message_max); plain.status != 200)
    return refuse(plain);
  auto message = read_request(request_);
  request_.Clear();  // it would stay until the call ends
  if (!message.ok()) return refuse({400, message.error().message});
  CallStatus model = check_model(options_.backend, message->model_name(), message->model_version());
  if (model.status != 200) return refuse(model);
  auto taken = take_infer_request(*message);
  if (!taken.ok()) return refuse({400, taken.error().message});
  options_.backend.infer(std::move(*taken),
                         {deadline_of(context_), traceparent_of(context_), std::move(record)},
                         std::make_unique<Responder>(shared_from_this()));
}

void InferCall::refuse(RequestRecord record, const CallStatus& status) {
  record.status = status.status;
  options_.backend.count_refused(std::move(record));
  finish(status);
}

void InferCall::send(grpc::ByteBuffer& response) {
  if (is_answered_.exchange(true)) return;
  response_.Swap(&response);
  if (response_.Length() > kTimedBytes) timer_.start(context_, options_.answer_time);
  StartWriteAndFinish(&response_, {}, grpc::Status::OK);
}

void InferCall::finish(const CallStatus& status) {
  if (!is_answered_.exchange(true)) Finish(grpc_status(status));
}

void InferCall::OnCancel() {
  is_cancelled_ = true;
  finish({499, "the client has left"});
}

void InferCall::OnDone() {
  timer_.stop();
  std::shared_ptr<InferCall> last = std::move(self_);
}

}  // namespace flow
