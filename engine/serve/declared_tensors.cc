#include "engine/serve/declared_tensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/serve/oip_datatypes.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kShownMax = 256;  // bytes of a name in an error

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

bool is_shape(const std::vector<int64_t>& declared, const std::vector<int64_t>& shape) {
  return std::equal(declared.begin(), declared.end(), shape.begin(), shape.end(),
                    [](int64_t size, int64_t actual) { return size == -1 || size == actual; });
}

/// What is wrong with the tensors, named `kind`; "" if nothing is.
std::string problem(const char* kind, const std::vector<TensorSpec>& declared,
                    const Tensors& tensors) {
  if (declared.empty()) return "";
  for (const TensorSpec& spec : declared) {
    auto found = tensors.find(spec.name);
    if (found == tensors.end()) return fmt::format("the {} `{}` is missing", kind, spec.name);
    const InferTensor& tensor = found->second;
    std::string_view datatype = datatype_of(tensor).name;
    if (datatype != spec.datatype)
      return fmt::format("the {} `{}` is {}, but {} is declared", kind, spec.name, datatype,
                         spec.datatype);
    if (!is_shape(spec.shape, tensor.shape))
      return fmt::format("the {} `{}` has the shape {}, but {} is declared", kind, spec.name,
                         shape_text(tensor.shape), shape_text(spec.shape));
  }
  for (const auto& [name, tensor] : tensors) {
    auto named = [&name = name](const TensorSpec& spec) { return spec.name == name; };
    if (std::none_of(declared.begin(), declared.end(), named))
      return fmt::format("the {} `{}` is not declared", kind, cut_text(to_utf8(name), kShownMax));
  }
  return "";
}

/// Gives the tensor the datatype, if its elements can have it. What is wrong with them; "" if
/// nothing is.
std::string set_datatype(const std::string& name, InferTensor& tensor, const Datatype& datatype) {
  bool is_held = !has_bytes(tensor) && datatype.kind != Datatype::Kind::bytes &&
                 datatype.dtype == tensor.dtype;
  if (!is_held) return "";
  if (auto misfit = find_misfit(datatype, tensor.data))
    return fmt::format("the output `{}` holds {} at index {}, but {} holds {}", name, misfit->value,
                       misfit->index, datatype.name, datatype.values);
  tensor.datatype = &datatype;
  return "";
}

}  // namespace

std::string tensors_json(const std::vector<TensorSpec>& declared) {
  std::string json = "[";
  for (const TensorSpec& spec : declared) {
    if (json.size() > 1) json += ',';
    json += fmt::format(R"({{"name":{},"datatype":"{}","shape":{}}})", to_json(Value(spec.name)),
                        spec.datatype, shape_text(spec.shape));
  }
  return json + "]";
}

Status check_inputs(const std::vector<TensorSpec>& declared, const InferRequest& request) {
  std::string what = problem("input", declared, request.inputs);
  if (what.empty()) return {};
  return user_error(what);
}

bool have_rows(const std::vector<TensorSpec>& declared) {
  return std::ranges::all_of(declared, [](const TensorSpec& spec) {
    return !spec.shape.empty() && spec.shape.front() == -1;
  });
}

Status check_outputs(const std::vector<TensorSpec>& declared, Tensors& outputs) {
  std::string what;
  for (const TensorSpec& spec : declared) {
    auto found = outputs.find(spec.name);
    const Datatype* datatype = find_datatype(spec.datatype);
    if (what.empty() && found != outputs.end() && datatype != nullptr)
      what = set_datatype(spec.name, found->second, *datatype);
  }
  if (what.empty()) what = problem("output", declared, outputs);
  if (what.empty()) return {};
  return Error{ErrorKind::task, "`predict` returned something else than is declared: " + what};
}

}  // namespace flow
