#include "engine/serve/grpc/infer_stream.hpp"

#include <new>
#include <utility>
#include <variant>

#include "engine/serve/grpc/call_rules.hpp"
#include "engine/serve/grpc/infer_messages.hpp"
#include "engine/serve/grpc/message_coding.hpp"

namespace flow {

class InferStream::Responder final : public InferResponder {
 public:
  Responder(std::shared_ptr<InferStream> stream, std::string model, std::string id)
      : stream_(std::move(stream)), model_(std::move(model)), id_(std::move(id)) {}
  ~Responder() override { fail(500, "the service dropped the request"); }
  bool is_abandoned() const override { return stream_->is_cancelled(); }
  // The response shares the memory of the outputs.
  uint64_t inline_bytes_max() const override { return UINT64_MAX; }
  Status encode(const std::string& model, const InferRequest& request,
                const Tensors& outputs) override {
    auto encoded = stream_response(model, request, outputs);
    FLOW_TRY(encoded);
    response_ = std::move(*encoded);
    return {};
  }
  uint64_t response_bytes() const override { return response_.Length(); }
  void send() override {
    if (!std::exchange(is_answered_, true)) stream_->send(std::move(response_));
  }
  void fail(int, const std::string& message) override {
    if (!std::exchange(is_answered_, true)) stream_->send(stream_error(model_, id_, message));
  }

 private:
  std::shared_ptr<InferStream> stream_;
  std::string model_, id_;
  grpc::ByteBuffer response_;
  bool is_answered_ = false;
};

InferStream::InferStream(const InferCallOptions& options, grpc::CallbackServerContext& context)
    : options_(options), context_(context) {}

CallReactor* InferStream::start(const InferCallOptions& options,
                                grpc::CallbackServerContext& context) {
  auto stream = std::make_shared<InferStream>(options, context);
  stream->self_ = stream;
  CallStatus key = check_key(options.backend, options.connections, context);
  if (key.status != 200) stream->note(key);
  std::lock_guard lock(stream->mutex_);
  if (key.status != 200) stream->refuse(key);
  stream->advance();
  return stream.get();
}

/// Begins what can begin: the next read, the next write, or the end of the call.
void InferStream::advance() {
  if (is_finished_) return;
  if (!is_writing_ && !responses_.empty()) {
    out_ = std::move(responses_.front());
    responses_.pop_front();
    is_writing_ = true;
    timer_.start(context_, options_.answer_time);
    StartWrite(&out_);
  }
  if (!is_reading_ && !is_at_end_ && !is_cancelled_ && open_ < kRequestsMax) {
    is_reading_ = true;
    StartRead(&in_);
  }
  if (is_writing_ || !(is_cancelled_ || (is_at_end_ && open_ == 0))) return;
  is_finished_ = true;
  Finish(is_cancelled_ ? grpc::Status::CANCELLED : refusal_);
}

void InferStream::cancel() {
  is_cancelled_ = true;
  responses_.clear();
  advance();
}

void InferStream::OnReadDone(bool ok) {
  // A stream may last for days: its key may not be one of the service any more.
  CallStatus key;
  if (ok) key = check_key(options_.backend, options_.connections, context_);
  const bool is_taken = ok && key.status == 200;
  if (is_taken) {
    {
      std::lock_guard lock(mutex_);
      open_++;
    }
    take();
  }
  if (key.status != 200) note(key);
  std::lock_guard lock(mutex_);
  is_reading_ = false;
  is_at_end_ = !is_taken;
  if (key.status != 200) refuse(key);
  advance();
}

void InferStream::note(const CallStatus& refusal) const {
  RequestRecord record = record_of(context_, "ModelStreamInfer");
  record.status = refusal.status;
  options_.backend.note(std::move(record));
}

/// The stream ends with this status, once the requests that it has taken are answered.
void InferStream::refuse(const CallStatus& refusal) {
  refusal_ = grpc_status(refusal);
  is_at_end_ = true;
}

void InferStream::OnWriteDone(bool ok) {
  timer_.stop();
  std::lock_guard lock(mutex_);
  is_writing_ = false;
  open_--;
  out_.Clear();
  if (!ok) return cancel();
  advance();
}

void InferStream::OnCancel() {
  std::lock_guard lock(mutex_);
  cancel();
}

void InferStream::OnDone() {
  timer_.stop();
  std::shared_ptr<InferStream> last = std::move(self_);
}

void InferStream::take() {
  RequestRecord record = record_of(context_, "ModelStreamInfer");
  record.bytes_in = in_.Length();
  std::string model, id;
  auto read = [&]() -> std::variant<InferRequest, CallStatus> {
    CallStatus plain = decompress_message(in_, options_.message_max);
    if (plain.status != 200) return plain;
    auto message = read_request(in_);
    in_.Clear();
    if (!message.ok()) return CallStatus{400, message.error().message};
    model = message->model_name();
    id = message->id();
    CallStatus known = check_model(options_.backend, model, message->model_version());
    if (known.status != 200) return known;
    auto taken = take_infer_request(*message);
    if (!taken.ok()) return CallStatus{400, taken.error().message};
    return std::move(*taken);
  };
  std::variant<InferRequest, CallStatus> request;
  try {
    request = read();
  } catch (const std::bad_alloc&) {
    request = CallStatus{503, "the service has too little memory left for this request"};
  }
  if (auto* valid = std::get_if<InferRequest>(&request))
    return options_.backend.infer(
        std::move(*valid), {deadline_of(context_), traceparent_of(context_), std::move(record)},
        std::make_unique<Responder>(shared_from_this(), model, id));
  const auto& refusal = std::get<CallStatus>(request);
  record.status = refusal.status;
  options_.backend.count_refused(std::move(record));
  send(stream_error(model, id, refusal.message));
}

void InferStream::send(grpc::ByteBuffer answer) {
  std::lock_guard lock(mutex_);
  if (is_cancelled_) return;
  responses_.push_back(std::move(answer));
  advance();
}

bool InferStream::is_cancelled() const {
  std::lock_guard lock(mutex_);
  return is_cancelled_;
}

}  // namespace flow
