// The memory that a front shares with this process, a replica: one kind for the inputs of batches,
// which the front writes, and one for their outputs. The front decides how much there is.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/serve/memory/shared_memory.hpp"
#include "flow/bytes.hpp"

namespace flow {

/// Not thread-safe. Tensors in it may outlive it.
class FrontMemory {
 public:
  /// Inputs of fewer bytes are copied for `predict`: that takes less time than to find out that
  /// nothing refers to them any more.
  static constexpr uint64_t kLentBytesMin = 4u << 20;
  /// So many inputs may be held by tensors until reclaim() frees them.
  static constexpr size_t kHeldMax = 2;

  /// Memory of `size` bytes that the front has sent. Owns `descriptor`, which is negative if none
  /// came: then the front is on another machine. `replaces` is the id of memory that is not used
  /// any more, or 0.
  Status add(uint64_t id, uint64_t size, bool is_for_outputs, uint64_t replaces, int descriptor);
  void clear();

  /// The whole memory with the inputs of a batch; the last holder may write to it. Null if there is
  /// no such memory, or the front has not got it back.
  Bytes inputs(uint64_t id);
  /// Inputs that no tensor refers to any more: the front gets them back.
  std::vector<uint64_t> take_released();
  /// Whether tensors, or what is left of them until a collection, hold more than they may.
  bool is_held() const;
  /// After a collection: the inputs that no tensor refers to, and those that one does, which keeps
  /// a copy.
  std::vector<uint64_t> reclaim();

  /// Memory for the outputs of a batch: the front has it until return_outputs(). Nothing if none is
  /// large enough and free.
  std::optional<TensorMemory> take_outputs(uint64_t bytes);
  /// False if the front did not have it.
  bool return_outputs(uint64_t id);

 private:
  struct Segment {
    uint64_t id = 0;
    bool is_for_outputs = false;
    bool is_used = false;  // inputs: by a batch or by tensors; outputs: the front has them
    std::shared_ptr<SharedMemory> memory;
  };

  static constexpr size_t kSegmentsMax = 16;

  Segment* find(uint64_t id, bool is_for_outputs);

  std::vector<Segment> segments_;  // up to kSegmentsMax
};

}  // namespace flow
