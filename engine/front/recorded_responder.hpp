// Adds an answer to the log of requests.
#pragma once
#include <memory>
#include <string>
#include <utility>

#include "engine/serve/http/request_record.hpp"
#include "engine/serve/infer_responder.hpp"

namespace flow {

/// Answers as another responder does. For protocols whose server does not record requests itself.
class RecordedResponder final : public InferResponder {
 public:
  RecordedResponder(std::unique_ptr<InferResponder> responder,
                    std::shared_ptr<RequestRecord> record, RequestLog& log)
      : responder_(std::move(responder)), record_(std::move(record)), log_(log) {}

  bool is_abandoned() const override { return responder_->is_abandoned(); }
  uint64_t inline_bytes_max() const override { return responder_->inline_bytes_max(); }
  Status encode(const std::string& model, const InferRequest& request,
                const Tensors& outputs) override {
    return responder_->encode(model, request, outputs);
  }
  uint64_t response_bytes() const override { return responder_->response_bytes(); }
  void send() override {
    record_->bytes_out = responder_->response_bytes();
    responder_->send();
    add(200);
  }
  void fail(int status, const std::string& message) override {
    responder_->fail(status, message);
    add(status);
  }

 private:
  void add(int status) {
    record_->status = status;
    log_.add(*record_);
  }

  const std::unique_ptr<InferResponder> responder_;
  const std::shared_ptr<RequestRecord> record_;
  RequestLog& log_;
};

}  // namespace flow
