// A tensor as text: type, shape, and the elements of a small one.
#include <fmt/format.h>

#include "kernels/shared/types.hpp"
#include "kernels/tensor/autograd.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

constexpr int64_t kItemsMax = 10;  // per dimension; further ones are "…"
constexpr int64_t kItemsShown = 8;

std::string text_of_element(const kernels::View& view) {
  return kernels::visit(view.dtype, [&](auto type) -> std::string {
    using T = decltype(type);
    T value = *view.at<T>();
    if constexpr (std::is_same_v<T, kernels::Bool>) return value.bits != 0 ? "true" : "false";
    if constexpr (std::is_integral_v<T>) return std::to_string(value);
    return fmt::format("{:.6g}", kernels::convert<double>(value));
  });
}

void write(const kernels::View& view, int depth, std::string& out) {
  if (view.rank() == 0) {
    out += text_of_element(view);
    return;
  }
  int64_t size = view.shape[0], shown = size > kItemsMax ? kItemsShown : size;
  const std::string between =
      view.rank() > 1 ? ",\n" + std::string(static_cast<size_t>(depth) + 1, ' ') : ", ";
  out += "{";
  for (int64_t i = 0; i < shown; i++) {
    if (i > 0) out += between;
    write(kernels::select(view, 0, i), depth + 1, out);
  }
  if (shown < size) out += between + "…";
  out += "}";
}

}  // namespace

int tensor_text(lua_State* L) {
  const tensors::Tensor& x = check_object(L, 1, "what is printed");
  std::string text = tensors::text_of(x);
  if (x.node()) {
    text += fmt::format(" computed by {}", x.node()->name());
  } else if (x.wants_gradient()) {
    text += " with gradient";
  }
  text += "\n";
  tensors::Tensor here = tensors::move(x.detached(), {});
  write(here.view(), 0, text);
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

}  // namespace flow::lua
