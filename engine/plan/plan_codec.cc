// The encoding of plans, fragments and bundles: a magic word with a version, then every field in
// order. Integers are minimal varints and values canonical CBOR, so that equal plans have equal
// bytes; a plan of a million nodes is written and read in a second.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <type_traits>

#include "engine/plan/plan.hpp"
#include "engine/value/cbor.hpp"

namespace flow {
namespace {

constexpr std::string_view kPlanMagic = "flow-plan\1";
constexpr std::string_view kFragmentMagic = "flow-frag\1";
constexpr std::string_view kBundleMagic = "flow-code\1";
constexpr std::string_view kEnvironmentMagic = "flow-envs\1";
constexpr std::string_view kServiceMagic = "flow-serv\1";
// Items to allocate for an announced count before they are read, or as many as the remaining bytes
// could hold.
constexpr size_t kReserveMax = 64;
constexpr size_t kReserveBytesEach = 16;

class PlanWriter {
 public:
  static constexpr bool kReads = false;

  explicit PlanWriter(std::string_view magic) : out_(magic) {}
  std::string take() { return std::move(out_); }

  void number(uint64_t n) {
    for (; n >= 0x80; n >>= 7) out_.push_back(static_cast<char>(n | 0x80));
    out_.push_back(static_cast<char>(n));
  }
  void text(std::string_view s) {
    number(s.size());
    out_.append(s);
  }
  void raw(std::string_view s) { out_.append(s); }
  void value(const Value& v) { append_value(v, out_); }
  void encoded(const EncodedValue& v) { out_.append(v.bytes()); }

 private:
  std::string out_;
};

// Reads until the first error and keeps it; later reads return defaults.
class PlanReader {
 public:
  static constexpr bool kReads = true;

  explicit PlanReader(std::string_view bytes) : rest_(bytes), size_(bytes.size()) {}

  size_t remaining() const { return rest_.size(); }
  bool failed() const { return !fault_.empty(); }
  void fail(std::string why) {
    if (fault_.empty()) fault_ = fmt::format("{} at byte {}", why, size_ - rest_.size());
  }
  bool magic(std::string_view wanted) {
    if (!rest_.starts_with(wanted)) return false;
    rest_.remove_prefix(wanted.size());
    return true;
  }

  uint64_t number() {
    uint64_t n = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) break;
      auto byte = static_cast<uint8_t>(rest_[0]);
      if (shift == 63 && byte > 1) break;
      rest_.remove_prefix(1);
      n |= uint64_t{byte & 0x7fu} << shift;
      if (byte >= 0x80) continue;
      if (byte == 0 && shift > 0) fail("a number wider than needed");
      return failed() ? 0 : n;
    }
    fail("a broken number");
    return 0;
  }
  // The number of following items, each of which takes at least a byte.
  size_t count() {
    uint64_t n = number();
    if (n > rest_.size()) fail("it ends early");
    return failed() ? 0 : static_cast<size_t>(n);
  }
  std::string_view raw(size_t size) {
    if (size > rest_.size()) fail("it ends early");
    if (failed()) return {};
    std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }
  std::string_view text() { return raw(count()); }
  Value value() {
    if (failed() || take_nil()) return {};
    auto taken = take_value(rest_);
    if (taken.ok()) return std::move(taken).value();
    fail(taken.error().message);
    return {};
  }
  EncodedValue encoded() {
    std::string_view bytes = rest_;
    (void)value();
    if (failed()) return {};
    return EncodedValue::of_bytes(bytes.substr(0, bytes.size() - rest_.size()));
  }
  // Fast path: most values of a node are nil.
  bool take_nil() {
    static const std::string kNil = encode_value(Value());
    if (!rest_.starts_with(kNil)) return false;
    rest_.remove_prefix(kNil.size());
    return true;
  }
  Status finish(const char* what) {
    if (!failed() && !rest_.empty()) fail(fmt::format("{} bytes too many", rest_.size()));
    if (!failed()) return {};
    return environment_error(fmt::format("the stored {} can't be read: {}", what, fault_));
  }

 private:
  std::string_view rest_;
  size_t size_;
  std::string fault_;
};

// ---- one `field` per type for both directions, so that what is written is what is read

template <typename T>
concept Integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;

// Signed integers are zigzag-encoded, so that small negative numbers stay short.
template <Integer T>
void field(PlanWriter& io, const T& n) {
  if constexpr (std::is_signed_v<T>) {
    auto wide = static_cast<int64_t>(n);
    io.number(static_cast<uint64_t>(wide) << 1 ^ static_cast<uint64_t>(wide >> 63));
  } else {
    io.number(n);
  }
}
template <Integer T>
void field(PlanReader& io, T& n) {
  uint64_t raw = io.number();
  if constexpr (std::is_signed_v<T>) {
    auto wide = static_cast<int64_t>(raw >> 1 ^ (~(raw & 1) + 1));
    n = static_cast<T>(wide);
    if (n != wide) io.fail("a number out of range");
  } else {
    n = static_cast<T>(raw);
    if (n != raw) io.fail("a number out of range");
  }
}

void field(PlanWriter& io, const bool& b) { io.number(b); }
void field(PlanReader& io, bool& b) {
  uint64_t raw = io.number();
  if (raw > 1) io.fail("a number that is not a boolean");
  b = raw == 1;
}

template <typename E, E last>
void enumeration(PlanWriter& io, const E& e) {
  io.number(static_cast<uint64_t>(e));
}
template <typename E, E last>
void enumeration(PlanReader& io, E& e) {
  uint64_t raw = io.number();
  if (raw > static_cast<uint64_t>(last)) {
    io.fail("an unknown kind");
  } else {
    e = static_cast<E>(raw);
  }
}

void field(PlanWriter& io, const double& d) {
  auto bits = std::bit_cast<uint64_t>(d);
  char bytes[8];
  for (int i = 0; i < 8; i++) bytes[i] = static_cast<char>(bits >> 8 * i);
  io.raw({bytes, sizeof bytes});
}
void field(PlanReader& io, double& d) {
  std::string_view bytes = io.raw(8);
  uint64_t bits = 0;
  for (size_t i = 0; i < bytes.size(); i++)
    bits |= uint64_t{static_cast<uint8_t>(bytes[i])} << 8 * i;
  d = std::bit_cast<double>(bits);
}

void field(PlanWriter& io, const std::string& s) { io.text(s); }
void field(PlanReader& io, std::string& s) { s = io.text(); }
void field(PlanWriter& io, const Value& v) { io.value(v); }
void field(PlanReader& io, Value& v) { v = io.value(); }
void field(PlanWriter& io, const EncodedValue& v) { io.encoded(v); }
void field(PlanReader& io, EncodedValue& v) { v = io.encoded(); }
void field(PlanWriter& io, const Digest& d) { io.raw(d.view()); }
void field(PlanReader& io, Digest& d) {
  std::string_view raw = io.raw(d.bytes.size());
  if (!raw.empty()) Digest::from_bytes(raw, d);
}

template <typename IO, typename T>
struct Like {
  using type = std::conditional_t<IO::kReads, T, const T>;
};
template <typename IO, typename T>
using like = typename Like<IO, T>::type;

// Declared before the containers, whose templates use them.
template <typename IO>
void field(IO& io, like<IO, CodeComponent>& part);
template <typename IO>
void field(IO& io, like<IO, EnvEntry>& entry);
template <typename IO>
void field(IO& io, like<IO, TaskDef>& def);
template <typename IO>
void field(IO& io, like<IO, ParamSpec>& param);
template <typename IO>
void field(IO& io, like<IO, TaskNode>& node);
template <typename IO>
void field(IO& io, like<IO, TensorSpec>& tensor);
void later_fields(PlanWriter& io, const Plan& plan);
void later_fields(PlanReader& io, Plan& plan);
template <typename IO>
void field(IO& io, like<IO, std::pair<std::string, std::string>>& pair);

template <typename T>
void field(PlanWriter& io, const std::vector<T>& items) {
  io.number(items.size());
  for (const T& item : items) field(io, item);
}
template <typename T>
void field(PlanReader& io, std::vector<T>& items) {
  size_t count = io.count();
  items.reserve(std::min(count, std::max(kReserveMax, io.remaining() / kReserveBytesEach)));
  for (size_t i = 0; i < count && !io.failed(); i++) field(io, items.emplace_back());
}

template <typename T>
void field(PlanWriter& io, const std::optional<T>& item) {
  field(io, item.has_value());
  if (item) field(io, *item);
}
template <typename T>
void field(PlanReader& io, std::optional<T>& item) {
  bool there = false;
  field(io, there);
  if (there) field(io, item.emplace());
}

template <typename IO, typename... T>
void fields(IO& io, T&... each) {
  (field(io, each), ...);
}

// ---- the plan's own types

template <typename IO>
void field(IO& io, like<IO, std::pair<std::string, std::string>>& pair) {
  fields(io, pair.first, pair.second);
}

template <typename IO>
void field(IO& io, like<IO, std::pair<std::string, int64_t>>& pair) {
  fields(io, pair.first, pair.second);
}

template <typename IO>
void field(IO& io, like<IO, CodeComponent>& part) {
  fields(io, part.name, part.digest, part.text);
}

template <typename IO>
void field(IO& io, like<IO, EnvEntry>& entry) {
  fields(io, entry.name, entry.from_submitter, entry.value);
}

// Packed into one number, so that gangs that are not elastic and tasks without custom resources
// keep their original encoding.
constexpr uint64_t kHasCustomResources = uint64_t{1} << 31;

void ranks(PlanWriter& io, const Resources& needs) {
  io.number(uint64_t{needs.ranks_max} << 32 |
            (needs.custom_resources.empty() ? 0 : kHasCustomResources) | needs.ranks);
  if (!needs.custom_resources.empty()) field(io, needs.custom_resources);
}
void ranks(PlanReader& io, Resources& needs) {
  uint64_t all = io.number();
  needs.ranks = static_cast<uint32_t>(all & ~kHasCustomResources);
  needs.ranks_max = static_cast<uint32_t>(all >> 32);
  if ((all & kHasCustomResources) == 0) return;
  field(io, needs.custom_resources);
  if (needs.custom_resources.empty() || !are_sound(needs.custom_resources))
    io.fail("resources that are not valid");
}

template <typename IO>
void resources(IO& io, like<IO, Resources>& needs) {
  fields(io, needs.cpus_milli, needs.memory_bytes, needs.gpus_milli, needs.gpu_memory_bytes,
         needs.gpu_model, needs.where);
  ranks(io, needs);
}

template <typename IO>
void retry(IO& io, like<IO, RetryPolicy>& policy) {
  fields(io, policy.max, policy.backoff_ms, policy.factor, policy.cap_ms, policy.oom_max,
         policy.oom_memory_factor, policy.infra);
}

template <typename IO>
void field(IO& io, like<IO, TaskDef>& def) {
  field(io, def.name);
  enumeration<TaskKind, TaskKind::native>(io, def.kind);
  fields(io, def.file, def.line, def.ordinal, def.code, def.code_components);
  resources<IO>(io, def.resources);
  retry<IO>(io, def.retry);
  fields(io, def.timeout_ms, def.cache, def.cache_written, def.cache_salt, def.priority, def.queue,
         def.env, def.seed, def.stage_copy);
  fields(io, def.shell.command, def.shell.args, def.shell.outputs, def.shell.shell);
  fields(io, def.service.port, def.service.batch_max, def.service.batch_wait_us);
  field(io, def.native_version);
}

template <typename IO>
void field(IO& io, like<IO, PackageEnvironment>& packages) {
  fields(io, packages.source, packages.path, packages.content, packages.is_file);
}

template <typename IO>
void field(IO& io, like<IO, CommandEnvironment>& environment) {
  fields(io, environment.before, environment.modules);
  field<IO>(io, environment.venv);
  field<IO>(io, environment.conda);
  fields(io, environment.python_version, environment.container, environment.image_path,
         environment.image);
}

template <typename IO>
void field(IO& io, like<IO, TensorSpec>& tensor) {
  fields(io, tensor.name, tensor.datatype, tensor.shape);
}

// All but the port and the batches, which the first version had.
template <typename IO>
void service_options(IO& io, like<IO, ServiceSpec>& service) {
  fields(io, service.address, service.tls.certificate, service.tls.key, service.tls.clients,
         service.keys.variable, service.keys.file, service.hosts, service.is_insecure,
         service.queue_max, service.inputs, service.outputs);
}

template <typename IO>
void field(IO& io, like<IO, WarmupTensor>& tensor) {
  fields(io, tensor.name, tensor.dtype, tensor.shape, tensor.data);
}

// Replicas, rollover and wrapped servers, which were added later.
template <typename IO>
void service_life(IO& io, like<IO, ServiceSpec>& service) {
  auto& canary = service.canary;
  auto& wrapped = service.wrapped;
  fields(io, service.replicas, service.is_idempotent, service.rolls_by_replacing,
         service.drain_delay_ms, service.is_padded, service.grpc_port, canary.percents,
         canary.every_ms, canary.max_error_rate, canary.max_p99_us, canary.min_requests,
         canary.gate, service.warmup, wrapped.ready, wrapped.health, wrapped.start_timeout_ms);
}

// Scaling and logs, which were added later than those.
template <typename IO>
void service_scaling(IO& io, like<IO, ServiceSpec>& service) {
  auto& scaling = service.scaling;
  fields(io, scaling.max, scaling.target_queue_us, scaling.up_after_ms, scaling.down_after_ms,
         service.access_log);
}

template <typename IO>
void field(IO& io, like<IO, InputListing>& listing) {
  fields(io, listing.folder, listing.pattern, listing.paths);
}

template <typename IO>
void field(IO& io, like<IO, ParamSpec>& param) {
  fields(io, param.name, param.type, param.of, param.has_default, param.default_value, param.help,
         param.min, param.max, param.pattern, param.choices);
}

void detail_fields(PlanWriter& io, const TaskNode& node) {
  const NodeDetail& detail = node.detail();
  fields(io, detail.items, detail.limit, detail.condition, detail.then_value, detail.else_value,
         detail.after);
}
void detail_fields(PlanReader& io, TaskNode& node) {
  NodeDetail detail;
  fields(io, detail.items, detail.limit, detail.condition, detail.then_value, detail.else_value,
         detail.after);
  bool is_empty = detail.items.is_nil() && detail.limit == 0 && detail.condition.is_nil() &&
                  detail.then_value.is_nil() && detail.else_value.is_nil() && detail.after.empty();
  if (!is_empty) node.edit_detail() = std::move(detail);
}

template <typename IO>
void field(IO& io, like<IO, TaskNode>& node) {
  field(io, node.name);
  enumeration<NodeKind, NodeKind::when>(io, node.kind);
  fields(io, node.def, node.line, node.args, node.named_args);
  detail_fields(io, node);
  fields(io, node.guard.when, node.guard.then_branch);
}

template <typename IO>
void plan_fields(IO& io, like<IO, Plan>& plan) {
  fields(io, plan.pipeline, plan.params_schema, plan.params, plan.defs, plan.nodes, plan.result,
         plan.warnings);
  later_fields(io, plan);
}

// Fields added after the first version are written at the end and only if set, so that other plans
// keep their bytes: first the kernels of tasks, then sections in the order of their numbers. A plan
// with sections and without kernels has an empty list of kernels.
enum LaterSection : uint64_t {
  kIgnoringTasks = 1,
  kTags = 2,
  kListings = 3,
  kFunctions = 4,
  kWrittenOptions = 8,
  kEnvironments = 9,
  kCodePlaces = 10,
  kServices = 11,
  kServiceLives = 12,
  kServiceScaling = 13,
  kSkippedCanaries = 14,
};

// Ascending by the index of the task.
void kernels(PlanWriter& io, const std::vector<TaskDef>& defs, bool is_last) {
  std::vector<std::pair<uint32_t, std::string>> there;
  for (uint32_t i = 0; i < defs.size(); i++)
    if (!defs[i].gpu_kernel.empty()) there.emplace_back(i, defs[i].gpu_kernel);
  if (there.empty() && is_last) return;
  io.number(there.size());
  for (const auto& [index, value] : there) fields(io, index, value);
}
void kernels(PlanReader& io, std::vector<TaskDef>& defs) {
  if (io.failed() || io.remaining() == 0) return;
  size_t count = io.count();
  if (count == 0 && io.remaining() == 0) io.fail("an empty list at the end");
  uint32_t least = 0;
  for (size_t i = 0; i < count && !io.failed(); i++) {
    uint32_t index = 0;
    std::string value;
    fields(io, index, value);
    if (io.failed()) return;
    if (index < least || index >= defs.size() || value.empty())
      return io.fail("a task that is not there, or twice");
    least = index + 1;
    defs[index].gpu_kernel = std::move(value);
  }
}

bool is_tagged(const TaskNode& node) {
  const NodeDetail& detail = node.detail();
  return !detail.tag.empty() || !detail.item_tags.empty() || detail.tags_items;
}

// The elements that have something: their number, and then each index, ascending, with what `write`
// adds.
template <typename T, typename Has, typename Write>
void some(PlanWriter& io, const std::vector<T>& all, Has has, Write write) {
  io.number(static_cast<uint64_t>(std::ranges::count_if(all, has)));
  for (uint32_t i = 0; i < all.size(); i++) {
    if (!has(all[i])) continue;
    field(io, i);
    write(all[i]);
  }
}
// Calls `read` with each element of the list.
template <typename T, typename Read>
void some(PlanReader& io, std::vector<T>& all, Read read) {
  size_t count = io.count();
  if (count == 0) io.fail("an empty section");
  uint32_t least = 0;
  for (size_t i = 0; i < count && !io.failed(); i++) {
    uint32_t index = 0;
    field(io, index);
    if (io.failed()) return;
    if (index < least || index >= all.size())
      return io.fail("a node or a task that is not there, or twice");
    least = index + 1;
    read(all[index]);
  }
}

void tags(PlanWriter& io, const std::vector<TaskNode>& nodes) {
  some(io, nodes, is_tagged, [&](const TaskNode& node) {
    const NodeDetail& detail = node.detail();
    fields(io, detail.tag, detail.item_tags, detail.tags_items);
  });
}
void tags(PlanReader& io, std::vector<TaskNode>& nodes) {
  some(io, nodes, [&](TaskNode& node) {
    NodeDetail& detail = node.edit_detail();
    fields(io, detail.tag, detail.item_tags, detail.tags_items);
    bool is_list = node.kind == NodeKind::map && detail.items.kind() == Value::Kind::table;
    bool fits = is_tagged(node) && (detail.tag.empty() || node.kind == NodeKind::task) &&
                (!detail.tags_items || (node.kind == NodeKind::map && !is_list)) &&
                (detail.item_tags.empty() ||
                 (is_list && detail.items.as_table().list.size() == detail.item_tags.size()));
    if (!io.failed() && !fits) io.fail("tags that do not fit their node");
  });
}

bool has_functions(const TaskDef& def) { return def.resource_functions != 0; }

void functions(PlanWriter& io, const std::vector<TaskDef>& defs) {
  some(io, defs, has_functions, [&](const TaskDef& def) {
    uint32_t options = def.resource_functions;
    field(io, options);
  });
}
void functions(PlanReader& io, std::vector<TaskDef>& defs) {
  some(io, defs, [&](TaskDef& def) {
    uint32_t options = 0;
    field(io, options);
    if (options == 0 || options > kResourceFunctions) io.fail("functions of unknown options");
    def.resource_functions = static_cast<uint8_t>(options);
  });
}

bool has_written_options(const TaskDef& def) { return !def.written_options.empty(); }

void written_options(PlanWriter& io, const std::vector<TaskDef>& defs) {
  some(io, defs, has_written_options, [&](const TaskDef& def) { field(io, def.written_options); });
}
void written_options(PlanReader& io, std::vector<TaskDef>& defs) {
  some(io, defs, [&](TaskDef& def) {
    std::vector<std::string>& names = def.written_options;
    field(io, names);
    bool is_sorted = std::ranges::adjacent_find(names, std::greater_equal<>()) == names.end();
    if (!io.failed() && (names.empty() || !is_sorted)) io.fail("options that are not sorted");
  });
}

bool has_environment(const TaskDef& def) { return !def.shell.environment.is_empty(); }

void environments(PlanWriter& io, const std::vector<TaskDef>& defs) {
  some(io, defs, has_environment,
       [&](const TaskDef& def) { field<PlanWriter>(io, def.shell.environment); });
}
void environments(PlanReader& io, std::vector<TaskDef>& defs) {
  some(io, defs, [&](TaskDef& def) {
    field<PlanReader>(io, def.shell.environment);
    if (!io.failed() && !has_environment(def)) io.fail("an empty environment");
  });
}

// The fields of service_life() are those of `from`, the others those of `to`.
ServiceSpec with_life(ServiceSpec to, const ServiceSpec& from) {
  to.replicas = from.replicas;
  to.is_idempotent = from.is_idempotent;
  to.rolls_by_replacing = from.rolls_by_replacing;
  to.drain_delay_ms = from.drain_delay_ms;
  to.is_padded = from.is_padded;
  to.grpc_port = from.grpc_port;
  to.canary = from.canary;
  to.warmup = from.warmup;
  to.wrapped = from.wrapped;
  return to;
}
ServiceSpec with_scaling(ServiceSpec to, const ServiceSpec& from) {
  to.scaling = from.scaling;
  to.access_log = from.access_log;
  return to;
}
bool skips_canary(const TaskDef& def) { return def.service.canary.is_skipped; }
bool has_service_life(const TaskDef& def) { return with_life({}, def.service) != ServiceSpec{}; }
bool has_service_scaling(const TaskDef& def) {
  return with_scaling({}, def.service) != ServiceSpec{};
}
bool has_service_options(const TaskDef& def) {
  ServiceSpec options = with_scaling(with_life(def.service, {}), {});
  const ServiceSpec defaults;
  options.port = defaults.port;
  options.batch_max = defaults.batch_max;
  options.batch_wait_us = defaults.batch_wait_us;
  return options != defaults;
}

void services(PlanWriter& io, const std::vector<TaskDef>& defs) {
  some(io, defs, has_service_options,
       [&](const TaskDef& def) { service_options<PlanWriter>(io, def.service); });
}
void services(PlanReader& io, std::vector<TaskDef>& defs) {
  some(io, defs, [&](TaskDef& def) {
    service_options<PlanReader>(io, def.service);
    if (!io.failed() && !has_service_options(def)) io.fail("a service without options");
  });
}

void service_lives(PlanWriter& io, const std::vector<TaskDef>& defs) {
  some(io, defs, has_service_life,
       [&](const TaskDef& def) { service_life<PlanWriter>(io, def.service); });
}
void service_lives(PlanReader& io, std::vector<TaskDef>& defs) {
  some(io, defs, [&](TaskDef& def) {
    service_life<PlanReader>(io, def.service);
    if (!io.failed() && !has_service_life(def)) io.fail("a service without replicas");
  });
}

void service_scalings(PlanWriter& io, const std::vector<TaskDef>& defs) {
  some(io, defs, has_service_scaling,
       [&](const TaskDef& def) { service_scaling<PlanWriter>(io, def.service); });
}
void service_scalings(PlanReader& io, std::vector<TaskDef>& defs) {
  some(io, defs, [&](TaskDef& def) {
    service_scaling<PlanReader>(io, def.service);
    if (!io.failed() && !has_service_scaling(def)) io.fail("a service without scaling and logs");
  });
}

void skipped_canaries(PlanWriter& io, const std::vector<TaskDef>& defs) {
  some(io, defs, skips_canary, [](const TaskDef&) {});
}
void skipped_canaries(PlanReader& io, std::vector<TaskDef>& defs) {
  some(io, defs, [&](TaskDef& def) {
    if (def.service.canary.percents.empty()) io.fail("a canary that is not there");
    def.service.canary.is_skipped = true;
  });
}

bool has_places(const TaskDef& def) {
  return !def.parameters.empty() ||
         std::ranges::any_of(def.code_components,
                             [](const CodeComponent& part) { return !part.source.empty(); });
}

// What users see of the tasks' functions: names of parameters and the places of code components.
void code_places(PlanWriter& io, const std::vector<TaskDef>& defs) {
  some(io, defs, has_places, [&](const TaskDef& def) {
    std::vector<std::pair<std::string, int64_t>> sources;
    const std::vector<CodeComponent>& parts = def.code_components;
    for (size_t part = 0; part < parts.size(); part++)
      if (!parts[part].source.empty())
        sources.emplace_back(parts[part].source, static_cast<int64_t>(part));
    fields(io, def.parameters, sources);
  });
}
void code_places(PlanReader& io, std::vector<TaskDef>& defs) {
  some(io, defs, [&](TaskDef& def) {
    std::vector<std::pair<std::string, int64_t>> sources;
    fields(io, def.parameters, sources);
    int64_t next = 0;
    auto end = static_cast<int64_t>(def.code_components.size());
    for (auto& [source, part] : sources) {
      if (source.empty() || part < next || part >= end)
        return io.fail("a component that is not there, or twice");
      def.code_components[static_cast<size_t>(part)].source = std::move(source);
      next = part + 1;
    }
    if (!io.failed() && !has_places(def)) io.fail("a task without a function");
  });
}

void later_fields(PlanWriter& io, const Plan& plan) {
  std::vector<uint32_t> ignoring;
  for (uint32_t i = 0; i < plan.defs.size(); i++)
    if (plan.defs[i].ignores_failure) ignoring.push_back(i);
  bool has_tags = std::ranges::any_of(plan.nodes, is_tagged);
  bool has_any_function = std::ranges::any_of(plan.defs, has_functions);
  bool has_options = std::ranges::any_of(plan.defs, has_written_options);
  bool has_environments = std::ranges::any_of(plan.defs, has_environment);
  bool has_any_place = std::ranges::any_of(plan.defs, has_places);
  bool has_services = std::ranges::any_of(plan.defs, has_service_options);
  bool has_lives = std::ranges::any_of(plan.defs, has_service_life);
  bool has_scalings = std::ranges::any_of(plan.defs, has_service_scaling);
  bool has_sections = !ignoring.empty() || has_tags || !plan.listings.empty() || has_any_function ||
                      has_options || has_environments || has_any_place || has_services ||
                      has_lives || has_scalings;
  kernels(io, plan.defs, !has_sections);
  if (!ignoring.empty()) {
    io.number(kIgnoringTasks);
    field(io, ignoring);
  }
  if (has_tags) {
    io.number(kTags);
    tags(io, plan.nodes);
  }
  if (!plan.listings.empty()) {
    io.number(kListings);
    field(io, plan.listings);
  }
  if (has_any_function) {
    io.number(kFunctions);
    functions(io, plan.defs);
  }
  if (has_options) {
    io.number(kWrittenOptions);
    written_options(io, plan.defs);
  }
  if (has_environments) {
    io.number(kEnvironments);
    environments(io, plan.defs);
  }
  if (has_any_place) {
    io.number(kCodePlaces);
    code_places(io, plan.defs);
  }
  if (has_services) {
    io.number(kServices);
    services(io, plan.defs);
  }
  if (has_lives) {
    io.number(kServiceLives);
    service_lives(io, plan.defs);
  }
  if (has_scalings) {
    io.number(kServiceScaling);
    service_scalings(io, plan.defs);
  }
  if (std::ranges::any_of(plan.defs, skips_canary)) {
    io.number(kSkippedCanaries);
    skipped_canaries(io, plan.defs);
  }
}
void later_fields(PlanReader& io, Plan& plan) {
  kernels(io, plan.defs);
  uint64_t before = 0;
  while (!io.failed() && io.remaining() > 0) {
    uint64_t section = io.number();
    if (section <= before) return io.fail("sections out of order");
    before = section;
    if (section == kIgnoringTasks) {
      std::vector<uint32_t> ignoring;
      field(io, ignoring);
      if (io.failed()) return;
      if (ignoring.empty()) return io.fail("an empty section");
      for (size_t i = 0; i < ignoring.size(); i++) {
        bool is_ascending = i == 0 || ignoring[i] > ignoring[i - 1];
        if (!is_ascending || ignoring[i] >= plan.defs.size())
          return io.fail("a task that is not there, or twice");
        plan.defs[ignoring[i]].ignores_failure = true;
      }
    } else if (section == kTags) {
      tags(io, plan.nodes);
    } else if (section == kListings) {
      field(io, plan.listings);
      if (plan.listings.empty()) return io.fail("an empty section");
    } else if (section == kFunctions) {
      functions(io, plan.defs);
    } else if (section == kWrittenOptions) {
      written_options(io, plan.defs);
    } else if (section == kEnvironments) {
      environments(io, plan.defs);
    } else if (section == kCodePlaces) {
      code_places(io, plan.defs);
    } else if (section == kServices) {
      services(io, plan.defs);
    } else if (section == kServiceLives) {
      service_lives(io, plan.defs);
    } else if (section == kServiceScaling) {
      service_scalings(io, plan.defs);
    } else if (section == kSkippedCanaries) {
      skipped_canaries(io, plan.defs);
    } else {
      io.fail("a section of a newer flow");
    }
  }
}

Error wrong_magic(const char* what) {
  return environment_error(fmt::format(
      "the stored {} cannot be read: it is damaged, or another version of flow wrote it", what));
}

}  // namespace

std::string encode_plan(const Plan& plan) {
  PlanWriter io(kPlanMagic);
  plan_fields(io, plan);
  return io.take();
}

Result<Plan> decode_plan(std::string_view bytes) {
  PlanReader io(bytes);
  if (!io.magic(kPlanMagic)) return wrong_magic("plan");
  Plan plan;
  plan_fields(io, plan);
  FLOW_TRY(io.finish("plan"));
  return plan;
}

std::string encode_command_environment(const CommandEnvironment& environment) {
  PlanWriter io(kEnvironmentMagic);
  field<PlanWriter>(io, environment);
  return io.take();
}

Result<CommandEnvironment> decode_command_environment(std::string_view bytes) {
  PlanReader io(bytes);
  if (!io.magic(kEnvironmentMagic)) return wrong_magic("environment of a command");
  CommandEnvironment environment;
  field<PlanReader>(io, environment);
  FLOW_TRY(io.finish("environment of a command"));
  return environment;
}

std::string encode_service_options(const ServiceSpec& service) {
  PlanWriter io(kServiceMagic);
  service_options<PlanWriter>(io, service);
  service_life<PlanWriter>(io, service);
  service_scaling<PlanWriter>(io, service);
  return io.take();
}

Result<ServiceSpec> decode_service_options(std::string_view bytes) {
  PlanReader io(bytes);
  if (!io.magic(kServiceMagic)) return wrong_magic("service");
  ServiceSpec service;
  service_options<PlanReader>(io, service);
  service_life<PlanReader>(io, service);
  service_scaling<PlanReader>(io, service);
  FLOW_TRY(io.finish("service"));
  return service;
}

std::string encode_fragment(const PlanFragment& fragment) {
  PlanWriter io(kFragmentMagic);
  fields(io, fragment.nodes, fragment.result);
  if (std::ranges::any_of(fragment.nodes, is_tagged)) tags(io, fragment.nodes);
  return io.take();
}

Result<PlanFragment> decode_fragment(std::string_view bytes) {
  PlanReader io(bytes);
  if (!io.magic(kFragmentMagic)) return wrong_magic("list of calls");
  PlanFragment fragment;
  fields(io, fragment.nodes, fragment.result);
  if (!io.failed() && io.remaining() > 0) tags(io, fragment.nodes);
  FLOW_TRY(io.finish("list of calls"));
  return fragment;
}

std::string encode_bundle(const Bundle& bundle) {
  PlanWriter io(kBundleMagic);
  fields(io, bundle.main, bundle.root, bundle.files);
  return io.take();
}

Result<Bundle> decode_bundle(std::string_view bytes) {
  PlanReader io(bytes);
  if (!io.magic(kBundleMagic)) return wrong_magic("code");
  Bundle bundle;
  fields(io, bundle.main, bundle.root, bundle.files);
  FLOW_TRY(io.finish("code"));
  return bundle;
}

Digest Bundle::digest() const {
  PlanWriter io(kBundleMagic);
  fields(io, main, files);
  return sha256(io.take());
}

}  // namespace flow
