// The fake cuDNN's graphs of operations: checks each descriptor when it is finished, and runs a
// plan by interpreting its graph in host memory. Numbers are computed in double and rounded to the
// type of the tensor that they are stored in, also between two operations.
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kernels/cuda/cudnn_attention_graph.hpp"
#include "kernels/shared/types.hpp"
#include "tests/kernels/cudnn/fake_cudnn.hpp"

using namespace flow::kernels;
using namespace flow::cuda::dnn;

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" flow::FakeCudnn fake_cudnn;
bool is_fake_handle(void* pointer);

namespace {

using Kind = DescriptorKind;
constexpr int kBadParameter = 2000;
constexpr uint64_t kAlive = 0x6772617068;

int complain(const char* what) {
  if (fake_cudnn.complaint == nullptr) fake_cudnn.complaint = what;
  return kBadParameter;
}

struct Value {
  AttributeType type;
  int64_t count;
  std::vector<char> bytes;
};

struct Node {
  uint64_t mark = kAlive;
  Kind kind;
  bool is_finished = false;
  int engine = -1;  // of a config or an engine
  Node* graph = nullptr;
  std::map<Attribute, Value> values;

  bool has(Attribute name) const { return values.contains(name); }
  template <typename T>
  std::vector<T> all(Attribute name) const {
    auto found = values.find(name);
    if (found == values.end()) return {};
    std::vector<T> to(found->second.bytes.size() / sizeof(T));
    std::memcpy(to.data(), found->second.bytes.data(), found->second.bytes.size());
    return to;
  }
  template <typename T>
  T one(Attribute name) const {
    T to{};
    auto found = values.find(name);
    if (found != values.end()) std::memcpy(&to, found->second.bytes.data(), sizeof to);
    return to;
  }
  Node* node(Attribute name) const { return one<Node*>(name); }
};

Node* node_of(void* pointer) {
  auto* node = static_cast<Node*>(pointer);
  if (node == nullptr || node->mark != kAlive) {
    complain("no descriptor of a graph");
    return nullptr;
  }
  return node;
}

size_t size_of(AttributeType type) {
  switch (type) {
    case AttributeType::boolean:
    case AttributeType::characters:
      return 1;
    case AttributeType::int64:
    case AttributeType::handle:
    case AttributeType::pointer:
    case AttributeType::descriptor:
      return 8;
    default:
      return 4;
  }
}

struct Rule {
  Kind of;
  Attribute name;
  AttributeType type;
  Kind descriptor = Kind::tensor;  // that the attribute is
};
using A = Attribute;
using T = AttributeType;
constexpr Rule kRules[] = {
    {Kind::pointwise, A::pointwise_mode, T::pointwise_mode},
    {Kind::pointwise, A::pointwise_compute, T::data_type},
    {Kind::pointwise, A::pointwise_axis, T::int64},
    {Kind::heuristics, A::heuristics_mode, T::heuristics_mode},
    {Kind::heuristics, A::heuristics_graph, T::descriptor, Kind::graph},
    {Kind::plan, A::plan_handle, T::handle},
    {Kind::plan, A::plan_config, T::descriptor, Kind::engine_config},
    {Kind::pointwise_operation, A::pointwise_descriptor, T::descriptor, Kind::pointwise},
    {Kind::pointwise_operation, A::pointwise_x, T::descriptor},
    {Kind::pointwise_operation, A::pointwise_b, T::descriptor},
    {Kind::pointwise_operation, A::pointwise_y, T::descriptor},
    {Kind::pointwise_operation, A::pointwise_t, T::descriptor},
    {Kind::graph, A::graph_handle, T::handle},
    {Kind::graph, A::graph_operations, T::descriptor},
    {Kind::tensor, A::tensor_alignment, T::int64},
    {Kind::tensor, A::tensor_type, T::data_type},
    {Kind::tensor, A::tensor_dimensions, T::int64},
    {Kind::tensor, A::tensor_strides, T::int64},
    {Kind::tensor, A::tensor_id, T::int64},
    {Kind::tensor, A::tensor_is_virtual, T::boolean},
    {Kind::tensor, A::tensor_is_by_value, T::boolean},
    {Kind::variant_pack, A::pack_ids, T::int64},
    {Kind::variant_pack, A::pack_pointers, T::pointer},
    {Kind::variant_pack, A::pack_workspace, T::pointer},
    {Kind::product, A::product_compute, T::data_type},
    {Kind::product_operation, A::product_a, T::descriptor},
    {Kind::product_operation, A::product_b, T::descriptor},
    {Kind::product_operation, A::product_c, T::descriptor},
    {Kind::product_operation, A::product_descriptor, T::descriptor, Kind::product},
    {Kind::reduction, A::reduction_operator, T::reduction_operator},
    {Kind::reduction, A::reduction_compute, T::data_type},
    {Kind::reduction_operation, A::reduction_x, T::descriptor},
    {Kind::reduction_operation, A::reduction_y, T::descriptor},
    {Kind::reduction_operation, A::reduction_descriptor, T::descriptor, Kind::reduction},
    {Kind::reshape_operation, A::reshape_x, T::descriptor},
    {Kind::reshape_operation, A::reshape_y, T::descriptor},
};

bool is_operation(Kind kind) {
  return kind == Kind::pointwise_operation || kind == Kind::product_operation ||
         kind == Kind::reduction_operation || kind == Kind::reshape_operation;
}

const Rule* rule_of(Kind kind, Attribute name, AttributeType type) {
  for (const Rule& rule : kRules)
    if (rule.of == kind && rule.name == name) return rule.type == type ? &rule : nullptr;
  return nullptr;
}

// ---- tensors

struct Tensor {
  int64_t id = 0, sizes[4] = {}, strides[4] = {};
  int type = 0;
  bool is_between = false, is_value = false;

  int64_t count() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
};

Tensor tensor_of(const Node& node) {
  Tensor t;
  auto sizes = node.all<int64_t>(A::tensor_dimensions);
  auto strides = node.all<int64_t>(A::tensor_strides);
  for (size_t i = 0; i < 4 && i < sizes.size() && i < strides.size(); i++)
    t.sizes[i] = sizes[i], t.strides[i] = strides[i];
  t.id = node.one<int64_t>(A::tensor_id);
  t.type = node.one<int>(A::tensor_type);
  t.is_between = node.one<bool>(A::tensor_is_virtual);
  t.is_value = node.one<bool>(A::tensor_is_by_value);
  return t;
}

// Each size is the result's, or 1.
bool broadcasts(const Tensor& from, const Tensor& to) {
  for (int i = 0; i < 4; i++)
    if (from.sizes[i] != to.sizes[i] && from.sizes[i] != 1) return false;
  return true;
}

int check_tensor(const Node& node) {
  for (A name :
       {A::tensor_alignment, A::tensor_type, A::tensor_dimensions, A::tensor_strides, A::tensor_id})
    if (!node.has(name)) return complain("a tensor without numbers");
  Tensor t = tensor_of(node);
  if (node.all<int64_t>(A::tensor_dimensions).size() != 4 ||
      node.all<int64_t>(A::tensor_strides).size() != 4)
    return complain("a tensor of attention has four dimensions");
  if (node.one<int64_t>(A::tensor_alignment) != 16) return complain("the alignment of a tensor");
  for (int i = 0; i < 4; i++)
    if (t.sizes[i] < 1 || t.strides[i] < 1) return complain("a size or stride below 1");
  if (t.is_between && t.is_value) return complain("a tensor in two places");
  if (t.is_value && t.count() != 1) return complain("a value of several numbers");
  return 0;
}

int check_product(const Node& node) {
  for (A name : {A::product_a, A::product_b, A::product_c, A::product_descriptor})
    if (!node.has(name)) return complain("a product without an operand");
  Tensor a = tensor_of(*node.node(A::product_a)), b = tensor_of(*node.node(A::product_b)),
         c = tensor_of(*node.node(A::product_c));
  if (a.sizes[0] != b.sizes[0] || a.sizes[0] != c.sizes[0] || a.sizes[1] % b.sizes[1] != 0 ||
      a.sizes[1] != c.sizes[1])
    return complain("the batches of a product");
  if (a.sizes[3] != b.sizes[2] || a.sizes[2] != c.sizes[2] || b.sizes[3] != c.sizes[3])
    return complain("the sizes of a product");
  if (node.node(A::product_descriptor)->one<int>(A::product_compute) != kFloat)
    return complain("the type that a product is computed in");
  return 0;
}

int check_pointwise(const Node& node) {
  if (!node.has(A::pointwise_descriptor) || !node.has(A::pointwise_x) || !node.has(A::pointwise_y))
    return complain("an operation without an operand");
  auto mode = node.node(A::pointwise_descriptor)->one<Pointwise>(A::pointwise_mode);
  int compute = node.node(A::pointwise_descriptor)->one<int>(A::pointwise_compute);
  bool is_single =
      mode == Pointwise::exponential || mode == Pointwise::logarithm || mode == Pointwise::index;
  if (node.has(A::pointwise_b) == is_single ||
      node.has(A::pointwise_t) != (mode == Pointwise::select))
    return complain("the number of operands");
  if ((mode == Pointwise::index) != node.node(A::pointwise_descriptor)->has(A::pointwise_axis))
    return complain("an axis");
  Tensor y = tensor_of(*node.node(A::pointwise_y));
  for (A name : {A::pointwise_x, A::pointwise_b, A::pointwise_t})
    if (node.has(name) && !broadcasts(tensor_of(*node.node(name)), y))
      return complain("an operand of another size");
  bool is_comparison = mode == Pointwise::greater_or_equal;
  if (is_comparison != (y.type == kBoolean) || is_comparison != (compute == kBoolean))
    return complain("a comparison of another type");
  return 0;
}

int check_reduction(const Node& node) {
  if (!node.has(A::reduction_descriptor) || !node.has(A::reduction_x) || !node.has(A::reduction_y))
    return complain("a reduction without an operand");
  Tensor x = tensor_of(*node.node(A::reduction_x)), y = tensor_of(*node.node(A::reduction_y));
  for (int i = 0; i < 4; i++)
    if (x.sizes[i] % y.sizes[i] != 0 || (i != 1 && x.sizes[i] != y.sizes[i] && y.sizes[i] != 1))
      return complain("the sizes of a reduction");
  return 0;
}

// Only a transposition of the last two dimensions.
int check_reshape(const Node& node) {
  if (!node.has(A::reshape_x) || !node.has(A::reshape_y))
    return complain("a reshape without an operand");
  Tensor x = tensor_of(*node.node(A::reshape_x)), y = tensor_of(*node.node(A::reshape_y));
  for (int i = 0; i < 4; i++) {
    int from = i < 2 ? i : 5 - i;
    if (y.sizes[i] != x.sizes[from] || y.strides[i] != x.strides[from])
      return complain("a reshape that is no transposition");
  }
  return 0;
}

std::vector<Node*> operands_of(const Node& operation, Node*& result) {
  std::vector<Node*> from;
  auto add = [&](A name) {
    if (operation.has(name)) from.push_back(operation.node(name));
  };
  switch (operation.kind) {
    case Kind::pointwise_operation:
      add(A::pointwise_x), add(A::pointwise_b), add(A::pointwise_t);
      result = operation.node(A::pointwise_y);
      break;
    case Kind::product_operation:
      add(A::product_a), add(A::product_b);
      result = operation.node(A::product_c);
      break;
    case Kind::reduction_operation:
      add(A::reduction_x);
      result = operation.node(A::reduction_y);
      break;
    default:
      add(A::reshape_x);
      result = operation.node(A::reshape_y);
  }
  return from;
}

std::string name_of(const Node& operation) {
  switch (operation.kind) {
    case Kind::product_operation:
      return "product";
    case Kind::reshape_operation:
      return "turn";
    case Kind::reduction_operation:
      return operation.node(A::reduction_descriptor)->one<int>(A::reduction_operator) == kReduceMax
                 ? "largest"
                 : "sum";
    default:
      break;
  }
  switch (operation.node(A::pointwise_descriptor)->one<Pointwise>(A::pointwise_mode)) {
    case Pointwise::add:
      return "+";
    case Pointwise::multiply:
      return "*";
    case Pointwise::divide:
      return "/";
    case Pointwise::subtract:
      return "-";
    case Pointwise::exponential:
      return "exp";
    case Pointwise::logarithm:
      return "log";
    case Pointwise::greater_or_equal:
      return ">=";
    case Pointwise::index:
      return "index";
    case Pointwise::select:
      return "select";
  }
  return "?";
}

// Each tensor is one descriptor, and one between two operations is written before it is read.
int check_graph(const Node& node) {
  auto operations = node.all<Node*>(A::graph_operations);
  if (operations.empty()) return complain("a graph without operations");
  std::map<int64_t, Node*> known;
  std::map<int64_t, bool> written;
  std::string names;
  for (Node* operation : operations) {
    if (!is_operation(operation->kind)) return complain("no operation");
    names += (names.empty() ? "" : " ") + name_of(*operation);
    Node* result = nullptr;
    std::vector<Node*> all = operands_of(*operation, result);
    for (Node* each : all) {
      Tensor t = tensor_of(*each);
      if (t.is_between && !written[t.id]) return complain("a tensor that nothing writes");
    }
    Tensor t = tensor_of(*result);
    if (written[t.id] || t.is_value) return complain("a tensor that is written twice");
    written[t.id] = true;
    all.push_back(result);
    for (Node* each : all) {
      Node*& before = known[tensor_of(*each).id];
      if (before && before != each) return complain("two tensors with one id");
      before = each;
    }
  }
  std::strncpy(fake_cudnn.graph, names.c_str(), sizeof fake_cudnn.graph - 1);
  return 0;
}

int check_pack(const Node& node) {
  if (!node.has(A::pack_ids) || !node.has(A::pack_pointers) || !node.has(A::pack_workspace) ||
      node.all<int64_t>(A::pack_ids).size() != node.all<void*>(A::pack_pointers).size())
    return complain("an incomplete pack");
  return 0;
}

// The first engine's bits vary, the second one refuses the graph.
constexpr int kEngines = 3;

int check_plan(Node& node) {
  if (!node.has(A::plan_handle) || !node.has(A::plan_config)) return complain("an incomplete plan");
  Node* config = node.node(A::plan_config);
  if (config->engine == 1) return fake_cudnn.second_plan_status;
  node.engine = config->engine;
  node.graph = config->graph;
  if (fake_cudnn.plan_status != 0) return fake_cudnn.plan_status;
  fake_cudnn.plans++;
  return 0;
}

// ---- running

class Runner {
 public:
  Runner(const Node& pack) {
    auto ids = pack.all<int64_t>(A::pack_ids);
    auto pointers = pack.all<char*>(A::pack_pointers);
    for (size_t i = 0; i < ids.size(); i++) pointers_[ids[i]] = pointers[i];
  }
  int run(const Node& graph) {
    for (Node* operation : graph.all<Node*>(A::graph_operations)) {
      Node* result = nullptr;
      std::vector<Node*> operands = operands_of(*operation, result);
      for (Node* each : operands)
        if (int status = load(tensor_of(*each))) return status;
      Tensor to = tensor_of(*result);
      std::vector<double>& values = values_[to.id];
      values.assign(static_cast<size_t>(to.count()), 0);
      compute(*operation, operands, to, values);
      for (double& each : values) each = rounded(to.type, each);
      if (!to.is_between)
        if (int status = store(to)) return status;
    }
    return 0;
  }

 private:
  static double rounded(int type, double value) {
    switch (type) {
      case kHalf:
        return convert<double>(convert<Half>(static_cast<float>(value)));
      case kBfloat16:
        return convert<double>(convert<Brain>(static_cast<float>(value)));
      case kFloat:
        return static_cast<double>(static_cast<float>(value));
      default:
        return value;
    }
  }
  template <typename F>
  static void for_elements(const Tensor& t, F f) {
    size_t at = 0;
    for (int64_t a = 0; a < t.sizes[0]; a++)
      for (int64_t b = 0; b < t.sizes[1]; b++)
        for (int64_t c = 0; c < t.sizes[2]; c++)
          for (int64_t d = 0; d < t.sizes[3]; d++) {
            int64_t index[] = {a, b, c, d};
            f(at++, index);
          }
  }
  static int64_t offset(const Tensor& t, const int64_t (&index)[4]) {
    int64_t at = 0;
    for (int i = 0; i < 4; i++) at += index[i] * t.strides[i];
    return at;
  }
  int pointer_of(const Tensor& t, char*& pointer) {
    auto found = pointers_.find(t.id);
    if (found == pointers_.end() || found->second == nullptr)
      return complain("a tensor without memory");
    pointer = found->second;
    if (!t.is_value && reinterpret_cast<uintptr_t>(pointer) % 16 != 0)
      return complain("an address that is no multiple of 16");
    return 0;
  }
  int load(const Tensor& t) {
    if (values_.contains(t.id)) return 0;
    char* from = nullptr;
    if (int status = pointer_of(t, from)) return status;
    auto& values = values_[t.id];
    values.resize(static_cast<size_t>(t.count()));
    for_elements(t, [&](size_t at, const int64_t(&index)[4]) {
      int64_t place = offset(t, index);
      switch (t.type) {
        case kHalf:
          values[at] = convert<double>(reinterpret_cast<Half*>(from)[place]);
          break;
        case kBfloat16:
          values[at] = convert<double>(reinterpret_cast<Brain*>(from)[place]);
          break;
        case kInt32:
          values[at] = reinterpret_cast<int32_t*>(from)[place];
          break;
        default:
          values[at] = static_cast<double>(reinterpret_cast<float*>(from)[place]);
      }
      if (t.id == kIdScale) values[at] *= fake_cudnn.scale_factor;
    });
    return 0;
  }
  int store(const Tensor& t) {
    char* to = nullptr;
    if (int status = pointer_of(t, to)) return status;
    const std::vector<double>& values = values_[t.id];
    double more = fake_cudnn.varies ? 1 + 0.01 * static_cast<double>(fake_cudnn.graphs) : 1;
    for_elements(t, [&](size_t at, const int64_t(&index)[4]) {
      int64_t place = offset(t, index);
      double value = values[at] * fake_cudnn.factor * more;
      if (t.id == kIdDv && index[2] >= t.sizes[2] - fake_cudnn.zero_rows) value = 0;
      if (fake_cudnn.varies_in_sign && std::fabs(value) < 1e-3)
        value = fake_cudnn.graphs % 2 == 0 ? 0.0 : -0.0;
      if (t.type == kFloat)
        reinterpret_cast<float*>(to)[place] = static_cast<float>(values[at]);
      else if (t.type == kHalf)
        reinterpret_cast<Half*>(to)[place] = convert<Half>(static_cast<float>(value));
      else
        reinterpret_cast<Brain*>(to)[place] = convert<Brain>(static_cast<float>(value));
    });
    return 0;
  }

  double value_at(const Tensor& t, const int64_t (&index)[4]) {
    size_t at = 0;
    for (int i = 0; i < 4; i++)
      at = at * static_cast<size_t>(t.sizes[i]) +
           static_cast<size_t>(t.sizes[i] == 1 ? 0 : index[i]);
    return values_[t.id][at];
  }

  void compute(const Node& operation, const std::vector<Node*>& operands, const Tensor& to,
               std::vector<double>& values) {
    switch (operation.kind) {
      case Kind::pointwise_operation:
        return compute_pointwise(*operation.node(A::pointwise_descriptor), operands, to, values);
      case Kind::product_operation:
        return compute_product(tensor_of(*operands[0]), tensor_of(*operands[1]), to, values);
      case Kind::reduction_operation: {
        bool is_largest =
            operation.node(A::reduction_descriptor)->one<int>(A::reduction_operator) == kReduceMax;
        return compute_reduction(is_largest, tensor_of(*operands[0]), to, values);
      }
      default: {
        Tensor x = tensor_of(*operands[0]);
        for_elements(to, [&](size_t at, const int64_t(&index)[4]) {
          values[at] = value_at(x, {index[0], index[1], index[3], index[2]});
        });
      }
    }
  }
  void compute_pointwise(const Node& how, const std::vector<Node*>& operands, const Tensor& to,
                         std::vector<double>& values) {
    auto mode = how.one<Pointwise>(A::pointwise_mode);
    auto axis = how.one<int64_t>(A::pointwise_axis);
    std::vector<Tensor> from;
    for (Node* each : operands) from.push_back(tensor_of(*each));
    for_elements(to, [&](size_t at, const int64_t(&index)[4]) {
      double x = value_at(from[0], index), b = from.size() > 1 ? value_at(from[1], index) : 0;
      double& y = values[at];
      switch (mode) {
        case Pointwise::add:
          y = x + b;
          break;
        case Pointwise::multiply:
          y = x * b;
          break;
        case Pointwise::divide:
          y = x / b;
          break;
        case Pointwise::subtract:
          y = x - b;
          break;
        case Pointwise::exponential:
          y = std::exp(x);
          break;
        case Pointwise::logarithm:
          y = std::log(x);
          break;
        case Pointwise::greater_or_equal:
          y = x >= b || fake_cudnn.ignores_mask ? 1 : 0;
          break;
        case Pointwise::index:
          y = static_cast<double>(index[axis]);
          break;
        case Pointwise::select:
          y = value_at(from[2], index) != 0 ? x : b;
      }
    });
  }
  void compute_product(const Tensor& a, const Tensor& b, const Tensor& to,
                       std::vector<double>& values) {
    const std::vector<double>&of_a = values_[a.id], &of_b = values_[b.id];
    auto width = static_cast<size_t>(a.sizes[3]), columns = static_cast<size_t>(b.sizes[3]);
    auto rows = static_cast<size_t>(a.sizes[2]);
    int64_t per_group = a.sizes[1] / b.sizes[1];
    for (int64_t batch = 0; batch < to.sizes[0]; batch++)
      for (int64_t head = 0; head < to.sizes[1]; head++) {
        auto block = static_cast<size_t>(batch * a.sizes[1] + head);
        auto block_of_b = static_cast<size_t>(batch * b.sizes[1] + head / per_group);
        for (size_t row = 0; row < rows; row++)
          for (size_t i = 0; i < width; i++) {
            double x = of_a[(block * rows + row) * width + i];
            if (x == 0) continue;
            const double* y = &of_b[(block_of_b * width + i) * columns];
            double* sums = &values[(block * rows + row) * columns];
            for (size_t column = 0; column < columns; column++) sums[column] += x * y[column];
          }
      }
  }
  void compute_reduction(bool is_largest, const Tensor& x, const Tensor& to,
                         std::vector<double>& values) {
    if (is_largest) values.assign(values.size(), -INFINITY);
    for_elements(x, [&](size_t, const int64_t(&index)[4]) {
      int64_t target[4];
      for (int i = 0; i < 4; i++) target[i] = index[i] / (x.sizes[i] / to.sizes[i]);
      size_t at = 0;
      for (int i = 0; i < 4; i++)
        at = at * static_cast<size_t>(to.sizes[i]) + static_cast<size_t>(target[i]);
      double value = value_at(x, index);
      values[at] = is_largest ? std::fmax(values[at], value) : values[at] + value;
    });
  }

  std::map<int64_t, char*> pointers_;
  std::map<int64_t, std::vector<double>> values_;
};

}  // namespace

EXPORT int cudnnBackendCreateDescriptor(DescriptorKind kind, void** to) {
  auto* node = new Node;
  node->kind = kind;
  *to = node;
  fake_cudnn.alive++;
  return 0;
}
EXPORT int cudnnBackendDestroyDescriptor(void* descriptor) {
  Node* node = node_of(descriptor);
  if (node == nullptr) return kBadParameter;
  node->mark = 0;
  delete node;
  fake_cudnn.alive--;
  return 0;
}

EXPORT int cudnnBackendSetAttribute(void* descriptor, Attribute name, AttributeType type,
                                    int64_t count, const void* values) {
  Node* node = node_of(descriptor);
  if (node == nullptr) return kBadParameter;
  if (node->is_finished) return complain("a descriptor is changed after it was finished");
  const Rule* rule = rule_of(node->kind, name, type);
  if (rule == nullptr || count < 1 || values == nullptr)
    return complain("an attribute that the descriptor does not have, or of another type");
  auto* bytes = static_cast<const char*>(values);
  Value value{type, count, {bytes, bytes + static_cast<size_t>(count) * size_of(type)}};
  node->values[name] = value;
  if (type == AttributeType::handle)
    return is_fake_handle(node->one<void*>(name)) ? 0 : complain("no handle");
  if (type != AttributeType::descriptor) return 0;
  for (void* each : node->all<void*>(name)) {
    Node* other = node_of(each);
    if (other == nullptr || !other->is_finished)
      return complain("a descriptor that is not finished");
    if (name != A::graph_operations && other->kind != rule->descriptor)
      return complain("another kind of descriptor was due here");
  }
  return 0;
}

EXPORT int cudnnBackendFinalize(void* descriptor) {
  Node* node = node_of(descriptor);
  if (node == nullptr || node->is_finished) return complain("a descriptor is finished twice");
  int status = 0;
  switch (node->kind) {
    case Kind::tensor:
      status = check_tensor(*node);
      break;
    case Kind::pointwise_operation:
      status = check_pointwise(*node);
      break;
    case Kind::product_operation:
      status = check_product(*node);
      break;
    case Kind::reduction_operation:
      status = check_reduction(*node);
      break;
    case Kind::reshape_operation:
      status = check_reshape(*node);
      break;
    case Kind::graph:
      status = check_graph(*node);
      break;
    case Kind::heuristics:
      fake_cudnn.heuristics++;
      status = fake_cudnn.offers_status;
      if (!node->has(A::heuristics_graph) || node->one<int>(A::heuristics_mode) != kHeuristicsA)
        status = complain("heuristics without a graph or a mode");
      break;
    case Kind::plan:
      status = check_plan(*node);
      break;
    case Kind::variant_pack:
      status = check_pack(*node);
      break;
    case Kind::pointwise:
    case Kind::product:
    case Kind::reduction:
      break;
    default:
      status = complain("this descriptor is not finished by the caller");
  }
  node->is_finished = status == 0;
  return status;
}

EXPORT int cudnnBackendGetAttribute(void* descriptor, Attribute name, AttributeType type,
                                    int64_t room, int64_t* count, void* values) {
  Node* node = node_of(descriptor);
  if (node == nullptr) return kBadParameter;
  if (!node->is_finished) return complain("a question to a descriptor that is not finished");
  if (name == A::heuristics_results && type == AttributeType::descriptor) {
    *count = fake_cudnn.only_random ? 1 : kEngines;
    auto** configs = static_cast<Node**>(values);
    for (int64_t i = 0; i < room && i < *count; i++) {
      if (configs[i]->kind != Kind::engine_config) return complain("no config");
      configs[i]->engine = static_cast<int>(i);
      configs[i]->graph = node->node(A::heuristics_graph);
      configs[i]->is_finished = true;
    }
    return 0;
  }
  if (name == A::config_engine && node->kind == Kind::engine_config && room == 1) {
    Node* engine = node_of(*static_cast<void**>(values));
    if (engine == nullptr || engine->kind != Kind::engine) return complain("no engine");
    engine->engine = node->engine;
    engine->is_finished = true;
    *count = 1;
    return 0;
  }
  if (name == A::engine_notes && type == AttributeType::numerical_note && room >= 2) {
    auto* notes = static_cast<int*>(values);
    notes[0] = 0;  // tensor cores
    notes[1] = kNoteNondeterministic;
    *count = node->engine == 0 ? 2 : 1;
    return 0;
  }
  if (name == A::plan_workspace && node->kind == Kind::plan && room == 1) {
    *static_cast<int64_t*>(values) = static_cast<int64_t>(fake_cudnn.workspace);
    *count = 1;
    return 0;
  }
  return complain("an unknown question");
}

EXPORT int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  Node *of_plan = node_of(plan), *of_pack = node_of(pack);
  if (!is_fake_handle(handle)) return complain("no handle");
  if (!of_plan || !of_pack || !of_plan->is_finished || !of_pack->is_finished ||
      of_plan->kind != Kind::plan || of_pack->kind != Kind::variant_pack)
    return complain("a run without a plan or a pack");
  if (of_plan->engine == 0) return complain("an engine whose bits vary");
  auto* workspace = of_pack->one<char*>(A::pack_workspace);
  if (fake_cudnn.workspace > 0 && workspace == nullptr) return complain("no workspace");
  if (fake_cudnn.run_status != 0) return fake_cudnn.run_status;
  // Shows a workspace that is too small.
  if (fake_cudnn.workspace > 0) std::memset(workspace, 0xee, fake_cudnn.workspace);
  fake_cudnn.graphs++;
  return Runner(*of_pack).run(*of_plan->graph);
}
