// How an inference request is answered, apart from the protocol that it arrived by.
#pragma once
#include <cstdint>
#include <string>

#include "engine/serve/inference.hpp"
#include "flow/result.hpp"

namespace flow {

/// Answers one request, once. Only the thread of the front's loop uses it, but for encode().
class InferResponder {
 public:
  virtual ~InferResponder() = default;
  /// Whether the client is gone, so that nothing reads the answer.
  virtual bool is_abandoned() const = 0;
  /// Outputs of more bytes are encoded on a thread of their own.
  virtual uint64_t inline_bytes_max() const = 0;
  /// Encodes the response; on any thread, and never twice. An Error of kind user is the client's
  /// fault, any other the service's; fail() is called then.
  virtual Status encode(const std::string& model, const InferRequest& request,
                        const Tensors& outputs) = 0;
  /// Of what encode() has made.
  virtual uint64_t response_bytes() const { return 0; }
  /// Sends what encode() has made.
  virtual void send() = 0;
  /// Sends an error instead. `status` is that of HTTP; with 429 and 503 the client should try
  /// again.
  virtual void fail(int status, const std::string& message) = 0;
};

}  // namespace flow
