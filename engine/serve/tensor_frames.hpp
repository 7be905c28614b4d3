// The frames with tensors of engine/protocol/front.proto, without copies of large tensors: those
// that are sent are a list of pieces, those that are received share the memory of their frame.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/serve/inference.hpp"
#include "flow/bytes.hpp"
#include "flow/result.hpp"

namespace flow {

constexpr uint64_t kTensorBytesMax = 255u << 20;  // of a message, so that its frame may be sent

/// Pieces that follow each other on the socket.
using FramePieces = std::vector<Bytes>;

/// FromFront.batch. The parts are joined along the first dimension; they can be (batch_signature),
/// or there is one.
FramePieces batch_frame(uint64_t id, const std::vector<const Tensors*>& parts);
/// ToFront.done. An error of kind user is the client's, any other one the service's.
FramePieces outcome_frame(uint64_t id, const Result<Tensors>& outputs);

struct BatchMessage {
  uint64_t id = 0;
  Tensors inputs;
};
struct OutcomeMessage {
  uint64_t id = 0;
  Result<Tensors> outputs;
};

/// The message of a frame, without its length. `frame` owns the memory that the tensors share.
/// Nothing if the frame has another message; the Error (internal) says what is malformed.
Result<std::optional<BatchMessage>> parse_batch(const Bytes& frame);
Result<std::optional<OutcomeMessage>> parse_outcome(const Bytes& frame);

}  // namespace flow
