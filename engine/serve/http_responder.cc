#include "engine/serve/http_responder.hpp"

#include <fmt/format.h>

#include <new>
#include <utility>

#include "engine/serve/http/gzip.hpp"
#include "engine/serve/oip.hpp"

namespace flow {

namespace {

constexpr uint64_t kInlineBytesMax = 64 * 1024;
constexpr uint64_t kInlineGzipMax = 256;  // compression takes longer than the rest
constexpr size_t kGzipBytesMin = 1024;

class HttpResponder final : public InferResponder {
 public:
  HttpResponder(HttpReply reply, const std::string& accept_encoding)
      : reply_(std::move(reply)),
        is_gzip_accepted_(!accept_encoding.empty() && accepts_gzip(accept_encoding)) {}

  bool is_abandoned() const override { return reply_.is_abandoned(); }
  uint64_t inline_bytes_max() const override {
    return is_gzip_accepted_ ? kInlineGzipMax : kInlineBytesMax;
  }

  Status encode(const std::string& model, const InferRequest& request,
                const Tensors& outputs) override {
    auto printed = print_infer_response(model, request, outputs);
    FLOW_TRY(printed);
    response_.body = std::move(printed->body);
    response_.parts = std::move(printed->parts);
    if (printed->json_bytes > 0) {
      response_.content_type = "application/octet-stream";
      response_.fields =
          fmt::format("Inference-Header-Content-Length: {}\r\n", printed->json_bytes);
    } else if (is_gzip_accepted_ && response_.body.size() >= kGzipBytesMin) {
      compress();
    }
    return {};
  }

  uint64_t response_bytes() const override { return response_.body_bytes(); }
  void send() override { reply_.send(std::move(response_)); }
  void fail(int status, const std::string& message) override {
    bool is_busy = status == 429 || status == 503;
    reply_.send(is_busy ? busy_response(status, message) : error_response(status, message));
  }

 private:
  void compress() {
    try {
      response_.body = gzip(response_.body);
      response_.fields = "Content-Encoding: gzip\r\n";
    } catch (const std::bad_alloc&) {
      // Then it is sent as it is.
    }
  }

  HttpReply reply_;
  const bool is_gzip_accepted_;
  HttpResponse response_;
};

}  // namespace

std::unique_ptr<InferResponder> http_responder(HttpReply reply,
                                               const std::string& accept_encoding) {
  return std::make_unique<HttpResponder>(std::move(reply), accept_encoding);
}

}  // namespace flow
