// The memory that a front shares with one of its replicas, and what it is used for. The front
// creates all of it, on demand: a batch for which none is free goes through the socket, and the
// next one finds more. The replica is not trusted.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/serve/memory/shared_memory.hpp"
#include "flow/bytes.hpp"

namespace flow {

/// Only one thread uses it, but for the end of outputs.
class ReplicaMemory {
 public:
  static constexpr uint64_t kBytesMax = 128u << 20;  // of one memory; more is sent in the frame
  static constexpr size_t kCountMax = 3;             // of each kind

  /// Bytes that the memory of all replicas of a front may still take. Memory that outputs refer to
  /// counts, also after it was replaced or its replica is gone.
  struct Budget {
    const std::shared_ptr<std::atomic<uint64_t>> left =
        std::make_shared<std::atomic<uint64_t>>(512u << 20);
  };
  struct Offer {
    uint64_t id = 0;
    bool is_for_outputs = false;
    uint64_t replaces = 0;  // the id of memory that the replica no longer needs; 0: none
    const SharedMemory& memory;
  };
  struct Callbacks {
    /// Sends memory to the replica, which answers by set_mapped() if it can use it.
    std::function<void(const Offer&)> offer;
    /// The replica may write to this memory for outputs again.
    std::function<void(uint64_t id)> give_back;
    /// Runs the job on the thread that uses this object, later. Any thread calls it.
    std::function<void(std::function<void()>)> post;
    std::function<void(const std::string&)> log;
  };

  /// `budget` outlives it.
  ReplicaMemory(Budget& budget, Callbacks callbacks);
  ~ReplicaMemory();
  ReplicaMemory(const ReplicaMemory&) = delete;
  ReplicaMemory& operator=(const ReplicaMemory&) = delete;

  /// Free memory for the inputs of a batch, which the replica gives back by release_inputs().
  std::optional<TensorMemory> take_inputs(uint64_t bytes);
  /// Outputs of so many bytes came in a frame: offers memory for the next ones.
  void note_outputs(uint64_t bytes);
  /// The whole memory with the outputs of a batch; the replica gets it back when nothing refers to
  /// the bytes any more. The replica can change them at any time. Null if it may not use this id.
  Bytes outputs(uint64_t id);

  // What the replica says. False if that is not its turn.
  bool set_mapped(uint64_t id);
  bool release_inputs(uint64_t id);

 private:
  // retired: it was replaced while outputs in it are used.
  enum class State : uint8_t { offered, free, used, retired };
  struct Segment {
    uint64_t id = 0;
    bool is_for_outputs = false;
    uint64_t replaces = 0;  // what goes when this is mapped
    State state = State::offered;
    std::shared_ptr<SharedMemory> memory;
  };
  struct Returns;
  struct Lease;

  Segment* find(uint64_t id, bool is_for_outputs);
  void grow(uint64_t bytes, bool is_for_outputs);
  void remove(uint64_t id);
  void return_outputs(uint64_t id);

  Budget& budget_;
  const Callbacks callbacks_;
  std::vector<Segment> segments_;  // up to kCountMax + 1 of each kind, and retired ones: see Budget
  uint64_t last_id_ = 0;
  bool is_unavailable_ = false;  // the system gave none
  const std::shared_ptr<Returns> returns_;
};

}  // namespace flow
