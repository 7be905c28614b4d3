// flow.safetensors: named tensors in a file format of many frameworks. Loading maps the file.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "engine/base/files.hpp"
#include "engine/blobs/mapped_file.hpp"
#include "engine/blobs/safetensors.hpp"
#include "engine/value/utf8.hpp"
#include "lua/state/arguments.hpp"
#include "lua/tensor/tensor_bytes.hpp"

namespace flow::lua {
namespace {

struct SafetensorsFile {
  Bytes content;
  SafetensorsHeader header;
};

SafetensorsFile open_file(lua_State* L, const char* function) {
  std::string path = check_path(L, 1, function);
  require_task(L, function);
  SafetensorsFile opened;
  std::string problem;
  {
    auto content = map_file(path);
    auto header = content.ok() ? read_safetensors(**content, (*content)->size())
                               : Result<SafetensorsHeader>(content.error());
    if (header.ok()) {
      opened = {std::move(*content), std::move(*header)};
      return opened;
    }
    problem =
        content.ok() ? fmt::format("{}: {}", path, header.error().message) : header.error().message;
  }
  raise(L, fmt::format("{}: {}", function, problem));
}

void push_metadata(lua_State* L, const SafetensorsHeader& header) {
  lua_createtable(L, 0, static_cast<int>(std::min<size_t>(header.metadata.size(), 1u << 20)));
  for (const auto& [name, text] : header.metadata) {
    push_text_value(L, name);
    push_text_value(L, text);
    lua_rawset(L, -3);
  }
}

// ---- load

// The tensors that the second argument selects: all, those with a name prefix, or a list.
std::vector<const SafetensorsEntry*> chosen(lua_State* L, const SafetensorsHeader& header) {
  constexpr const char* kFunction = "flow.safetensors.load";
  std::vector<const SafetensorsEntry*> found;
  if (lua_isnoneornil(L, 2) || lua_type(L, 2) == LUA_TSTRING) {
    std::string_view prefix =
        lua_isnoneornil(L, 2) ? std::string_view() : check_text_argument(L, 2, kFunction);
    for (const SafetensorsEntry& tensor : header.tensors) {
      if (tensor.name.starts_with(prefix)) found.push_back(&tensor);
    }
    return found;
  }
  if (lua_type(L, 2) != LUA_TTABLE)
    raise(L, fmt::format("{} takes a list of names or a prefix of names, not {}", kFunction,
                         describe(L, 2)));
  std::vector<std::string> names;
  for (const SafetensorsEntry& tensor : header.tensors) names.push_back(tensor.name);
  for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(L, 2)); i++) {
    lua_rawgeti(L, 2, i);
    std::string name(check_text_argument(L, -1, kFunction));
    lua_pop(L, 1);
    auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) {
      std::string near = nearest_name(name, names);
      raise(L, fmt::format(
                   "{}: the file has no tensor `{}`{}; flow.safetensors.header lists those that "
                   "it has",
                   kFunction, name, near.empty() ? "" : " (did you mean `" + near + "`?)"));
    }
    found.push_back(&header.tensors[static_cast<size_t>(at - names.begin())]);
  }
  return found;
}

// Narrow integers become the next wider type, as in flow.data.npy.
template <typename From, typename To>
std::string widened(std::string_view from) {
  std::string out(from.size() / sizeof(From) * sizeof(To), '\0');
  for (size_t i = 0; i < from.size() / sizeof(From); i++) {
    From narrow;
    std::memcpy(&narrow, from.data() + i * sizeof narrow, sizeof narrow);
    auto wide = static_cast<To>(narrow);
    std::memcpy(out.data() + i * sizeof wide, &wide, sizeof wide);
  }
  return out;
}

void push_foreign(lua_State* L, const SafetensorsEntry& tensor, const kernels::Shape& shape,
                  const Bytes& bytes) {
  const std::string& type = tensor.foreign_type;
  DType dtype = type == "U32" ? DType::i64 : DType::i32;
  std::string content;
  if (type == "I8") {
    content = widened<int8_t, int32_t>(*bytes);
  } else if (type == "I16") {
    content = widened<int16_t, int32_t>(*bytes);
  } else if (type == "U16") {
    content = widened<uint16_t, int32_t>(*bytes);
  } else if (type == "U32") {
    content = widened<uint32_t, int64_t>(*bytes);
  } else {
    raise(L, fmt::format(
                 "flow.safetensors.load: `{}` has the type {}, which tensors do not have: name "
                 "the tensors to load, without it, or convert it where the file was "
                 "written",
                 to_utf8(tensor.name), to_utf8(type)));
  }
  push_bytes(L, dtype, shape, Bytes(std::make_shared<std::string>(std::move(content))));
}

// flow.safetensors.load(path [, names or prefix]) -> tensors by name, metadata
int load(lua_State* L) {
  constexpr const char* kFunction = "flow.safetensors.load";
  lua_settop(L, 2);
  SafetensorsFile file = open_file(L, kFunction);
  lua_newtable(L);
  for (const SafetensorsEntry* tensor : chosen(L, file.header)) {
    if (tensor->shape.size() > static_cast<size_t>(kernels::kRankMax))
      raise(L, fmt::format("{}: `{}` has {} dimensions; a tensor has at most {}", kFunction,
                           tensor->name, tensor->shape.size(), kernels::kRankMax));
    kernels::Shape shape;
    for (int64_t size : tensor->shape) shape.push(size);
    push_text_value(L, tensor->name);
    Bytes bytes = file.content.part(tensor->begin, tensor->end - tensor->begin);
    if (tensor->foreign_type.empty()) {
      push_bytes(L, tensor->dtype, shape, bytes);
    } else {
      push_foreign(L, *tensor, shape, bytes);
    }
    lua_rawset(L, -3);
  }
  push_metadata(L, file.header);
  return 2;
}

// flow.safetensors.header(path) -> { name = { dtype, shape } }, metadata
int read_header(lua_State* L) {
  SafetensorsFile file = open_file(L, "flow.safetensors.header");
  lua_newtable(L);
  for (const SafetensorsEntry& tensor : file.header.tensors) {
    push_text_value(L, tensor.name);
    lua_createtable(L, 0, 2);
    if (tensor.foreign_type.empty()) {
      lua_pushstring(L, dtype_name(tensor.dtype));
    } else {
      push_text_value(L, tensor.foreign_type);
    }
    lua_setfield(L, -2, "dtype");
    lua_createtable(L, static_cast<int>(tensor.shape.size()), 0);
    lua_Integer dim = 0;
    for (int64_t size : tensor.shape) {
      lua_pushinteger(L, size);
      lua_rawseti(L, -2, ++dim);
    }
    lua_setfield(L, -2, "shape");
    lua_rawset(L, -3);
  }
  push_metadata(L, file.header);
  return 2;
}

// ---- save

std::string name_at_key(lua_State* L, const char* what) {
  if (lua_type(L, -2) != LUA_TSTRING)
    raise(L,
          fmt::format("flow.safetensors.save: {} are a table by name, and {} is not a name: write "
                      "{{ weight = x }}",
                      what, describe(L, -2)));
  size_t size;
  const char* text = lua_tolstring(L, -2, &size);
  return {text, size};
}

// flow.safetensors.save(path, { name = tensor } [, { name = text }])
int save(lua_State* L) {
  constexpr const char* kFunction = "flow.safetensors.save";
  lua_settop(L, 3);
  std::string path = check_path(L, 1, kFunction);
  require_task(L, kFunction);
  check_list(L, 2, kFunction);
  SafetensorsHeader header;
  std::vector<std::pair<std::string, Bytes>> contents;
  lua_pushnil(L);
  while (lua_next(L, 2)) {
    std::string name = name_at_key(L, "tensors");
    const tensors::Tensor* x = test_object(L, -1);
    if (x == nullptr)
      raise(L,
            fmt::format("{}: `{}` is a tensor, not {}", kFunction, to_utf8(name), describe(L, -1)));
    std::vector<int64_t> shape;
    for (int dim = 0; dim < x->rank(); dim++) shape.push_back(x->size(dim));
    header.tensors.push_back({name, x->dtype(), std::move(shape)});
    contents.emplace_back(std::move(name), shared_bytes(*x));
    lua_pop(L, 1);
  }
  if (!lua_isnil(L, 3)) {
    check_list(L, 3, kFunction);
    lua_pushnil(L);
    while (lua_next(L, 3)) {
      std::string name = name_at_key(L, "metadata");
      if (lua_type(L, -1) != LUA_TSTRING)
        raise(L, fmt::format("{}: the metadata `{}` is a string, not {}: write tostring(…) or "
                             "flow.json.encode(…)",
                             kFunction, to_utf8(name), describe(L, -1)));
      header.metadata.emplace_back(std::move(name), check_text_argument(L, -1, kFunction));
      lua_pop(L, 1);
    }
  }
  auto head = lay_out_safetensors(header);
  if (!head.ok()) raise(L, fmt::format("{}: {}", kFunction, head.error().message));
  std::sort(contents.begin(), contents.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string_view> pieces = {*head};
  for (const SafetensorsEntry& tensor : header.tensors) {
    auto content = std::lower_bound(
        contents.begin(), contents.end(), tensor.name,
        [](const auto& each, const std::string& name) { return each.first < name; });
    pieces.push_back(*content->second);
  }
  Status written = replace_file(path, pieces, true);
  if (!written.ok()) raise(L, fmt::format("{}: {}", kFunction, written.error().message));
  return 0;
}

}  // namespace

const luaL_Reg kSafetensorsFunctions[] = {{"load", protected_call<load>},
                                          {"save", protected_call<save>},
                                          {"header", protected_call<read_header>},
                                          {nullptr, nullptr}};

}  // namespace flow::lua
