// Arguments, keys and gathered values, from plans and content.
#include "engine/runs/input_resolver.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "engine/core/graph.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/value/cbor.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kValueCacheBytes = 64 << 20;
constexpr size_t kCachedValueBytes = 128;  // estimated size of a value's entry
constexpr size_t kTextMax = 120;
constexpr size_t kInputsMax = 16'384, kInputsOfOneMax = 32;
constexpr size_t kJoinDepthMax = 100;  // joins within joins that the run's result puts together

void hash_component(Sha256& hash, const KeyComponent& component) {
  uint64_t length = component.name.size();
  hash.update({reinterpret_cast<const char*>(&length), sizeof length});
  hash.update(component.name);
  hash.update(component.digest.view());
}

KeyComponent text_component(std::string name, std::string text) {
  Digest digest = sha256(text);
  if (text.size() > kTextMax) text = text.substr(0, kTextMax) + "…";
  return {std::move(name), digest, std::move(text), nullptr};
}

/// Its bytes are keyed, its value is shown.
KeyComponent seed_component(const std::string& bytes) {
  auto seed = decode_value(bytes);
  return {"seed", sha256(bytes), seed.ok() ? short_json(*seed) : "", nullptr};
}

/// Levels of tables.
int depth_of(const Value& value) {
  if (value.kind() != Value::Kind::table) return 0;
  int deepest = 0;
  for (const Value& item : value.as_table().list) deepest = std::max(deepest, depth_of(item));
  for (const auto& [key, field] : value.as_table().fields)
    deepest = std::max(deepest, depth_of(field));
  return deepest + 1;
}

bool has_ref(const Value& value) {
  if (value.kind() == Value::Kind::ref) return true;
  if (value.kind() != Value::Kind::table) return false;
  const Value::Table& table = value.as_table();
  for (const Value& item : table.list) {
    if (has_ref(item)) return true;
  }
  for (const auto& [key, field] : table.fields) {
    if (has_ref(field)) return true;
  }
  return false;
}

/// Whether the ref is an output that its shell task need not make: `h.extra`, and of a map
/// `m[1].extra` and `m:each("extra")`.
bool names_optional_output(const core::Run& run, const Ref& ref) {
  const TaskDef* def = core::def_of(run, ref.node);
  if (def == nullptr || def->kind != TaskKind::shell) return false;
  bool is_map = core::is_map_unit(run, ref.node);
  bool is_item = is_map && ref.path.size() == 2 && !ref.path[0].each &&
                 ref.path[0].key.kind() == Value::Kind::integer && !ref.path[1].each;
  bool is_each = is_map && ref.path.size() == 1 && ref.path[0].each;
  bool is_own = !is_map && ref.path.size() == 1 && !ref.path[0].each;
  const Value& key = ref.path.back().key;
  if ((!is_item && !is_each && !is_own) || key.kind() != Value::Kind::string) return false;
  return std::ranges::any_of(def->shell.outputs, [&](const auto& output) {
    return output.first == key.as_string() && is_optional_output(output.second);
  });
}

/// The part of a result that an optional output is: nil where it was not made, flow.null in a list.
Result<Value> optional_part(const Value& whole, const std::vector<PathStep>& path) {
  const PathStep& last = path.back();
  if (last.each) {
    if (whole.kind() != Value::Kind::table) return value_at(whole, path);
    std::vector<Value> parts;
    for (const Value& item : whole.as_table().list) {
      const Value* part = item.find(last.key);
      parts.push_back(part == nullptr ? Value::null() : *part);
    }
    return Value::list(std::move(parts));
  }
  auto result = value_at(whole, {path.begin(), path.end() - 1});
  FLOW_TRY(result);
  const Value* part = result->find(last.key);
  return part == nullptr ? Value() : *part;
}

bool holds_missing(const Value& value) {
  if (value.kind() == Value::Kind::missing) return true;
  if (value.kind() != Value::Kind::table) return false;
  const Value::Table& table = value.as_table();
  return std::ranges::any_of(table.list, holds_missing) ||
         std::ranges::any_of(table.fields,
                             [](const auto& field) { return holds_missing(field.second); });
}

Value missing_as_null(const Value& value) {
  if (value.kind() == Value::Kind::missing) return Value::null();
  if (value.kind() != Value::Kind::table) return value;
  Value::Table table = value.as_table();
  for (Value& item : table.list) item = missing_as_null(item);
  for (auto& [key, field] : table.fields) field = missing_as_null(field);
  return Value(std::move(table));
}

}  // namespace

std::string short_json(const Value& value) {
  std::string text = to_json(value);
  if (text.size() <= kTextMax) return text;
  return text.substr(0, character_begin(text, kTextMax)) + "…";
}

namespace {

/// A file of packages by its content, a prefix by its name.
void add_packages(const char* option, const PackageEnvironment& packages,
                  std::vector<KeyComponent>& components) {
  if (packages.source.empty()) return;
  components.push_back(
      text_component(option, packages.is_file ? packages.content : packages.source));
}

/// Names by their text, files by their content.
void add_environment(const CommandEnvironment& environment, std::vector<KeyComponent>& components) {
  if (!environment.before.empty())
    components.push_back(text_component("before", environment.before));
  std::string modules;
  for (const std::string& name : environment.modules) modules += name + '\n';
  if (!modules.empty()) components.push_back(text_component("modules", modules));
  add_packages("venv", environment.venv, components);
  add_packages("conda", environment.conda, components);
  if (!environment.python_version.empty())
    components.push_back(text_component("Python", environment.python_version));
  if (environment.container.empty()) return;
  // The image counts, whatever its name; a name that nobody could resolve counts itself.
  const std::string& image = environment.image.empty() ? environment.container : environment.image;
  std::string shown = environment.container;
  constexpr size_t kDigitsShown = 12;
  if (!environment.image.empty()) shown += " (" + image.substr(0, kDigitsShown) + ")";
  components.push_back({"container", sha256(image), std::move(shown), nullptr});
}

}  // namespace

std::vector<KeyComponent> definition_components(const TaskDef& def) {
  std::vector<KeyComponent> components;
  components.push_back(text_component("key schema", std::to_string(kKeySchema)));
  components.push_back(text_component("task name", def.name));
  bool has_command = def.kind == TaskKind::shell || !def.shell.command.empty();
  components.push_back(
      {has_command ? "command" : "code", def.code, def.shell.command.substr(0, kTextMax), nullptr});
  if (!def.cache_salt.empty()) components.push_back(text_component("cache salt", def.cache_salt));
  if (!def.seed.empty()) components.push_back(seed_component(def.seed));
  if (def.resources.ranks != 1 && def.resources.ranks_max == 0)  // an elastic gang's are not keyed
    components.push_back(text_component("ranks", std::to_string(def.resources.ranks)));
  for (const EnvEntry& entry : def.env) {
    // What flow.env reads is a secret of the submitter: only its name is keyed.
    components.push_back(entry.from_submitter
                             ? text_component("env " + entry.name, "from the environment")
                             : text_component("env " + entry.name, entry.value));
  }
  for (const auto& [name, pattern] : def.shell.outputs) {
    components.push_back(text_component("output " + name, pattern));
  }
  if (has_command) {
    std::string words;
    for (const std::string& word : def.shell.shell) words += word + '\n';
    components.push_back(text_component("shell", words));
  }
  add_environment(def.shell.environment, components);
  if (!def.native_version.empty())
    components.push_back(text_component("version", def.native_version));
  return components;
}

std::string InputResolver::unit_name(const core::Run& run, core::UnitId unit) {
  return core::unit_name(run, unit);
}

const TaskDef* InputResolver::def_of(const core::Run& run, core::UnitId unit) {
  return core::def_of(run, unit);
}

uint64_t InputResolver::seed(const core::Run& run, core::UnitId unit, uint32_t rank) {
  const TaskDef* def = def_of(run, unit);
  std::string text(run.units[unit].key.view());
  text += def->seed;
  text += '/';
  text += std::to_string(rank);
  if (!def->cache) text += '/' + unit_name(run, unit);
  Digest digest = sha256(text);
  uint64_t seed = 0;
  for (int i = 0; i < 8; i++) seed = seed << 8 | digest.bytes[i];
  return seed;
}

Result<InputResolver::CachedValue*> InputResolver::cached(const Digest& digest) {
  auto found = values_.find(digest);
  if (found != values_.end()) return &found->second;
  std::string_view few = short_values_.find(digest);
  auto bytes = few.empty() ? read_blob_(digest) : Result<std::string>(std::string(few));
  FLOW_TRY(bytes);
  put(digest, *bytes);
  return &values_.at(digest);
}

Result<std::shared_ptr<const Value>> InputResolver::value(const Digest& digest) {
  auto stored = cached(digest);
  FLOW_TRY(stored);
  CachedValue& cached = **stored;
  if (cached.value) return cached.value;
  auto decoded = decode_value(cached.bytes);
  if (!decoded.ok()) {
    return environment_error(
        fmt::format("the stored value {} is damaged: {}", digest.hex(), decoded.error().message));
  }
  cached.value = std::make_shared<const Value>(std::move(*decoded));
  return cached.value;
}

void InputResolver::remember(const Digest& digest, std::string_view encoded) {
  if (!short_values_.put(digest, encoded)) put(digest, encoded);
}

void InputResolver::put(const Digest& digest, std::string_view encoded) {
  if (values_bytes_ > kValueCacheBytes) {
    values_.clear();
    values_bytes_ = 0;
  }
  auto [place, is_new] = values_.try_emplace(digest);
  if (!is_new) return;
  place->second.bytes = encoded;
  values_bytes_ += encoded.size() + kCachedValueBytes;
}

Result<std::shared_ptr<const Value>> InputResolver::result_of(const core::Run& run,
                                                              core::UnitId unit) {
  static const auto missing = std::make_shared<const Value>(Value::missing());
  if (run.units[unit].gives_missing) return missing;
  return value(run.units[unit].result);
}

Result<Value> InputResolver::list_with_places(const core::Run& run, core::UnitId map_unit) {
  std::vector<Value> items;
  for (core::UnitId instance : core::instances_of(run, map_unit)) {
    auto item = result_of(run, instance);
    FLOW_TRY(item);
    bool is_there = !(*item)->is_nil() && (*item)->kind() != Value::Kind::missing;
    items.push_back(is_there ? **item : Value::null());
  }
  return Value::list(std::move(items));
}

Result<Value> InputResolver::follow(const core::Run& run, const Ref& ref) {
  bool keeps_places = ref.keeps_places && !run.units[ref.node].gives_missing;
  Result<Value> whole = Value();
  if (keeps_places) {
    whole = list_with_places(run, ref.node);
    FLOW_TRY(whole);
  } else {
    auto result = result_of(run, ref.node);
    FLOW_TRY(result);
    whole = **result;
  }
  if (ref.path.empty()) return whole;
  auto part = value_at(*whole, ref.path);
  if (part.ok()) return part;
  if (names_optional_output(run, ref)) return optional_part(*whole, ref.path);
  return user_error(fmt::format("a part of the result of `{}` is missing: {}",
                                core::shown_name(run, ref.node), part.error().message));
}

bool InputResolver::is_service(const core::Run& run, core::UnitId unit) {
  const TaskDef* def = def_of(run, unit);
  return def != nullptr && def->kind == TaskKind::service;
}

void InputResolver::note_url(const core::Run& run, core::UnitId service) {
  core::UnitId own = run.unit_of(run.units[service].node);
  if (!core::is_replica_set(run, own)) own = service;
  urls_[run.id][own] = url_of(run.units[service]);
}

Value InputResolver::service_value(const core::Run& run, core::UnitId unit) const {
  const core::Unit& u = run.units[unit];
  bool has_failed = core::is_final(u.status) && u.status != core::UnitStatus::succeeded;
  if (has_failed) return Value::null();
  std::string url = core::is_replica_set(run, unit) ? url_of_replicas(run, unit) : url_of(u);
  if (auto known = urls_.find(run.id); url.empty() && known != urls_.end())
    if (auto last = known->second.find(unit); last != known->second.end()) url = last->second;
  return Value::map({{Value("url"), Value(url)}});
}

const Value& InputResolver::joined_value(const core::Run& run, core::UnitId unit) {
  const core::Unit& u = run.units[unit];
  const TaskNode& node = run.node(u.node);
  if (node.kind == NodeKind::when) {
    bool is_then = u.branch == core::Branch::then_branch;
    return is_then ? node.detail().then_value : node.detail().else_value;
  }
  const Value* calls = core::dynamic_value(run, unit);
  FLOW_CHECK(calls != nullptr);
  return *calls;
}

// Services may have moved since the value was gathered.
Result<Value> InputResolver::gather_again(const core::Run& run, const Ref& join,
                                          RunResult& result) {
  if (!core::is_map_unit(run, join.node)) {
    auto found = result.values.find(join.node);
    if (found != result.values.end()) return found->second;
    auto value = substitute(run, joined_value(run, join.node), &result);
    if (value.ok()) result.values.emplace(join.node, *value);
    return value;
  }
  std::vector<Value> items;
  for (core::UnitId instance : core::instances_of(run, join.node)) {
    bool is_missing = run.units[instance].gives_missing;
    auto item = is_missing ? Value::missing() : part_of_result(run, Ref{instance, {}}, result);
    FLOW_TRY(item);
    is_missing = item->kind() == Value::Kind::missing;
    if (is_missing && !join.keeps_places) continue;
    items.push_back(is_missing || item->is_nil() ? Value::null() : std::move(*item));
  }
  return Value::list(std::move(items));
}

Result<Value> InputResolver::part_of_result(const core::Run& run, const Ref& ref,
                                            RunResult& result) {
  if (is_service(run, ref.node)) return service_value(run, ref.node);
  if (run.units[ref.node].status != core::UnitStatus::succeeded) return Value::null();
  auto or_null = [](Result<Value> part) { return part.ok() ? part : Result<Value>(Value::null()); };
  if (result.joins.contains(ref.node) && result.depth < kJoinDepthMax) {
    result.depth++;
    auto whole = gather_again(run, ref, result);
    result.depth--;
    FLOW_TRY(whole);
    return or_null(value_at(*whole, ref.path));
  }
  auto whole = result_of(run, ref.node);
  FLOW_TRY(whole);  // a result that exists but cannot be read is not a missing part
  return or_null(follow(run, ref));
}

Result<Value> InputResolver::substitute(const core::Run& run, const Value& value,
                                        RunResult* result) {
  if (!has_ref(value)) return value;
  if (value.kind() == Value::Kind::ref) {
    const Ref& ref = value.as_ref();
    if (result != nullptr) return part_of_result(run, ref, *result);
    return is_service(run, ref.node) ? service_value(run, ref.node) : follow(run, ref);
  }
  Value::Table out;
  const Value::Table& table = value.as_table();
  out.list.reserve(table.list.size());
  size_t last = table.list.size();
  for (const Value& item : table.list) {
    auto replaced = substitute(run, item, result);
    FLOW_TRY(replaced);
    out.list.push_back(std::move(*replaced));
  }
  // A nil at the end of a list is not an item; one before it would leave a hole, so it becomes
  // flow.null.
  while (last > 0 && out.list[last - 1].is_nil()) last--;
  out.list.resize(last);
  for (Value& item : out.list) {
    if (item.is_nil()) item = Value::null();
  }
  for (const auto& [key, field] : table.fields) {
    auto replaced = substitute(run, field, result);
    FLOW_TRY(replaced);
    if (!replaced->is_nil()) out.fields.emplace_back(key, std::move(*replaced));
  }
  return Value(std::move(out));
}

Result<Value> InputResolver::item_of(const core::Run& run, core::UnitId instance) {
  const core::Unit& u = run.units[instance];
  FLOW_CHECK(u.instance >= 0);
  size_t index = static_cast<size_t>(u.instance);
  const Value& items = run.node(u.node).detail().items;
  if (items.kind() == Value::Kind::ref) {
    auto list = follow(run, items.as_ref());
    FLOW_TRY(list);
    return list->as_table().list[index];
  }
  auto item = substitute(run, items.as_table().list[index], nullptr);
  FLOW_TRY(item);
  return item->is_nil() ? Value::null() : std::move(*item);
}

Result<Value> InputResolver::argument_list(const core::Run& run, core::UnitId unit) {
  const TaskNode& node = run.node(run.units[unit].node);
  std::vector<Value> args;
  if (node.kind == NodeKind::map) {
    auto item = item_of(run, unit);
    FLOW_TRY(item);
    args.push_back(std::move(*item));
  }
  const Value written = node.args.value();
  if (written.kind() == Value::Kind::table) {
    for (const Value& arg : written.as_table().list) {
      auto value = substitute(run, arg, nullptr);
      FLOW_TRY(value);
      args.push_back(std::move(*value));
    }
  }
  // A nil argument is kept in its place: f(nil, 2) takes two.
  Value::Table table;
  table.list = std::move(args);
  return Value(std::move(table));
}

const Digest& InputResolver::def_digest(const core::Run& run, uint32_t index) {
  auto found = plan_digests_.find(run.plan.get());
  if (found == plan_digests_.end() || found->second.plan.lock() != run.plan) {
    std::erase_if(plan_digests_, [](const auto& each) { return each.second.plan.expired(); });
    PlanDigests added{run.plan, std::vector<Digest>(run.plan->defs.size())};
    found = plan_digests_.insert_or_assign(run.plan.get(), std::move(added)).first;
  }
  Digest& digest = found->second.of_defs[index];
  if (!digest.is_zero()) return digest;
  Sha256 hash;
  for (const KeyComponent& component : definition_components(run.plan->defs[index]))
    hash_component(hash, component);
  return digest = hash.finish();
}

// What most calls hold, values and whole results, is put together from bytes that are there.
Status InputResolver::append_argument(const core::Run& run, const Value& argument,
                                      std::string& out) {
  bool is_whole = argument.kind() == Value::Kind::ref && argument.as_ref().path.empty() &&
                  !argument.as_ref().keeps_places &&
                  !run.units[argument.as_ref().node].gives_missing;
  if (is_whole) {
    const Digest& result = run.units[argument.as_ref().node].result;
    std::string_view few = short_values_.find(result);
    if (!few.empty()) {
      out += few;
      return {};
    }
    auto stored = cached(result);
    FLOW_TRY(stored);
    out += (*stored)->bytes;
    return {};
  }
  auto value = substitute(run, argument, nullptr);
  FLOW_TRY(value);
  append_value(*value, out);
  return {};
}

namespace {

/// The encoded items of a list in which nothing is replaced: no handle, and no nil.
struct LiteralItems {
  size_t count = 0;
  std::string_view bytes;
};
std::optional<LiteralItems> literal_items(const EncodedValue& args) {
  std::string_view bytes = args.bytes();
  size_t at = 0;
  cbor::Head head;
  bool is_list = cbor::take_head(bytes, at, head) && head.major == cbor::kArray;
  bool is_literal = is_list && !args.holds_tag() &&
                    bytes.find(static_cast<char>(cbor::kUndefined)) == std::string_view::npos;
  if (!is_literal) return std::nullopt;
  return LiteralItems{static_cast<size_t>(head.argument), bytes.substr(at)};
}

}  // namespace

Result<std::string> InputResolver::arguments(const core::Run& run, core::UnitId unit) {
  const core::Unit& u = run.units[unit];
  if (u.resolved) {
    std::string_view short_arguments = short_arguments_.find(u.key);
    if (!short_arguments.empty()) return std::string(short_arguments);
  }
  const TaskNode& node = run.node(u.node);
  auto literal = literal_items(node.args);
  if (literal && node.kind != NodeKind::map) return std::string(node.args.bytes());
  if (literal) {
    auto item = item_of(run, unit);
    FLOW_TRY(item);
    std::string bytes;
    append_list_header(literal->count + 1, bytes);
    append_value(*item, bytes);
    bytes += literal->bytes;
    return bytes;
  }
  const Value written = node.kind == NodeKind::map ? Value() : node.args.value();
  if (written.kind() != Value::Kind::table) {
    auto args = argument_list(run, unit);
    FLOW_TRY(args);
    return encode_value(*args);
  }
  const std::vector<Value>& list = written.as_table().list;
  std::string bytes;
  append_list_header(list.size(), bytes);
  for (const Value& argument : list) FLOW_TRY(append_argument(run, argument, bytes));
  return bytes;
}

Result<Digest> InputResolver::key(const core::Run& run, core::UnitId unit) {
  auto bytes = arguments(run, unit);
  FLOW_TRY(bytes);
  std::string text(def_digest(run, run.node(run.units[unit].node).def).view());
  // Each level takes a byte at least; the list of the arguments is one.
  bool may_be_deep = bytes->size() > kTableDepthMax;
  bool may_differ = holds_tag(*bytes);  // otherwise the key has all of them
  if (!may_be_deep && !may_differ) {
    Digest key = sha256(text + *bytes);
    short_arguments_.put(key, *bytes);
    return key;
  }
  auto args = decode_value(*bytes);
  if (!args.ok()) {
    return environment_error(fmt::format("what `{}` takes as input is damaged: {}",
                                         core::shown_name(run, unit), args.error().message));
  }
  if (depth_of(*args) > kTableDepthMax + 1) {
    return user_error(
        fmt::format("`{}` is called with a table that is nested too deep: arguments may be nested "
                    "{} levels at most",
                    core::shown_name(run, unit), kTableDepthMax));
  }
  Digest key = sha256(text + (may_differ ? encode_value_for_key(*args) : *bytes));
  if (may_differ) remember_inputs(key, *args);
  return key;
}

void InputResolver::remember_inputs(const Digest& key, const Value& args) {
  std::vector<BlobInfo> contents = blobs_in(args);
  std::erase_if(contents, [](const auto& each) { return *each.size < kLargeBytes; });
  if (contents.empty()) return;
  if (contents.size() > kInputsOfOneMax) {
    std::ranges::sort(contents, std::greater(), [](const auto& each) { return *each.size; });
    contents.resize(kInputsOfOneMax);
  }
  if (inputs_.size() >= kInputsMax) inputs_.clear();
  inputs_[key] = std::move(contents);
}

const std::vector<BlobInfo>* InputResolver::inputs(const Digest& key) const {
  if (inputs_.empty()) return nullptr;
  auto found = inputs_.find(key);
  return found == inputs_.end() ? nullptr : &found->second;
}

namespace {

/// The argument as it is written in the script: a ref where it is a result. Null where it is not
/// known. `args` are those of the node.
const Value* written_argument(const TaskNode& node, const Value& args, size_t position) {
  if (node.kind == NodeKind::map) {
    if (position == 0)
      return node.detail().items.kind() == Value::Kind::ref ? &node.detail().items : nullptr;
    position--;
  }
  if (args.kind() != Value::Kind::table) return nullptr;
  const std::vector<Value>& list = args.as_table().list;
  return position < list.size() ? &list[position] : nullptr;
}

std::string origin_of(const core::Run& run, const Value* written) {
  if (written == nullptr || written->kind() != Value::Kind::ref) return "";
  return InputResolver::unit_name(run, written->as_ref().node);
}

/// "" if the definition has no name for it.
std::string argument_label(const TaskDef& def, size_t position) {
  bool has_command = def.kind == TaskKind::shell || !def.shell.command.empty();
  const std::vector<std::string>& names = has_command ? def.shell.args : def.parameters;
  size_t index = has_command ? position : position + 1;  // the first parameter of a function is ctx
  return index < names.size() ? fmt::format("argument `{}`", names[index]) : "";
}

}  // namespace

Result<std::vector<KeyComponent>> InputResolver::key_components(const core::Run& run,
                                                                core::UnitId unit) {
  auto args = argument_list(run, unit);
  FLOW_TRY(args);
  const TaskDef& def = *def_of(run, unit);
  const TaskNode& node = run.node(run.units[unit].node);
  std::vector<KeyComponent> components = definition_components(def);
  auto add = [&](std::string name, std::string label, const Value& arg, const Value* written) {
    components.push_back({std::move(name), sha256(encode_value_for_key(arg)), short_json(arg),
                          std::make_shared<const Value>(arg), std::move(label),
                          origin_of(run, written)});
  };
  const std::vector<Value>& list = args->as_table().list;
  const Value written_args = node.args.value();
  for (size_t position = 0; position < list.size(); position++) {
    const Value& arg = list[position];
    const Value* written = written_argument(node, written_args, position);
    std::string name = fmt::format("argument {}", position + 1);
    bool is_named = node.named_args && arg.kind() == Value::Kind::table;
    if (!is_named) {
      add(name, argument_label(def, position), arg, written);
      continue;
    }
    for (const auto& [key, field] : arg.as_table().fields) {
      std::string word = key.kind() == Value::Kind::string ? key.as_string() : to_json(key);
      const Value* part = written == nullptr ? nullptr : written->find(key);
      add(name + "." + word, fmt::format("argument `{}`", word), field, part);
    }
  }
  return components;
}

Result<std::string> InputResolver::why_missing(const core::Run& run, core::UnitId unit) {
  if (run.counts.ignored == 0) return std::string();
  const core::Unit& u = run.units[unit];
  const TaskNode& node = run.node(u.node);
  bool is_map = core::is_map_unit(run, unit);
  if (is_map) {
    if (node.detail().items.kind() != Value::Kind::ref) return std::string();
    auto list = follow(run, node.detail().items.as_ref());
    FLOW_TRY(list);
    if (list->kind() != Value::Kind::missing) return std::string();
  } else {
    TaskKind kind = def_of(run, unit)->kind;
    if (kind == TaskKind::lua || kind == TaskKind::dynamic) return std::string();
    auto args = argument_list(run, unit);
    FLOW_TRY(args);
    if (!holds_missing(*args)) return std::string();
  }
  core::UnitId source = kNoNode;
  auto look = [&](core::UnitId from) {
    if (source == kNoNode && run.units[from].gives_missing) source = from;
  };
  for_each_ref(node.args, look);
  if (u.instance >= 0 && node.detail().items.kind() == Value::Kind::table) {
    for_each_ref(node.detail().items.as_table().list[static_cast<size_t>(u.instance)], look);
  } else {
    for_each_ref(node.detail().items, look);
  }
  const char* what = is_map ? "its list" : "one of its arguments";
  if (source == kNoNode) {
    return fmt::format(
        "{} holds flow.missing, the result of a task whose failure is ignored: a Lua task can take "
        "it",
        what);
  }
  return fmt::format("{} is flow.missing: `{}` {}", what, core::shown_name(run, source),
                     core::is_ignored(run.units[source]) ? "failed, and its failure is ignored"
                                                         : "was skipped for the same reason");
}

Result<uint32_t> InputResolver::map_count(const core::Run& run, core::UnitId unit) {
  const TaskNode& node = run.node(run.units[unit].node);
  if (node.detail().items.kind() != Value::Kind::ref) {
    return static_cast<uint32_t>(node.detail().items.as_table().list.size());
  }
  auto list = map_items(run, unit);
  FLOW_TRY(list);
  return static_cast<uint32_t>(list->as_table().list.size());
}

Result<Value> InputResolver::map_items(const core::Run& run, core::UnitId unit) {
  const TaskNode& node = run.node(run.units[unit].node);
  FLOW_CHECK(node.detail().items.kind() == Value::Kind::ref);
  auto list = follow(run, node.detail().items.as_ref());
  FLOW_TRY(list);
  bool is_list = list->kind() == Value::Kind::table && list->as_table().fields.empty();
  if (!is_list) {
    return user_error(fmt::format(
        "`{}` maps over the result of `{}`, which is not a list but {}: return a list 1..n "
        "from `{}`, or map over the part that is one",
        node.name, core::shown_name(run, node.detail().items.as_ref().node), short_json(*list),
        core::shown_name(run, node.detail().items.as_ref().node)));
  }
  return list;
}

Result<bool> InputResolver::condition(const core::Run& run, core::UnitId unit) {
  const TaskNode& node = run.node(run.units[unit].node);
  if (node.detail().condition.kind() != Value::Kind::ref) return node.detail().condition.truthy();
  const Ref& ref = node.detail().condition.as_ref();
  auto whole = follow(run, Ref{ref.node, {}, ref.keeps_places});
  FLOW_TRY(whole);
  auto part = value_at(*whole, ref.path);
  return part.ok() && part->truthy();
}

Result<Value> InputResolver::gather(const core::Run& run, core::UnitId unit) {
  auto value = gather_any_depth(run, unit);
  FLOW_TRY(value);
  // Leaves depth for the values around it.
  if (depth_of(*value) <= kValueDepthMax / 2) return value;
  return user_error(fmt::format(
      "{} is nested deeper than {} tables",
      unit == kNoNode ? "the result" : "the value of `" + core::shown_name(run, unit) + "`",
      kValueDepthMax / 2));
}

Result<Value> InputResolver::gather_any_depth(const core::Run& run, core::UnitId unit) {
  if (unit == kNoNode) {
    RunResult parts{core::joins_of_services(run), {}, 0};
    auto result = substitute(run, run.plan->result, &parts);
    FLOW_TRY(result);
    return holds_missing(*result) ? missing_as_null(*result) : *result;
  }
  return substitute(run, joined_value(run, unit), nullptr);
}

}  // namespace flow
