// CUDA graphs: the operations of a function are recorded instead of run, and later launched
// together, which costs the host as much as one of them.
//
// A launch repeats kernels with their operands' addresses and numbers. So the memory that the
// function creates is the graph's, the graph keeps the memory that it reads, and numbers that
// differ between launches are words in the GPU's memory. What operations change on the host, such
// as the gradients of leaves and the versions of tensors, launch() changes in the same way.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernels/tensor/tensor.hpp"

namespace flow::tensors {

/// An operation that cannot be recorded.
class CaptureError : public TensorError {
 public:
  using TensorError::TensorError;
};

/// Memory for the tensors that a recording creates. While it runs, memory that it gives back is
/// reused: all work is on one stream. Any thread may give memory back.
class GraphMemory {
 public:
  explicit GraphMemory(const Device& device);
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  /// Throws a TensorError if the GPU is full.
  char* take(size_t bytes);
  /// As take(), of memory that no operation has used or will use: for what is written before a
  /// launch.
  char* take_apart(size_t bytes);
  void give(char* data) noexcept;
  /// Whether take() found the GPU full.
  bool was_full() const { return was_full_; }
  bool holds(const void* data);
  /// Nothing is reused from here on. Later work on the thread's stream may use the memory.
  void close();

 private:
  char* take_free(size_t bytes);
  Result<char*> add_segment(size_t bytes);
  [[noreturn]] void throw_full(size_t bytes, const Error& error);
  void add_free(char* at, size_t size);

  const Device device_;
  void* const stream_;           // the thread's, in whose order the memory is released
  void* side_stream_ = nullptr;  // on which it is allocated: the other one records
  std::mutex mutex_;
  bool is_open_ = true, was_full_ = false;
  size_t all_ = 0;
  std::map<char*, size_t> segments_, free_, taken_;
};

/// Numbers that kernels of a graph read from the GPU's memory. The host sets them before a launch.
class GraphWords {
 public:
  explicit GraphWords(GraphMemory& memory) : memory_(memory) {}
  /// The number of the first of `count` words, which are adjacent.
  size_t take(size_t count);
  /// Whether take(count) returned `first`.
  bool has_taken(size_t first, size_t count) const;
  char* address(size_t word) const;
  void set(size_t word, uint64_t value) { values_.at(word) = value; }
  void set(size_t word, double value);
  /// Copies all to the GPU, in the order of the thread's stream.
  void upload(const Device& device) const;

 private:
  static constexpr size_t kBlockWords = 4096;  // at least
  struct Block {
    size_t first, used, size;
    char* address;
  };
  GraphMemory& memory_;
  std::vector<Block> blocks_;
  std::vector<uint64_t> values_;
  std::map<size_t, size_t> counts_;  // by first word
};

/// What was recorded. Used by the thread that recorded it.
class Graph {
 public:
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Whether a launch does what the function would do now: the gradients that it used without
  /// clearing them first are the same tensors as then.
  bool fits() const;
  GraphWords& words() { return *words_; }
  void launch();

 private:
  friend class Capture;
  Graph() = default;
  void refresh_rounded();
  void follow_writes();

  struct Leaf {
    RefPtr<Body> body, before, after;  // its gradients before and after the function
    bool is_needed = false;            // the function used the one before
  };
  struct Rounded {
    RefPtr<Body> weight;
    Tensor needed;  // the copy that the function read, if it existed before
    RefPtr<Body> after;
    bool is_current = false;  // `after`, at the end of the function
  };

  Device device_;
  void* stream_ = nullptr;
  void* native_ = nullptr;
  std::shared_ptr<GraphMemory> memory_;
  std::unique_ptr<GraphWords> words_;
  std::vector<RefPtr<Storage>> kept_, written_;
  std::vector<Leaf> leaves_;
  std::vector<Rounded> rounded_;
};

/// Records the calling thread's operations on one GPU while it lives.
class Capture : private StorageWatcher {
 public:
  explicit Capture(const Device& device);
  /// Unless end() was called, discards the recording and restores the gradients of leaves.
  ~Capture() override;
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  const Device& device() const { return device_; }
  const std::shared_ptr<GraphMemory>& memory() const { return memory_; }
  GraphWords& words() { return *words_; }
  /// Throws a TensorError if something could not be recorded.
  std::unique_ptr<Graph> end();

  // ---- called by operations

  /// Each body that the thread makes.
  void note_body(const Body& body) { made_.insert(&body); }
  void use(const void* data);
  void write(const Storage& storage);
  /// Before `leaf`'s gradient is used, or replaced if not `is_needed`. Does nothing for a leaf that
  /// the function made: its next call would make another.
  void touch_gradient(Body& leaf, bool is_needed);
  /// Before `weight.rounded` is used; `is_read`: its content is.
  void touch_rounded(Body& weight, bool is_read);
  /// Records a copy from the host, whose bytes are those of now in each launch.
  void add_constant(char* to, const char* from, size_t bytes);
  void free_later(void* graph) { ended_graphs_.push_back(graph); }

 private:
  // Memory that existed before.
  struct External {
    Storage* storage = nullptr;
    RefPtr<Storage> kept;  // if it has ended since
    bool is_used = false, is_written = false;
  };
  struct Rounded {
    RefPtr<Body> weight;
    External* needed = nullptr;
    View view;
  };

  void found(Storage& storage) override;
  void ending(Storage& storage) override;
  External* external_at(const void* data);
  void stop();
  void put_back();
  void keep_externals(Graph& graph);

  const Device device_;
  bool is_over_ = false;
  kernels::Scratch scratch_;  // the thread's, as a graph needs one of its own
  std::shared_ptr<GraphMemory> memory_;
  std::unique_ptr<GraphWords> words_;
  std::mutex mutex_;  // guards externals_
  std::map<const char*, External> externals_;
  std::unordered_set<const Body*> made_;  // no body that existed before is at such an address
  std::unordered_map<Body*, Graph::Leaf> leaves_;
  std::unordered_map<Body*, Rounded> rounded_;
  std::vector<std::pair<char*, std::vector<char>>> constants_;
  std::vector<void*> ended_graphs_;
};

/// While it lives, what the calling thread copies from the host does not depend on data: a
/// recording takes it as a constant.
class ConstantCopies {
 public:
  ConstantCopies() : before_(std::exchange(runtime().copies_are_constant, true)) {}
  ~ConstantCopies() { runtime().copies_are_constant = before_; }
  ConstantCopies(const ConstantCopies&) = delete;
  ConstantCopies& operator=(const ConstantCopies&) = delete;

 private:
  bool before_;
};

/// Throws a CaptureError if the thread records: `what` and what to do instead.
void check_not_captured(const char* what);

}  // namespace flow::tensors
