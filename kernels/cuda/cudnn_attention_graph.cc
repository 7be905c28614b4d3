#include "kernels/cuda/cudnn_attention_graph.hpp"

#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "kernels/cuda/attention.hpp"

namespace flow::cuda::dnn {
namespace {

constexpr int64_t kAlignment = 16;
constexpr int64_t kMost = std::numeric_limits<int>::max();
constexpr int64_t kConfigsMax = 16;

using Sizes = std::array<int64_t, 4>;

Sizes dense_strides(const Sizes& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
}
Sizes swapped(const Sizes& sizes) { return {sizes[0], sizes[1], sizes[3], sizes[2]}; }

// The stride of a dimension of size 1 does not matter: equal operands have equal numbers.
bool put_strides(const View& view, int64_t (&to)[3]) {
  if (!has_aligned_rows(view) || overlaps_itself(view)) return false;
  int64_t last = 0, below = view.shape[3];
  for (int dim = 2; dim >= 0; dim--) {
    if (view.shape[dim] > 1 && view.strides[dim] <= 0) return false;
    to[dim] = view.shape[dim] > 1 ? view.strides[dim] : below;
    below = to[dim] * view.shape[dim];
    last += (view.shape[dim] - 1) * to[dim];
  }
  return last + view.shape[3] <= kMost;
}

}  // namespace

bool numbers_of(const AttentionCall& call, AttentionNumbers& numbers) {
  const View* operands[kOperands] = {call.q,    call.k,  call.v,  call.out,
                                     call.grad, call.dq, call.dk, call.dv};
  AttentionNumbers n;
  n.is_backward = call.grad != nullptr;
  DType dtype = call.q->dtype;
  if (dtype != DType::f16 && dtype != DType::bf16) return false;
  n.type = dtype == DType::f16 ? kHalf : kBfloat16;
  n.batches = call.q->shape[0], n.heads = call.q->shape[1], n.groups = call.k->shape[1];
  n.queries = call.q->shape[2], n.keys = call.k->shape[2], n.width = call.q->shape[3];
  n.causal = call.options.causal;
  if (n.batches < 1 || n.groups < 1 || n.heads < 1 || n.heads % n.groups != 0) return false;
  if (n.queries < 1 || n.queries % kAttentionStep != 0 || n.keys < 1 ||
      n.keys % kAttentionStep != 0)
    return false;
  if (n.width < kTensorPiece || n.width > kAttentionWidthMax || n.width % kTensorPiece != 0)
    return false;
  if (n.causal && n.queries > n.keys) return false;  // the first queries see no key
  if (n.rows() > kMost) return false;
  for (int i = 0; i < (n.is_backward ? kOperands : kOfGrad); i++)
    if (operands[i]->dtype != dtype || !put_strides(*operands[i], n.strides[i])) return false;
  numbers = n;
  return true;
}

bool supports(const AttentionNumbers& n, size_t version, int capability) {
  if (version < kAttentionVersionMin || capability < 80) return false;
  if (!n.is_backward) return true;
  // Later GPUs give the same bits only with settings that are not in the heuristics' results.
  if (capability >= 100) return false;
  // cudnn-frontend rejects them itself.
  if (capability < 90 && n.width > 128) return false;
  // Until 9.15.0 the gradients are wrong beyond the last whole 128 keys.
  return version > 91500 || n.keys % 128 == 0;
}

// Writes tensors and operations into a plan's descriptors. After an error it does nothing.
class GraphWriter {
 public:
  using Tensor = CudnnDescriptor;
  enum class Place { memory, between, value };

  explicit GraphWriter(AttentionPlan& plan) : plan_(plan) {}

  Tensor in_memory(int64_t id, int type, const Sizes& sizes, const Sizes& strides) {
    return tensor(id, type, sizes, strides, Place::memory);
  }
  Tensor between(int type, const Sizes& sizes, const Sizes& strides) {
    return tensor(next_++, type, sizes, strides, Place::between);
  }
  Tensor between(int type, const Sizes& sizes) {
    return between(type, sizes, dense_strides(sizes));
  }
  Tensor value(int64_t id, int type) {
    return tensor(id, type, {1, 1, 1, 1}, {1, 1, 1, 1}, Place::value);
  }

  Tensor pointwise(Pointwise mode, std::initializer_list<Tensor> inputs, Tensor y,
                   int compute = kFloat, int64_t axis = -1) {
    CudnnDescriptor how = make(DescriptorKind::pointwise);
    set(how, Attribute::pointwise_mode, AttributeType::pointwise_mode, mode);
    set(how, Attribute::pointwise_compute, AttributeType::data_type, compute);
    if (axis >= 0) set(how, Attribute::pointwise_axis, AttributeType::int64, axis);
    finish(how);
    CudnnDescriptor operation = make(DescriptorKind::pointwise_operation);
    set(operation, Attribute::pointwise_descriptor, AttributeType::descriptor, how);
    constexpr Attribute kInputs[] = {Attribute::pointwise_x, Attribute::pointwise_b,
                                     Attribute::pointwise_t};
    const Attribute* input = kInputs;
    for (Tensor each : inputs) set(operation, *input++, AttributeType::descriptor, each);
    set(operation, Attribute::pointwise_y, AttributeType::descriptor, y);
    return add(operation, y);
  }
  Tensor reduce(int reduction, Tensor x, Tensor y) {
    CudnnDescriptor how = make(DescriptorKind::reduction);
    set(how, Attribute::reduction_compute, AttributeType::data_type, kFloat);
    set(how, Attribute::reduction_operator, AttributeType::reduction_operator, reduction);
    finish(how);
    CudnnDescriptor operation = make(DescriptorKind::reduction_operation);
    set(operation, Attribute::reduction_descriptor, AttributeType::descriptor, how);
    set(operation, Attribute::reduction_x, AttributeType::descriptor, x);
    set(operation, Attribute::reduction_y, AttributeType::descriptor, y);
    return add(operation, y);
  }
  Tensor product(Tensor a, Tensor b, Tensor c) {
    CudnnDescriptor how = make(DescriptorKind::product);
    set(how, Attribute::product_compute, AttributeType::data_type, kFloat);
    finish(how);
    CudnnDescriptor operation = make(DescriptorKind::product_operation);
    set(operation, Attribute::product_a, AttributeType::descriptor, a);
    set(operation, Attribute::product_b, AttributeType::descriptor, b);
    set(operation, Attribute::product_c, AttributeType::descriptor, c);
    set(operation, Attribute::product_descriptor, AttributeType::descriptor, how);
    return add(operation, c);
  }
  /// The same elements in another order, as the strides of `y` say.
  Tensor reshape(Tensor x, Tensor y) {
    CudnnDescriptor operation = make(DescriptorKind::reshape_operation);
    set(operation, Attribute::reshape_x, AttributeType::descriptor, x);
    set(operation, Attribute::reshape_y, AttributeType::descriptor, y);
    return add(operation, y);
  }
  /// The status of the first call that failed, or kSuccess.
  int graph(CudnnHandle handle, CudnnDescriptor& graph) {
    graph = make(DescriptorKind::graph);
    if (handle) set(graph, Attribute::graph_handle, AttributeType::handle, handle);
    set(graph, Attribute::graph_operations, AttributeType::descriptor, operations_.data(),
        operations_.size());
    finish(graph);
    return status_;
  }

 private:
  Tensor tensor(int64_t id, int type, const Sizes& sizes, const Sizes& strides, Place place) {
    Tensor tensor = make(DescriptorKind::tensor);
    set(tensor, Attribute::tensor_type, AttributeType::data_type, type);
    set(tensor, Attribute::tensor_dimensions, AttributeType::int64, sizes.data(), sizes.size());
    set(tensor, Attribute::tensor_strides, AttributeType::int64, strides.data(), strides.size());
    set(tensor, Attribute::tensor_id, AttributeType::int64, id);
    set(tensor, Attribute::tensor_alignment, AttributeType::int64, kAlignment);
    set(tensor, Attribute::tensor_is_virtual, AttributeType::boolean, place == Place::between);
    set(tensor, Attribute::tensor_is_by_value, AttributeType::boolean, place == Place::value);
    finish(tensor);
    return tensor;
  }
  Tensor add(CudnnDescriptor operation, Tensor result) {
    finish(operation);
    operations_.push_back(operation);
    return result;
  }
  CudnnDescriptor make(DescriptorKind kind) {
    CudnnDescriptor made = nullptr;
    if (status_ == kSuccess) status_ = plan_.keep(kind, made);
    return made;
  }
  template <typename T>
  void set(CudnnDescriptor of, Attribute name, AttributeType type, const T* values, size_t count) {
    if (status_ == kSuccess)
      status_ =
          plan_.calls_.BackendSetAttribute(of, name, type, static_cast<int64_t>(count), values);
  }
  template <typename T>
  void set(CudnnDescriptor of, Attribute name, AttributeType type, const T& value) {
    set(of, name, type, &value, 1);
  }
  void finish(CudnnDescriptor each) {
    if (status_ == kSuccess) status_ = plan_.calls_.BackendFinalize(each);
  }

  AttentionPlan& plan_;
  int status_ = kSuccess;
  std::vector<CudnnDescriptor> operations_;
  int64_t next_ = kIdFirstFree;
};

namespace {

// The parts of the graph. The operations, their order and their types are those of NVIDIA's
// cudnn-frontend (scaled_dot_product_flash_attention.h): cuDNN recognizes this pattern.
class AttentionWriter {
 public:
  using Tensor = GraphWriter::Tensor;

  AttentionWriter(GraphWriter& graph, const AttentionNumbers& numbers)
      : g(graph),
        n(numbers),
        of_queries{n.batches, n.heads, n.queries, n.width},
        of_keys{n.batches, n.groups, n.keys, n.width},
        of_scores{n.batches, n.heads, n.queries, n.keys},
        of_rows{n.batches, n.heads, n.queries, 1} {}

  void write_forward() {
    Tensor scale = g.value(kIdScale, kFloat);
    Tensor v = operand(kIdV, kOfV, of_keys);
    Tensor scores = masked(scaled_scores(scale));
    Tensor stats = rows(kIdStats);
    Tensor largest = g.reduce(kReduceMax, scores, g.between(kFloat, of_rows));
    Tensor below =
        g.pointwise(Pointwise::subtract, {scores, largest}, g.between(kFloat, of_scores));
    Tensor shares = g.pointwise(Pointwise::exponential, {below}, g.between(kFloat, of_scores));
    Tensor total = g.reduce(kReduceAdd, shares, g.between(kFloat, of_rows));
    Tensor logarithm = g.pointwise(Pointwise::logarithm, {total}, g.between(kFloat, of_rows));
    g.pointwise(Pointwise::add, {largest, logarithm}, stats);
    Tensor weights = g.pointwise(Pointwise::divide, {shares, total}, g.between(n.type, of_scores));
    g.product(weights, v, operand(kIdOut, kOfOut, of_queries));
  }

  void write_backward() {
    Tensor scale = g.value(kIdScale, kFloat);
    Tensor grad = operand(kIdGrad, kOfGrad, of_queries);
    Tensor delta = write_delta(grad);
    Tensor scores = scaled_scores(scale);
    Tensor below =
        g.pointwise(Pointwise::subtract, {scores, rows(kIdStats)}, g.between(kFloat, of_scores));
    Tensor weights =
        g.pointwise(Pointwise::exponential, {masked(below)}, g.between(kFloat, of_scores));
    write_of_keys(turned(weights), grad, kIdDv, kOfDv);
    Tensor products = g.product(grad, turned_operand(kIdV, kOfV), g.between(kFloat, of_scores));
    Tensor centered =
        g.pointwise(Pointwise::subtract, {products, delta}, g.between(kFloat, of_scores));
    Tensor slopes =
        g.pointwise(Pointwise::multiply, {centered, weights}, g.between(kFloat, of_scores));
    Tensor score_grads =
        g.pointwise(Pointwise::multiply, {slopes, scale}, g.between(kFloat, of_scores));
    write_of_keys(turned(score_grads), q_, kIdDk, kOfDk);
    // A sum in memory before dq (the "dQ accumulator") would be added to by all blocks at once: in
    // another order each time. Without it cuDNN stores the gradients of the scores.
    Tensor keys = g.reshape(k_, g.between(kFloat, of_keys, strides_of(kOfK)));
    g.product(score_grads, keys, operand(kIdDq, kOfDq, of_queries));
  }

 private:
  Sizes strides_of(int operand) const {
    const int64_t(&s)[3] = n.strides[operand];
    return {s[0], s[1], s[2], 1};
  }
  Tensor operand(TensorId id, int which, const Sizes& sizes) {
    return g.in_memory(id, n.type, sizes, strides_of(which));
  }
  Tensor turned_operand(TensorId id, int which) {
    return g.in_memory(id, n.type, swapped(of_keys), swapped(strides_of(which)));
  }
  Tensor rows(TensorId id) { return g.in_memory(id, kFloat, of_rows, dense_strides(of_rows)); }

  Tensor scaled_scores(Tensor scale) {
    k_ = turned_operand(kIdK, kOfK);
    q_ = operand(kIdQ, kOfQ, of_queries);
    Tensor scores = g.product(q_, k_, g.between(kFloat, of_scores));
    return g.pointwise(Pointwise::multiply, {scores, scale}, g.between(kFloat, of_scores));
  }
  // The last query sees all keys: query i sees keys up to i + keys - queries.
  Tensor masked(Tensor scores) {
    if (!n.causal) return scores;
    auto number = [&] { return g.between(kInt32, of_scores); };
    Tensor row = g.pointwise(Pointwise::index, {scores}, number(), kFloat, 2);
    Tensor column = g.pointwise(Pointwise::index, {scores}, number(), kFloat, 3);
    if (n.keys != n.queries) {
      row = g.pointwise(Pointwise::add, {row, g.value(kIdKeys, kInt32)}, number(), kInt32);
      row = g.pointwise(Pointwise::subtract, {row, g.value(kIdQueries, kInt32)}, number(), kInt32);
    }
    Tensor is_seen = g.pointwise(Pointwise::greater_or_equal, {row, column},
                                 g.between(kBoolean, of_scores), kBoolean);
    return g.pointwise(Pointwise::select, {scores, g.value(kIdMasked, kFloat), is_seen},
                       g.between(kFloat, of_scores));
  }
  // The sums over the width of grad * out.
  Tensor write_delta(Tensor grad) {
    Tensor out = operand(kIdOut, kOfOut, of_queries);
    Sizes strides = dense_strides(of_queries);
    strides[2] = n.heads * n.width;  // as in cudnn-frontend; there is no memory behind it
    Tensor products =
        g.pointwise(Pointwise::multiply, {grad, out}, g.between(kFloat, of_queries, strides));
    Tensor sums = g.reduce(kReduceAdd, products, g.between(kFloat, of_rows));
    return g.pointwise(Pointwise::multiply, {sums, g.value(kIdOne, kFloat)}, rows(kIdDelta));
  }
  // [b, h, s, t], rounded to the operands' type.
  Tensor turned(Tensor scores) {
    Sizes sizes = swapped(of_scores), strides = swapped(dense_strides(of_scores));
    return g.reshape(scores, g.between(n.type, sizes, strides));
  }
  // The sum over the queries, and over the heads of a group.
  void write_of_keys(Tensor weights, Tensor of_query, TensorId id, int which) {
    Tensor result = operand(id, which, of_keys);
    if (n.heads == n.groups) {
      g.product(weights, of_query, result);
      return;
    }
    Sizes of_all_heads{n.batches, n.heads, n.keys, n.width};
    g.reduce(kReduceAdd, g.product(weights, of_query, g.between(n.type, of_all_heads)), result);
  }

  GraphWriter& g;
  const AttentionNumbers& n;
  const Sizes of_queries, of_keys, of_scores, of_rows;
  Tensor q_ = nullptr, k_ = nullptr;
};

}  // namespace

AttentionPlan::~AttentionPlan() {
  for (auto each = descriptors_.rbegin(); each != descriptors_.rend(); ++each)
    calls_.BackendDestroyDescriptor(*each);
}

int AttentionPlan::keep(DescriptorKind kind, CudnnDescriptor& made) {
  int status = calls_.BackendCreateDescriptor(kind, &made);
  if (status == kSuccess) descriptors_.push_back(made);
  return status;
}

int AttentionPlan::write_graph(CudnnHandle handle, CudnnDescriptor& graph) {
  GraphWriter writer(*this);
  AttentionWriter attention(writer, numbers_);
  if (numbers_.is_backward)
    attention.write_backward();
  else
    attention.write_forward();
  return writer.graph(handle, graph);
}

bool AttentionPlan::gives_same_bits(CudnnDescriptor config) {
  CudnnDescriptor engine = nullptr;
  int64_t count = 0;
  if (keep(DescriptorKind::engine, engine) != kSuccess ||
      calls_.BackendGetAttribute(config, Attribute::config_engine, AttributeType::descriptor, 1,
                                 &count, &engine) != kSuccess)
    return false;
  int notes[kNotesMax] = {};
  if (calls_.BackendGetAttribute(engine, Attribute::engine_notes, AttributeType::numerical_note,
                                 kNotesMax, &count, notes) != kSuccess)
    return false;
  for (int64_t i = 0; i < count; i++)
    if (notes[i] == kNoteNondeterministic) return false;
  return true;
}

int AttentionPlan::try_config(CudnnHandle handle, CudnnDescriptor device, CudnnDescriptor config,
                              size_t workspace_max) {
  if (!gives_same_bits(config)) return kNotSupported;
  CudnnDescriptor plan = nullptr;
  int status = keep(DescriptorKind::plan, plan);
  auto set = [&](Attribute name, AttributeType type, CudnnDescriptor value) {
    if (status == kSuccess) status = calls_.BackendSetAttribute(plan, name, type, 1, &value);
  };
  set(Attribute::plan_config, AttributeType::descriptor, config);
  if (handle) set(Attribute::plan_handle, AttributeType::handle, handle);
  if (device) set(Attribute::plan_device, AttributeType::descriptor, device);
  if (status == kSuccess) status = calls_.BackendFinalize(plan);
  int64_t bytes = 0, count = 0;
  if (status == kSuccess)
    status = calls_.BackendGetAttribute(plan, Attribute::plan_workspace, AttributeType::int64, 1,
                                        &count, &bytes);
  if (status != kSuccess) return status;
  if (bytes < 0 || static_cast<size_t>(bytes) > workspace_max) return kNotSupported;
  plan_ = plan;
  workspace_ = static_cast<size_t>(bytes);
  return kSuccess;
}

int AttentionPlan::configs_of(CudnnDescriptor graph, CudnnDescriptor device,
                              std::vector<CudnnDescriptor>& configs) {
  CudnnDescriptor heuristics = nullptr;
  int status = keep(DescriptorKind::heuristics, heuristics);
  auto set = [&](Attribute name, AttributeType type, const void* value) {
    if (status == kSuccess) status = calls_.BackendSetAttribute(heuristics, name, type, 1, value);
  };
  auto results = [&](int64_t room, int64_t& count, void* to) {
    if (status == kSuccess)
      status = calls_.BackendGetAttribute(heuristics, Attribute::heuristics_results,
                                          AttributeType::descriptor, room, &count, to);
  };
  set(Attribute::heuristics_graph, AttributeType::descriptor, &graph);
  set(Attribute::heuristics_mode, AttributeType::heuristics_mode, &kHeuristicsA);
  if (device) set(Attribute::heuristics_device, AttributeType::descriptor, &device);
  if (status == kSuccess) status = calls_.BackendFinalize(heuristics);
  int64_t offers = 0, count = 0;
  results(0, offers, nullptr);
  for (int64_t i = 0; status == kSuccess && i < offers && i < kConfigsMax; i++) {
    configs.push_back(nullptr);
    status = keep(DescriptorKind::engine_config, configs.back());
  }
  if (!configs.empty()) results(static_cast<int64_t>(configs.size()), count, configs.data());
  configs.resize(static_cast<size_t>(count));
  return status;
}

int AttentionPlan::make(CudnnHandle handle, CudnnDescriptor device, size_t workspace_max) {
  CudnnDescriptor graph = nullptr;
  std::vector<CudnnDescriptor> configs;
  if (int status = write_graph(handle, graph)) return status;
  if (int status = configs_of(graph, device, configs)) return status;
  for (CudnnDescriptor config : configs) {
    // After a failure that may pass, the next one would be another plan than in other processes.
    int status = try_config(handle, device, config, workspace_max);
    if (!is_refusal(status)) return status;
  }
  return kNotSupported;
}

int AttentionPlan::run(CudnnHandle handle, const AttentionMemory& memory) const {
  float scale = memory.scale, masked = -INFINITY, one = 1;
  auto keys = static_cast<int32_t>(numbers_.keys), queries = static_cast<int32_t>(numbers_.queries);
  std::vector<int64_t> ids;
  std::vector<void*> pointers;
  auto pass = [&](TensorId id, void* pointer) {
    ids.push_back(id);
    pointers.push_back(pointer);
  };
  constexpr TensorId kIds[kOperands] = {kIdQ, kIdK, kIdV, kIdOut, kIdGrad, kIdDq, kIdDk, kIdDv};
  for (int i = 0; i < (numbers_.is_backward ? kOperands : kOfGrad); i++)
    pass(kIds[i], memory.operands[i]);
  pass(kIdStats, memory.stats);
  pass(kIdScale, &scale);
  if (numbers_.is_backward) {
    pass(kIdDelta, memory.delta);
    pass(kIdOne, &one);
  }
  if (numbers_.causal) pass(kIdMasked, &masked);
  if (numbers_.causal && numbers_.keys != numbers_.queries) {
    pass(kIdKeys, &keys);
    pass(kIdQueries, &queries);
  }
  CudnnDescriptor pack = nullptr;
  int status = calls_.BackendCreateDescriptor(DescriptorKind::variant_pack, &pack);
  if (status != kSuccess) return status;
  auto set = [&](Attribute name, AttributeType type, size_t count, const void* values) {
    if (status == kSuccess)
      status = calls_.BackendSetAttribute(pack, name, type, static_cast<int64_t>(count), values);
  };
  set(Attribute::pack_ids, AttributeType::int64, ids.size(), ids.data());
  set(Attribute::pack_pointers, AttributeType::pointer, pointers.size(), pointers.data());
  set(Attribute::pack_workspace, AttributeType::pointer, 1, &memory.workspace);
  if (status == kSuccess) status = calls_.BackendFinalize(pack);
  if (status == kSuccess) status = calls_.BackendExecute(handle, plan_, pack);
  calls_.BackendDestroyDescriptor(pack);
  return status;
}

}  // namespace flow::cuda::dnn
