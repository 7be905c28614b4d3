#include "kernels/tensor/capture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "kernels/cuda/device.hpp"
#include "kernels/tensor/ops.hpp"

namespace flow::tensors {
namespace {

constexpr size_t kBlock = 512;                        // sizes of memory are multiples of it
constexpr size_t kSegmentMin = size_t{2} << 20;       // bytes that are allocated at once
constexpr size_t kSegmentGrowth = size_t{256} << 20;  // at most, beyond what is needed

size_t rounded_up(size_t bytes, size_t multiple) {
  return (std::max<size_t>(bytes, 1) + multiple - 1) / multiple * multiple;
}

void check(const Device& device, const Status& status) {
  if (!status.ok())
    throw TensorError(fmt::format("{} failed: {}", text_of(device), status.error().message));
}

}  // namespace

// ---- GraphMemory

static void collect_garbage() {
  if (runtime().budget != nullptr) runtime().budget->collect();
}

GraphMemory::GraphMemory(const Device& device)
    : device_(device), stream_(stream_of(device).native) {
  Result<void*> made = cuda::new_stream();
  if (!made.ok()) check(device, made.error());
  side_stream_ = *made;
}

GraphMemory::~GraphMemory() {
  if (side_stream_ != nullptr) {
    (void)cuda::wait_for(side_stream_);  // for allocations only
    (void)cuda::free_stream(side_stream_);
  }
  for (auto [data, size] : segments_) release_device_memory(device_, stream_, data, size);
}

// The smallest that is large enough.
char* GraphMemory::take_free(size_t bytes) {
  std::lock_guard lock(mutex_);
  auto best = free_.end();
  for (auto each = free_.begin(); each != free_.end(); ++each)
    if (each->second >= bytes && (best == free_.end() || each->second < best->second)) best = each;
  if (best == free_.end()) return nullptr;
  auto [data, size] = *best;
  free_.erase(best);
  if (size > bytes) free_[data + bytes] = size - bytes;
  taken_[data] = bytes;
  return data;
}

char* GraphMemory::take(size_t bytes) {
  bytes = rounded_up(bytes, kBlock);
  if (char* data = take_free(bytes)) return data;
  size_t wanted = rounded_up(std::max(bytes, std::min(all_ / 4, kSegmentGrowth)), kSegmentMin);
  Result<char*> segment = add_segment(wanted);
  if (!segment.ok()) {
    collect_garbage();  // which may be of this graph
    if (char* data = take_free(bytes)) return data;
    segment = add_segment(bytes);
  }
  if (!segment.ok()) throw_full(bytes, segment.error());
  {
    std::lock_guard lock(mutex_);
    add_free(*segment, segments_[*segment]);
  }
  return take_free(bytes);
}

char* GraphMemory::take_apart(size_t bytes) {
  bytes = rounded_up(bytes, kBlock);
  Result<char*> segment = add_segment(bytes);
  if (!segment.ok()) {
    collect_garbage();
    segment = add_segment(bytes);
  }
  if (!segment.ok()) throw_full(bytes, segment.error());
  std::lock_guard lock(mutex_);
  taken_[*segment] = bytes;
  return *segment;
}

Result<char*> GraphMemory::add_segment(size_t bytes) {
  Result<char*> made = allocate_on_stream(device_, bytes, side_stream_);
  if (!made.ok()) return made;
  std::lock_guard lock(mutex_);
  segments_[*made] = bytes;
  all_ += bytes;
  return made;
}

void GraphMemory::throw_full(size_t bytes, const Error& error) {
  was_full_ = true;
  throw_out_of_memory(device_, bytes, error.message);
}

// Joins it with its neighbors of the same segment.
void GraphMemory::add_free(char* at, size_t size) {
  auto next = free_.lower_bound(at);
  if (next != free_.end() && at + size == next->first && !segments_.contains(next->first)) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin() && !segments_.contains(at)) {
    auto before = std::prev(next);
    if (before->first + before->second == at) {
      before->second += size;
      return;
    }
  }
  free_[at] = size;
}

void GraphMemory::give(char* data) noexcept {
  std::lock_guard lock(mutex_);
  auto found = taken_.find(data);
  if (!is_open_ || found == taken_.end()) return;
  add_free(found->first, found->second);
  taken_.erase(found);
}

bool GraphMemory::holds(const void* data) {
  auto* at = static_cast<char*>(const_cast<void*>(data));
  std::lock_guard lock(mutex_);
  auto next = segments_.upper_bound(at);
  if (next == segments_.begin()) return false;
  auto segment = std::prev(next);
  return at < segment->first + segment->second;
}

void GraphMemory::close() {
  {
    std::lock_guard lock(mutex_);
    is_open_ = false;
  }
  Result<void*> event = cuda::new_event();
  if (!event.ok()) check(device_, event.error());
  Status ordered = cuda::record_event(*event, side_stream_);
  if (ordered.ok()) ordered = cuda::follow_event(*event, stream_);
  (void)cuda::free_event(*event);
  check(device_, ordered);
  check(device_, cuda::free_stream(std::exchange(side_stream_, nullptr)));
}

// ---- GraphWords

size_t GraphWords::take(size_t count) {
  if (blocks_.empty() || blocks_.back().used + count > blocks_.back().size) {
    size_t size = std::max(count, kBlockWords);
    blocks_.push_back({values_.size(), 0, size, memory_.take_apart(size * sizeof(uint64_t))});
  }
  blocks_.back().used += count;
  size_t first = values_.size();
  values_.resize(first + count);
  counts_[first] = count;
  return first;
}

bool GraphWords::has_taken(size_t first, size_t count) const {
  auto found = counts_.find(first);
  return found != counts_.end() && found->second == count;
}

char* GraphWords::address(size_t word) const {
  for (const Block& block : blocks_)
    if (word < block.first + block.used)
      return block.address + (word - block.first) * sizeof(uint64_t);
  return nullptr;
}

void GraphWords::set(size_t word, double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  set(word, bits);
}

void GraphWords::upload(const Device& device) const {
  for (const Block& block : blocks_)
    move_bytes({}, values_.data() + block.first, device, block.address,
               block.used * sizeof(uint64_t));
}

// ---- Graph

Graph::~Graph() {
  if (native_ == nullptr) return;
  // Their memory is the graph's.
  for (const Rounded& each : rounded_)
    if (each.weight->rounded && memory_->holds(each.weight->rounded->storage->data()))
      each.weight->rounded = {};
  if (Capture* running = runtime().capture)
    running->free_later(native_);
  else
    (void)cuda::free_graph(native_);
}

bool Graph::fits() const {
  if (stream_of(device_).native != stream_) return false;
  return std::all_of(leaves_.begin(), leaves_.end(), [](const Leaf& leaf) {
    return !leaf.is_needed || leaf.body->gradient == leaf.before;
  });
}

// The weights may have been changed by other operations since.
void Graph::refresh_rounded() {
  for (const Rounded& each : rounded_) {
    if (!each.needed) continue;
    Body& weight = *each.weight;
    bool is_there = weight.rounded && weight.rounded->storage == each.needed.storage() &&
                    weight.rounded_version == weight.storage->version;
    if (is_there) continue;
    View rows = kernels::narrow(each.needed.view(), 0, 0, weight.view.shape[0]);
    copy_in_place(Tensor(rows, each.needed.storage()), Tensor(weight.view, weight.storage));
  }
}

void Graph::follow_writes() {
  for (const RefPtr<Storage>& each : written_) each->version++;
  for (const Leaf& leaf : leaves_) leaf.body->gradient = leaf.after;
  for (const Rounded& each : rounded_) {
    Body& weight = *each.weight;
    weight.rounded = each.is_current ? each.after : RefPtr<Body>();
    weight.rounded_version = weight.storage->version;
  }
}

void Graph::launch() {
  NoRecord off;
  refresh_rounded();
  words_->upload(device_);
  check(device_, cuda::launch_graph(native_, stream_of(device_).native));
  follow_writes();
}

// ---- Capture

Capture::Capture(const Device& device) : device_(device) {
  Stream& stream = stream_of(device);
  memory_ = std::make_shared<GraphMemory>(device);
  words_ = std::make_unique<GraphWords>(*memory_);
  check(device, begin_recording(device));
  scratch_ = std::exchange(stream.scratch, {});
  watch_storages(*this);
  runtime().capture = this;
}

// Everything but the recording itself.
void Capture::stop() {
  is_over_ = true;
  unwatch_storages(*this);
  runtime().capture = nullptr;
  recorded_stream(device_).scratch = scratch_;
}

Capture::~Capture() {
  if (is_over_) return;
  stop();
  if (Result<void*> graph = end_recording(device_); graph.ok()) (void)cuda::free_graph(*graph);
  put_back();
  for (void* each : ended_graphs_) (void)cuda::free_graph(each);
}

// What the operations changed on the host, as none of them has run.
void Capture::put_back() {
  for (auto& [body, leaf] : leaves_) body->gradient = leaf.before;
  for (auto& [weight, each] : rounded_)
    if (weight->rounded && memory_->holds(weight->rounded->storage->data())) weight->rounded = {};
}

std::unique_ptr<Graph> Capture::end() {
  void* stream = stream_of(device_).native;
  std::unique_ptr<Graph> graph(new Graph);
  keep_externals(*graph);
  for (auto& [body, leaf] : leaves_)
    graph->leaves_.push_back(
        {leaf.body, leaf.is_needed ? leaf.before : RefPtr<Body>(), body->gradient, leaf.is_needed});
  for (auto& [weight, each] : rounded_) {
    Graph::Rounded rounded{each.weight, {}, weight->rounded, false};
    if (each.needed != nullptr) rounded.needed = Tensor(each.view, each.needed->kept);
    rounded.is_current = weight->rounded && weight->rounded_version == weight->storage->version;
    graph->rounded_.push_back(std::move(rounded));
  }
  stop();
  Result<void*> native = end_recording(device_);
  for (void* each : ended_graphs_) (void)cuda::free_graph(each);
  if (!native.ok()) {
    put_back();
    check(device_, native.error());
  }
  graph->native_ = *native;
  graph->device_ = device_;
  graph->stream_ = stream;
  graph->memory_ = memory_;
  graph->words_ = std::move(words_);
  try {
    memory_->close();
    for (const auto& [to, bytes] : constants_)
      move_bytes({}, bytes.data(), device_, to, bytes.size());
  } catch (...) {
    put_back();
    throw;
  }
  return graph;
}

void Capture::keep_externals(Graph& graph) {
  std::unique_lock lock(mutex_);
  for (auto& [data, external] : externals_) {
    if (!external.is_used) continue;
    bool is_held = false;
    while (!external.kept && !(is_held = external.storage->try_hold())) {
      lock.unlock();  // another thread drops it, and is about to call ending()
      std::this_thread::yield();
      lock.lock();
    }
    if (is_held) {
      external.kept = RefPtr<Storage>(external.storage);
      external.storage->drop();
    }
    graph.kept_.push_back(external.kept);
    if (external.is_written) graph.written_.push_back(external.kept);
  }
}

void Capture::found(Storage& storage) {
  if (!(storage.device() == device_) || storage.bytes() == 0) return;
  std::lock_guard lock(mutex_);
  externals_[storage.data()].storage = &storage;
}

void Capture::ending(Storage& storage) {
  std::lock_guard lock(mutex_);
  auto found = externals_.find(storage.data());
  if (found == externals_.end() || found->second.storage != &storage) return;
  External& external = found->second;
  if (!external.is_used) {
    externals_.erase(found);
    return;
  }
  external.kept = Storage::take_over(storage);
  external.storage = external.kept.get();
}

Capture::External* Capture::external_at(const void* data) {
  auto* at = static_cast<const char*>(data);
  auto next = externals_.upper_bound(at);
  if (next == externals_.begin()) return nullptr;
  auto before = std::prev(next);
  return at < before->first + before->second.storage->bytes() ? &before->second : nullptr;
}

void Capture::use(const void* data) {
  std::lock_guard lock(mutex_);
  if (External* external = external_at(data)) external->is_used = true;
}

void Capture::write(const Storage& storage) {
  std::lock_guard lock(mutex_);
  External* external = external_at(storage.data());
  if (external != nullptr) external->is_used = external->is_written = true;
}

void Capture::touch_gradient(Body& leaf, bool is_needed) {
  if (made_.contains(&leaf)) return;
  leaves_.try_emplace(&leaf, Graph::Leaf{RefPtr<Body>(&leaf), leaf.gradient, {}, is_needed});
}

void Capture::touch_rounded(Body& weight, bool is_read) {
  auto [place, is_new] = rounded_.try_emplace(&weight);
  if (!is_new) return;
  Rounded& rounded = place->second;
  rounded.weight = RefPtr<Body>(&weight);
  if (!is_read || !weight.rounded) return;
  std::lock_guard lock(mutex_);
  rounded.needed = external_at(weight.rounded->storage->data());
  if (rounded.needed == nullptr) return;
  rounded.needed->is_used = true;
  rounded.view = weight.rounded->view;
}

void Capture::add_constant(char* to, const char* from, size_t bytes) {
  char* kept = memory_->take_apart(bytes);  // `to` may be reused by what follows
  constants_.emplace_back(kept, std::vector<char>(from, from + bytes));
  check(device_, cuda::copy_on_device(to, kept, bytes, stream_of(device_).native));
}

void check_not_captured(const char* what) {
  if (runtime().capture != nullptr)
    throw CaptureError(fmt::format("flow.graph cannot record {}", what));
}

void note_use(const View& operand) { runtime().capture->use(operand.data); }

}  // namespace flow::tensors
