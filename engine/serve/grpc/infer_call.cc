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

InferCall::InferCall(const InferCallOptions& options, grpc::CallbackServerContext& context,
                     grpc::ByteBuffer& response)
    : options_(options), context_(context), response_(response) {}

grpc::ServerUnaryReactor* InferCall::start(const InferCallOptions& options,
                                           grpc::CallbackServerContext& context,
                                           grpc::ByteBuffer& request, grpc::ByteBuffer& response) {
  auto call = std::make_shared<InferCall>(options, context, response);
  call->self_ = call;
  try {
    call->take(request);
  } catch (const std::bad_alloc&) {
    call->finish({503, "the service has too little memory left for this request"});
  }
  return call.get();
}

void InferCall::take(grpc::ByteBuffer& request) {
  RequestRecord record = record_of(context_, "ModelInfer");
  record.bytes_in = request.Length();
  auto refuse = [&](const CallStatus& status) {
    record.status = status.status;
    options_.backend.count_refused(std::move(record));
    finish(status);
  };
  if (CallStatus key = check_key(options_.backend, context_); key.status != 200) return refuse(key);
  if (CallStatus plain = decompress_message(request, options_.message_max); plain.status != 200)
    return refuse(plain);
  auto message = read_request(request);
  // gRPC would keep it until the call ends.
  request.Clear();
  if (!message.ok()) return refuse({400, message.error().message});
  CallStatus model = check_model(options_.backend, message->model_name(), message->model_version());
  if (model.status != 200) return refuse(model);
  auto taken = take_infer_request(*message);
  if (!taken.ok()) return refuse({400, taken.error().message});
  options_.backend.infer(std::move(*taken),
                         {deadline_of(context_), traceparent_of(context_), std::move(record)},
                         std::make_unique<Responder>(shared_from_this()));
}

void InferCall::send(grpc::ByteBuffer& response) {
  if (is_answered_.exchange(true)) return;
  response_.Swap(&response);
  if (response_.Length() > kTimedBytes) timer_.start(context_, options_.answer_time);
  Finish(grpc::Status::OK);
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
