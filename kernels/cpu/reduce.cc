// Many elements to one: sums and extremes along a dimension.
#include "kernels/cpu/reduce.hpp"

#include "kernels/cpu/walk.hpp"
#include "kernels/shared/types.hpp"

namespace flow::cpu {
namespace {

View without_last(View view) {
  view.shape.rank--;
  return view;
}

}  // namespace

void sum_last(const View& in, const View& out) {
  int last = in.rank() - 1;
  int64_t count = in.shape[last], step = in.strides[last];
  visit(in.dtype, [&](auto source) {
    using S = decltype(source);
    using Sum =
        std::conditional_t<std::is_integral_v<S> || std::is_same_v<S, Bool>, int64_t, double>;
    visit(out.dtype, [&](auto target) {
      using T = decltype(target);
      for_each_run<2>({without_last(in), out}, [&](auto at, auto stride, int64_t length) {
        for (int64_t i = 0; i < length; i++) {
          const S* from = reinterpret_cast<const S*>(at[0]) + i * stride[0];
          Sum sum = 0;
          for (int64_t j = 0; j < count; j++) {
            if constexpr (std::is_same_v<Sum, int64_t>) {
              sum = static_cast<int64_t>(static_cast<uint64_t>(sum) +
                                         static_cast<uint64_t>(convert<int64_t>(from[j * step])));
            } else {
              sum += convert<double>(from[j * step]);
            }
          }
          reinterpret_cast<T*>(at[1])[i * stride[1]] = convert<T>(sum);
        }
      });
    });
  });
}

void extreme_last(bool largest, const View& in, const View& value, const View& index) {
  int last = in.rank() - 1;
  int64_t count = in.shape[last], step = in.strides[last];
  FLOW_CHECK(count > 0 && value.dtype == in.dtype && index.dtype == DType::i64);
  visit_number(in.dtype, [&](auto source) {
    using S = decltype(source);
    for_each_run<3>({without_last(in), value, index}, [&](auto at, auto stride, int64_t length) {
      for (int64_t i = 0; i < length; i++) {
        const S* from = reinterpret_cast<const S*>(at[0]) + i * stride[0];
        int64_t best = 0;
        for (int64_t j = 1; j < count; j++) {
          S candidate = from[j * step], so_far = from[best * step];
          if (is_nan(so_far)) break;
          if (is_nan(candidate) || (largest ? candidate > so_far : candidate < so_far)) best = j;
        }
        reinterpret_cast<S*>(at[1])[i * stride[1]] = from[best * step];
        reinterpret_cast<int64_t*>(at[2])[i * stride[2]] = best;
      }
    });
  });
}

}  // namespace flow::cpu
