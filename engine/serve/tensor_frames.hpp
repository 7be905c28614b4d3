// The frames with tensors of engine/protocol/front.proto, without copies of large tensors: those
// that are sent are a list of pieces, those that are received share the memory of their frame. Or
// the elements are in memory that both processes share, and the frame says where.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/serve/inference.hpp"
#include "engine/serve/memory/shared_memory.hpp"
#include "flow/bytes.hpp"
#include "flow/result.hpp"

namespace flow {

constexpr uint64_t kTensorBytesMax = 255u << 20;  // of a message, so that its frame may be sent

/// Pieces that follow each other on the socket.
using FramePieces = std::vector<Bytes>;

/// The bytes that the tensors of a message take in shared memory.
uint64_t memory_bytes(const std::vector<const Tensors*>& parts);

/// FromFront.batch. The parts are joined along the first dimension; they can be (batch_signature),
/// or there is one. With `memory`, which has memory_bytes(), their elements are written there.
FramePieces batch_frame(uint64_t id, const std::vector<const Tensors*>& parts,
                        const std::vector<BatchedRequest>& requests,
                        const std::optional<TensorMemory>& memory = {});
/// ToFront.done. An error of kind user is the client's, any other one the service's. `memory` as in
/// batch_frame(); without outputs neither it nor the parameters are used.
FramePieces outcome_frame(uint64_t id, const Result<Tensors>& outputs,
                          const std::optional<TensorMemory>& memory = {},
                          const ResponseParameters& parameters = {});

/// The whole of the shared memory with this id; null if the message may not refer to it. It is
/// called once per message.
using MemoryLookup = std::function<Bytes(uint64_t id)>;

struct BatchMessage {
  uint64_t id = 0;
  Tensors inputs;
  std::vector<BatchedRequest> requests;  // in the order of their rows
};
struct OutcomeMessage {
  uint64_t id = 0;
  Result<Tensors> outputs;
  ResponseParameters parameters = {};
};

/// The message of a frame, without its length. The tensors share the memory of `frame`, or that of
/// the lookup: without one, none may. Nothing if the frame has another message; the Error
/// (internal) says what is malformed.
Result<std::optional<BatchMessage>> parse_batch(const Bytes& frame,
                                                const MemoryLookup& lookup = {});
Result<std::optional<OutcomeMessage>> parse_outcome(const Bytes& frame,
                                                    const MemoryLookup& lookup = {});

}  // namespace flow
