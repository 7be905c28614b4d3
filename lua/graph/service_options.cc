#include "lua/graph/service_options.hpp"

#include <filesystem>

#include "engine/base/size_units.hpp"

namespace flow::lua {

namespace {

constexpr lua_Integer kBatchMax = 1'000'000, kPortMax = 65'535;

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
  each_entry(option, {"max", "wait"}, [&](const Option& entry, const std::string& name) {
    if (name == "max") {
      service.batch_max =
          static_cast<uint32_t>(entry.integer(1, kBatchMax, "a whole number from 1"));
    } else {
      service.batch_wait_us =
          entry.parsed(parse_duration_us(entry.text("a duration such as \"2ms\"")));
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
        " is how many requests may wait, such as 1024: a service runs on the engine's own machine, "
        "so no queue of Slurm takes it");
  option.def.service.queue_max = static_cast<uint32_t>(option.integer(
      1, kServiceQueueMax,
      fmt::format("how many requests may wait, a whole number of 1..{}", kServiceQueueMax)));
}

void check_service_options(lua_State* L, const TaskDef& def,
                           const std::vector<std::string>& given) {
  auto has = [&](const char* name) { return std::binary_search(given.begin(), given.end(), name); };
  if (has("listen") && has("port"))
    raise(L, fmt::format("task `{}`: the option `listen` has the port, so `port` can't be given "
                         "too: remove it",
                         def.name));
}

}  // namespace flow::lua
