#include "lua/graph/service_options.hpp"

#include <exception>
#include <filesystem>

#include "engine/base/size_units.hpp"
#include "engine/plan/wrapped_server.hpp"
#include "engine/value/byte_elements.hpp"
#include "lua/state/vm_context.hpp"

namespace flow::lua {

namespace {

constexpr lua_Integer kBatchMax = 1'000'000, kPortMax = 65'535, kMinRequestsMax = 1'000'000;

/// The path of a file as flow.file takes it: relative to the script's folder.
std::string file_path(const Option& option) {
  constexpr const char* kForm = "the path of a PEM file";
  std::string path = option.text(kForm);
  if (path.empty() || path.find('\0') != std::string::npos) option.wrong(kForm);
  return (std::filesystem::path(context(option.L).root) / path).lexically_normal().string();
}

std::string lower_case(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

std::vector<int64_t> read_shape(const Option& option) {
  lua_State* L = option.L;
  std::string form = fmt::format(
      "a datatype and a shape of 1 to {} sizes, {{ \"FP32\", {{ -1, 64 }} }}, in which -1 is any "
      "size",
      kTensorDimensionsMax);
  auto length = static_cast<lua_Integer>(lua_rawlen(L, option.index));
  std::vector<int64_t> shape;
  for (lua_Integer i = 1; i <= length && shape.size() <= kTensorDimensionsMax; i++) {
    lua_rawgeti(L, option.index, i);
    shape.push_back(lua_isinteger(L, -1) ? lua_tointeger(L, -1) : 0);
    lua_pop(L, 1);
  }
  lua_Integer entries = 0;
  lua_pushnil(L);
  while (lua_next(L, option.index)) {
    entries++;
    lua_pop(L, 1);
  }
  if (entries != length || !is_tensor_shape(shape)) option.reject(" must have " + form);
  return shape;
}

// { "FP32", { -1, 64 } }
TensorSpec read_tensor(const Option& entry, const std::string& name) {
  constexpr const char* kForm = "a datatype and a shape, { \"FP32\", { -1, 64 } }";
  lua_State* L = entry.L;
  need_table(entry, kForm);
  int entries = 0;
  lua_pushnil(L);
  while (lua_next(L, entry.index)) {
    entries++;
    lua_pop(L, 1);
  }
  bool has_both = lua_rawgeti(L, entry.index, 1) == LUA_TSTRING &&
                  lua_rawgeti(L, entry.index, 2) == LUA_TTABLE && entries == 2;
  if (lua_type(L, -2) == LUA_TSTRING && lua_type(L, -1) != LUA_TTABLE)
    entry.reject(
        " has no shape, which is a table of sizes: write for example { \"FP32\", { -1, 64 } }, in "
        "which -1 is any size");
  if (!has_both) entry.wrong(kForm);
  TensorSpec tensor{name, lua_tostring(L, -2), {}};
  if (!is_tensor_datatype(tensor.datatype)) {
    std::vector<std::string> known(kTensorDatatypes.begin(), kTensorDatatypes.end());
    known.emplace_back(kBytesDatatype);
    entry.reject(fmt::format(" has the unknown datatype `{}`{}; the datatypes are: {}",
                             tensor.datatype, did_you_mean(tensor.datatype, known), join(known)));
  }
  tensor.shape = read_shape(Option{L, entry.def, entry.name, lua_gettop(L)});
  lua_pop(L, 2);
  return tensor;
}

std::vector<TensorSpec> read_tensors(const Option& option) {
  std::string form =
      fmt::format("a table of 1 to {} tensors, {{ pixels = {{ \"FP32\", {{ -1, 64 }} }} }}",
                  kServiceTensorsMax);
  need_table(option, form.c_str());
  std::vector<TensorSpec> tensors;
  each_entry(option, {}, [&](const Option& entry, const std::string& name) {
    if (!is_tensor_name(name))
      option.reject(fmt::format(
          " has a tensor whose name is not 1 to {} bytes of UTF-8 without control characters",
          kTensorNameMax));
    tensors.push_back(read_tensor(entry, name));
    if (tensors.size() > kServiceTensorsMax) option.wrong(form);
  });
  if (tensors.empty())
    option.reject(fmt::format(" is empty: it must be {}, or not be given", form));
  return tensors;
}

/// The list in the table: percents of the traffic, which rise to 100.
std::vector<uint32_t> read_percents(const Option& option) {
  constexpr lua_Integer kAll = 100;
  constexpr const char* kForm =
      "{ 10, 50, 100, every = \"1m\", … }, whose percents are whole numbers of 1..100, each above "
      "the one before it";
  lua_State* L = option.L;
  std::vector<uint32_t> percents;
  auto length = static_cast<lua_Integer>(lua_rawlen(L, option.index));
  for (lua_Integer i = 1; i <= length; i++) {
    lua_rawgeti(L, option.index, i);
    lua_Integer least = percents.empty() ? 1 : lua_Integer{percents.back()} + 1;
    lua_Integer percent = lua_isinteger(L, -1) ? lua_tointeger(L, -1) : 0;
    if (percent < least || percent > kAll) option.reject(fmt::format(" must be {}", kForm));
    percents.push_back(static_cast<uint32_t>(percent));
    lua_pop(L, 1);
  }
  if (percents.empty() || percents.back() != kAll) percents.push_back(kAll);
  return percents;
}

std::string request_path(const Option& option) {
  constexpr const char* kForm = "the path of a request such as \"/health\"";
  std::string path = option.text(kForm);
  if (!is_request_path(path)) option.wrong(kForm);
  return path;
}

WarmupTensor warmup_texts(const Option& entry, const std::string& name) {
  auto value = read_snapshot(entry.L, entry.index, "the option `" + entry.name + "`");
  if (!value.ok()) entry.reject(": " + value.error().message);
  auto tensor = read_byte_tensor(*value);
  if (!tensor.ok()) entry.reject(" " + tensor.error().message);
  return {name, std::string(kBytesDatatype), std::move(tensor->shape), std::move(tensor->data)};
}

WarmupTensor warmup_tensor(const Option& entry, const std::string& name) {
  if (lua_type(entry.L, entry.index) == LUA_TTABLE) return warmup_texts(entry, name);
  if (!is_tensor(entry.L, entry.index))
    entry.wrong("a tensor such as flow.zeros { 1, 64 }, or a list of strings for BYTES");
  std::string why;
  try {
    Tensor tensor = read_tensor(entry.L, entry.index, TensorRead::unnamed);
    return {name, dtype_name(tensor.dtype), tensor.shape, std::string(*tensor.data)};
  } catch (const std::exception& failure) {
    why = failure.what();
  }
  entry.reject(": " + why);
}

const TaskObject& read_gate(const Option& entry) {
  const TaskObject* task = test_task(entry.L, entry.index);
  if (task != nullptr) return *task;
  constexpr const char* kForm =
      "a task, which is called with { version, step, requests, errors, p50, p99 }";
  if (lua_type(entry.L, entry.index) == LUA_TFUNCTION)
    entry.reject(
        fmt::format(" must be {}, but is a function: write flow.task(\"check\", function("
                    "ctx, measured) … end), and give that task",
                    kForm));
  if (lua_type(entry.L, entry.index) == LUA_TSTRING)
    entry.reject(
        fmt::format(" must be {}, but is the string \"{}\": give the task itself, gate = "
                    "check, not its name",
                    kForm, lua_tostring(entry.L, entry.index)));
  entry.wrong(kForm);
}

void read_canary_entry(const Option& entry, const std::string& name) {
  CanarySpec& canary = entry.def.service.canary;
  if (name == "every") {
    canary.every_ms = entry.duration_ms("1m");
    if (canary.every_ms == 0) entry.wrong("a duration above 0");
  } else if (name == "max_error_rate") {
    canary.max_error_rate = entry.number(0, 1, "a part of the requests, 0 to 1");
  } else if (name == "max_p99") {
    canary.max_p99_us = entry.duration_us("20ms");
    if (canary.max_p99_us == 0) entry.wrong("a duration above 0");
  } else if (name == "min_requests") {
    canary.min_requests = static_cast<uint32_t>(
        entry.integer(1, kMinRequestsMax, fmt::format("a whole number of 1..{}", kMinRequestsMax)));
  } else {
    canary.gate = read_gate(entry).def.name;
  }
}

}  // namespace

void read_port(const Option& option) {
  option.def.service.port =
      static_cast<uint16_t>(option.integer(0, kPortMax, "a port from 0 (any) to 65535"));
}

void read_listen(const Option& option) {
  constexpr const char* kForm =
      "a numeric address and a port, \"127.0.0.1:8080\", \"[::1]:8080\" or \"0.0.0.0:8080\"";
  auto address = parse_listen(option.text(kForm));
  if (!address) option.wrong(kForm);
  option.def.service.address = address->host;
  option.def.service.port = address->port;
}

void read_grpc(const Option& option) {
  option.def.service.grpc_port =
      static_cast<int32_t>(option.integer(0, kPortMax, "a port from 0 (any) to 65535"));
}

void read_tls(const Option& option) {
  need_table(option, "a table such as { cert = \"server.pem\", key = \"server.key\" }");
  TlsPaths& tls = option.def.service.tls;
  each_entry(option, {"cert", "clients", "key"}, [&](const Option& entry, const std::string& name) {
    (name == "cert" ? tls.certificate : name == "key" ? tls.key : tls.clients) = file_path(entry);
  });
  if (tls.certificate.empty() || tls.key.empty())
    option.reject(fmt::format(
        " has no `{}`: write {{ cert = \"server.pem\", key = \"server.key\" }}, and `clients = "
        "\"ca.pem\"` if clients must have certificates too",
        tls.certificate.empty() ? "cert" : "key"));
}

void read_keys(const Option& option) {
  lua_State* L = option.L;
  ServiceKeySource& keys = option.def.service.keys;
  if (const void* variable = test_object(L, option.index, &kEnvKey)) {
    keys.variable = static_cast<const char*>(variable);
    return;
  }
  const File* file = test_file(L, option.index);
  if (file == nullptr) {
    constexpr const char* kForm = "flow.env(\"API_KEYS\") or flow.file(\"keys.txt\")";
    if (lua_type(L, option.index) != LUA_TSTRING) option.wrong(kForm);
    option.reject(fmt::format(" must be {}: a key that the script contains is stored with each run",
                              kForm));  // which must not show it
  }
  keys.file = file->origin;
}

void read_hosts(const Option& option) {
  std::string form =
      fmt::format("a list of at most {} DNS names, {{ \"models.example\" }}", kServiceHostsMax);
  std::vector<std::string>& hosts = option.def.service.hosts;
  for (const std::string& given : text_list(option, form.c_str())) {
    std::string host = lower_case(given);
    if (!is_host_name(host))
      raise(option.L, fmt::format("task `{}`: `{}` in the option `hosts` is not a DNS name: write "
                                  "one such as \"models.example\", without scheme, port and `*`. "
                                  "Addresses need no entry",
                                  option.def.name, given));
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
    if (hosts.size() > kServiceHostsMax) option.wrong(form);
  }
}

void read_insecure(const Option& option) { option.def.service.is_insecure = option.boolean(); }

void read_batch(const Option& option) {
  need_table(option, "a table such as { max = 32 }");
  ServiceSpec& service = option.def.service;
  each_entry(option, {"max", "pad", "wait"}, [&](const Option& entry, const std::string& name) {
    if (name == "pad") {
      service.is_padded = entry.boolean();
    } else if (name == "max") {
      service.batch_max =
          static_cast<uint32_t>(entry.integer(1, kBatchMax, "a whole number from 1"));
    } else {
      service.batch_wait_us = entry.duration_us("2ms");
    }
  });
}

void read_inputs(const Option& option) { option.def.service.inputs = read_tensors(option); }

void read_service_outputs(const Option& option) {
  option.def.service.outputs = read_tensors(option);
}

void read_service_queue(const Option& option) {
  if (lua_type(option.L, option.index) == LUA_TSTRING)
    option.reject(
        " is how many requests may wait, such as 1024: a service is not submitted to a queue of "
        "Slurm");
  option.def.service.queue_max = static_cast<uint32_t>(option.integer(
      1, kServiceQueueMax,
      fmt::format("how many requests may wait, a whole number of 1..{}", kServiceQueueMax)));
}

void read_replicas(const Option& option) {
  uint32_t& replicas = option.def.service.replicas;
  ReplicaScaling& scaling = option.def.service.scaling;
  std::string form = fmt::format("a whole number of 1..{}", kReplicasMax);
  if (lua_type(option.L, option.index) != LUA_TTABLE) {
    replicas = static_cast<uint32_t>(option.integer(1, kReplicasMax, form));
    return;
  }
  lua_Integer min = 0, max = 0;
  each_entry(option, {"down_after", "max", "min", "target_queue", "up_after"},
             [&](const Option& entry, const std::string& name) {
               if (name == "min" || name == "max") {
                 (name == "min" ? min : max) = entry.integer(1, kReplicasMax, form);
                 return;
               }
               bool is_target = name == "target_queue";
               int64_t duration = is_target ? entry.duration_us("5ms") : entry.duration_ms("5s");
               if (duration == 0) entry.wrong("a duration above 0");
               (is_target            ? scaling.target_queue_us
                : name == "up_after" ? scaling.up_after_ms
                                     : scaling.down_after_ms) = duration;
             });
  if (min == 0)
    option.reject(" has no `min`, how many processes there are at least: write a number");
  if (max != 0 && max < min)
    option.reject(fmt::format(" has the min {} and the max {}, which must not be lower", min, max));
  replicas = static_cast<uint32_t>(min);
  if (max > min) scaling.max = static_cast<uint32_t>(max);
  if (scaling.max == 0) scaling = {};  // their number is fixed
}

void read_idempotent(const Option& option) { option.def.service.is_idempotent = option.boolean(); }

void read_access_log(const Option& option) {
  double& fraction = option.def.service.access_log;
  if (lua_type(option.L, option.index) == LUA_TBOOLEAN) {
    fraction = lua_toboolean(option.L, option.index) != 0 ? 1 : 0;
    return;
  }
  fraction = option.number(0, 1, "true, false, or the part of the requests that is logged, 0 to 1");
}

void read_rollover(const Option& option) {
  constexpr const char* kForm =
      "\"replace\", which stops the version before first; without the option both run meanwhile";
  if (lua_type(option.L, option.index) != LUA_TSTRING || option.text(kForm) != "replace")
    option.wrong(kForm);
  option.def.service.rolls_by_replacing = true;
}

void read_drain_delay(const Option& option) {
  option.def.service.drain_delay_ms = option.duration_ms("2s");
}

void read_canary(const Option& option) {
  need_table(option, "a table such as { 10, 50, 100, every = \"1m\" }");
  option.def.service.canary.percents = read_percents(option);
  each_entry(option, {"every", "gate", "max_error_rate", "max_p99", "min_requests"},
             read_canary_entry, static_cast<lua_Integer>(lua_rawlen(option.L, option.index)));
}

const TaskObject* gate_of_options(lua_State* L, int index) {
  int top = lua_gettop(L);
  const TaskObject* task = nullptr;
  if (lua_getfield(L, index, "canary") == LUA_TTABLE) {
    lua_getfield(L, -1, "gate");
    task = test_task(L, lua_gettop(L));
  }
  lua_settop(L, top);
  return task;
}

void read_warmup(const Option& option) {
  constexpr const char* kForm = "a table of tensors, { pixels = flow.zeros { 1, 64 } }";
  need_table(option, kForm);
  std::vector<WarmupTensor>& warmup = option.def.service.warmup;
  size_t size = 0;
  each_entry(option, {}, [&](const Option& entry, const std::string& name) {
    WarmupTensor tensor = warmup_tensor(entry, name);
    size += tensor.data.size();
    if (size > kWarmupBytesMax)
      option.reject(fmt::format(" has tensors of more than {} in all: write a smaller request",
                                format_bytes(kWarmupBytesMax)));
    warmup.push_back(std::move(tensor));
  });
  if (warmup.empty())
    option.reject(fmt::format(" is empty: it must be {}, or not be given", kForm));
}

void read_ready(const Option& option) { option.def.service.wrapped.ready = request_path(option); }

void read_health(const Option& option) { option.def.service.wrapped.health = request_path(option); }

void read_start_timeout(const Option& option) {
  int64_t& timeout = option.def.service.wrapped.start_timeout_ms;
  timeout = option.duration_ms("10m");
  if (timeout == 0) option.wrong("a duration above 0");
}

void check_service_options(lua_State* L, TaskDef& def, const std::vector<std::string>& given) {
  auto has = [&](const char* name) { return std::ranges::binary_search(given, name); };
  auto reject = [&](const std::string& clause) {
    raise(L, fmt::format("task `{}`: {}", def.name, clause));
  };
  if (has("listen") && has("port"))
    reject("the option `listen` has the port, so `port` can't be given too: remove it");
  if (def.service.grpc_port > 0 && def.service.grpc_port == def.service.port)
    reject(
        fmt::format("the option `grpc` has port {}, at which the service listens for HTTP: write "
                    "another port, or 0 for a free one",
                    def.service.grpc_port));
  if (!has("command")) {
    for (const char* name : {"args", "before", "conda", "container", "health", "modules", "ready",
                             "shell", "start_timeout", "venv"})
      if (has(name))
        reject(
            fmt::format("the option `{}` is for a server that a command starts, and there is no "
                        "`command`: remove it",
                        name));
    return;
  }
  for (const char* name : {"batch", "grpc", "inputs", "outputs", "warmup"})
    if (has(name))
      reject(
          fmt::format("the option `{}` is for a service with `predict`: requests to a server "
                      "that a command starts are passed on as they are. Remove it",
                      name));
  if (!has("ready"))
    reject(
        "a service with `command` needs the option `ready`, the path that its server answers with "
        "a status of 200 to 299 once it can serve: ready = \"/health\"");
  // What a request of another protocol changes is not known.
  if (!has("idempotent")) def.service.is_idempotent = false;
}

}  // namespace flow::lua
