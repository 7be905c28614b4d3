// Copying, casting and filling.
#include "kernels/cpu/copy.hpp"

#include <cstring>

#include "kernels/cpu/walk.hpp"
#include "kernels/shared/types.hpp"

namespace flow::cpu {

void copy(const View& from, const View& to) {
  FLOW_CHECK(from.shape == to.shape);
  if (from.count() == 0) return;
  if (from.dtype == to.dtype && is_dense(from) && is_dense(to)) {
    std::memcpy(to.data, from.data, to.bytes());
    return;
  }
  visit(from.dtype, [&](auto source) {
    visit(to.dtype, [&](auto target) {
      using S = decltype(source);
      using T = decltype(target);
      for_each_run<2>({from, to}, [](auto at, auto stride, int64_t length) {
        const S* in = reinterpret_cast<const S*>(at[0]);
        T* out = reinterpret_cast<T*>(at[1]);
        for (int64_t i = 0; i < length; i++) out[i * stride[1]] = convert<T>(in[i * stride[0]]);
      });
    });
  });
}

namespace {

template <typename Number>
void fill_with(const View& to, Number value) {
  visit(to.dtype, [&](auto target) {
    using T = decltype(target);
    T element = convert<T>(value);
    for_each_run<1>({to}, [element](auto at, auto stride, int64_t length) {
      T* out = reinterpret_cast<T*>(at[0]);
      for (int64_t i = 0; i < length; i++) out[i * stride[0]] = element;
    });
  });
}

template <typename Number>
Number first_as(const View& view) {
  Number number{};
  visit(view.dtype, [&](auto source) { number = convert<Number>(*view.at<decltype(source)>()); });
  return number;
}

}  // namespace

void fill(const View& to, double value) { fill_with(to, value); }
void fill(const View& to, int64_t value) { fill_with(to, value); }

void gather_rows(const View& from, const int64_t* rows, const View& to) {
  View source = from.rank() > 0 ? narrow(from, 0, 0, from.shape[0] > 0 ? 1 : 0) : from;
  View target = narrow(to, 0, 0, to.shape[0] > 0 ? 1 : 0);
  int64_t width = static_cast<int64_t>(dtype_size(from.dtype));
  for (int64_t i = 0; i < to.shape[0]; i++) {
    source.data = from.data + rows[i] * from.strides[0] * width;
    target.data = to.data + i * to.strides[0] * width;
    copy(source, target);
  }
}

double first_as_double(const View& view) { return first_as<double>(view); }
int64_t first_as_integer(const View& view) { return first_as<int64_t>(view); }

}  // namespace flow::cpu
