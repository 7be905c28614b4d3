// A tensor as a person reads it: type, shape, and the elements of a small one.
#include <fmt/format.h>

#include "kernels/cpu/copy.hpp"
#include "kernels/shared/types.hpp"
#include "lua/tensor.hpp"

namespace flow::lua {
namespace {

constexpr int64_t kItemsMax = 10;  // of one dimension, the rest is "…"
constexpr int64_t kItemsShown = 8;

std::string text_of_element(const kernels::View& view) {
  if (view.dtype == DType::boolean) return cpu::first_as_integer(view) != 0 ? "true" : "false";
  if (kernels::is_float(view.dtype)) return fmt::format("{:.6g}", cpu::first_as_double(view));
  return std::to_string(cpu::first_as_integer(view));
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
  const kernels::View& view = check_tensor(L, 1, "what is printed");
  std::string text = describe(view) + "\n";
  write(view, 0, text);
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

}  // namespace flow::lua
