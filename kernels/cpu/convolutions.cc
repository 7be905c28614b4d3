// Convolutions as matrix products: the image patches under the window become columns (im2col), for
// a range of output rows at a time.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/blas.hpp"
#include "kernels/cpu/compute_tensor.hpp"

namespace flow::cpu {
namespace {

constexpr int64_t kColumnBytes = 1 << 20;  // of columns at a time: stays in a cache

struct ConvolutionShapes {
  const Conv2d& options;
  int64_t images, channels, height, width;    // of x
  int64_t outputs, per_group, high, wide;     // of w: [outputs, per_group, high, wide]
  int64_t out_height, out_width, per_output;  // of out; outputs of a group

  ConvolutionShapes(const Conv2d& conv, const View& x, const View& w, const View& out)
      : options(conv),
        images(x.shape[0]),
        channels(x.shape[1]),
        height(x.shape[2]),
        width(x.shape[3]),
        outputs(w.shape[0]),
        per_group(w.shape[1]),
        high(w.shape[2]),
        wide(w.shape[3]),
        out_height(out.shape[2]),
        out_width(out.shape[3]),
        per_output(w.shape[0] / std::max<int64_t>(1, conv.groups)) {}
  int64_t window() const { return high * wide; }
  int64_t places() const { return out_height * out_width; }
  bool is_plain() const {  // the image is its own column matrix
    return high == 1 && wide == 1 && options.stride[0] == 1 && options.stride[1] == 1 &&
           options.padding[0] == 0 && options.padding[1] == 0;
  }
  /// Output rows whose columns, of `taken` channels, stay in a cache.
  int64_t rows_at_once(int64_t taken, int64_t size) const {
    int64_t row = std::max<int64_t>(1, taken * window() * out_width * size);
    return std::clamp<int64_t>(kColumnBytes / row, 1, std::max<int64_t>(1, out_height));
  }
};

// For one row of the output and column `kx` of the window: calls f(first x, first output, count,
// stride of x) for positions inside the image, and outside(first, count) for the others.
template <typename Inside, typename Outside>
void for_row(const ConvolutionShapes& shapes, int64_t kx, Inside inside, Outside outside) {
  int64_t stride = shapes.options.stride[1];
  int64_t offset = kx * shapes.options.dilation[1] - shapes.options.padding[1];
  // offset + i * stride in [0, width)
  int64_t first = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
  int64_t last = offset >= shapes.width ? 0 : (shapes.width - 1 - offset) / stride + 1;
  first = std::min(first, shapes.out_width);
  last = std::clamp(last, first, shapes.out_width);
  outside(0, first);
  inside(offset + first * stride, first, last - first, stride);
  outside(last, shapes.out_width - last);
}

// columns[(c, ky, kx), (oy, ox)] of channels of one image, rows oy of [top, bottom).
template <typename T>
void make_columns(const ConvolutionShapes& shapes, const T* x, int64_t taken, int64_t top,
                  int64_t bottom, T* columns) {
  const Conv2d& options = shapes.options;
  T* to = columns;
  for (int64_t c = 0; c < taken; c++) {
    for (int64_t ky = 0; ky < shapes.high; ky++) {
      for (int64_t kx = 0; kx < shapes.wide; kx++) {
        for (int64_t oy = top; oy < bottom; oy++, to += shapes.out_width) {
          int64_t y = oy * options.stride[0] + ky * options.dilation[0] - options.padding[0];
          if (y < 0 || y >= shapes.height) {
            std::fill(to, to + shapes.out_width, T(0));
            continue;
          }
          const T* row = x + (c * shapes.height + y) * shapes.width;
          for_row(
              shapes, kx,
              [&](int64_t from, int64_t first, int64_t count, int64_t stride) {
                if (stride == 1) {
                  std::copy(row + from, row + from + count, to + first);
                } else {
                  for (int64_t i = 0; i < count; i++) to[first + i] = row[from + i * stride];
                }
              },
              [&](int64_t first, int64_t count) {
                std::fill(to + first, to + first + count, T(0));
              });
        }
      }
    }
  }
}

// The reverse: columns are added to the pixels that they came from.
template <typename T>
void add_columns(const ConvolutionShapes& shapes, const T* columns, int64_t taken, int64_t top,
                 int64_t bottom, T* x) {
  const Conv2d& options = shapes.options;
  const T* from = columns;
  for (int64_t c = 0; c < taken; c++) {
    for (int64_t ky = 0; ky < shapes.high; ky++) {
      for (int64_t kx = 0; kx < shapes.wide; kx++) {
        for (int64_t oy = top; oy < bottom; oy++, from += shapes.out_width) {
          int64_t y = oy * options.stride[0] + ky * options.dilation[0] - options.padding[0];
          if (y < 0 || y >= shapes.height) continue;
          T* row = x + (c * shapes.height + y) * shapes.width;
          for_row(
              shapes, kx,
              [&](int64_t to, int64_t first, int64_t count, int64_t stride) {
                for (int64_t i = 0; i < count; i++) row[to + i * stride] += from[first + i];
              },
              [](int64_t, int64_t) {});
        }
      }
    }
  }
}

struct ConvolutionParts {
  int64_t count, stride;
  char* room;
  ConvolutionParts(Stream& stream, int64_t units, int64_t bytes)
      : count(std::max<int64_t>(1, std::min<int64_t>(stream.threads, units))),
        stride((bytes + 255) / 256 * 256 + 256) {
    room = stream.scratch.take<char>(count * stride);
  }
  template <typename F>
  void run(Stream& stream, int64_t units, F f) const {
    if (units == 0) return;
    parallel_for(stream.threads, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; part++)
        for (int64_t i = units * part / count; i < units * (part + 1) / count; i++)
          f(i, room + part * stride);
    });
  }
};

int conv2d(Stream& stream, const Conv2d& options, const View& x, const View& w, const View* bias,
           const View& out) {
  if (!is_float(x.dtype)) return kUnsupported;
  ConvolutionShapes shapes(options, x, w, out);
  ArithmeticType kind = kind_of(x.dtype);
  auto size = static_cast<int64_t>(size_of_kind(kind));
  int64_t depth = shapes.per_group * shapes.window(), places = shapes.places();
  int64_t rows =
      shapes.is_plain() ? shapes.out_height : shapes.rows_at_once(shapes.per_group, size);
  if (shapes.images * options.groups < stream.threads)
    rows = std::min(
        rows, std::max<int64_t>(1, (shapes.out_height + stream.threads - 1) / stream.threads));
  rows = std::max<int64_t>(rows, 1);
  int64_t bands = (shapes.out_height + rows - 1) / rows;
  int64_t units = shapes.images * options.groups * bands;
  ComputeTensor from(stream, x, OperandAccess::read), weights(stream, w, OperandAccess::read),
      to(stream, out, OperandAccess::write);
  ConvolutionParts parts(stream, units,
                         shapes.is_plain() ? 0 : depth * rows * shapes.out_width * size);
  if (!from.fits() || !weights.fits() || !to.fits() || parts.room == nullptr) return kNeedsScratch;
  int loaded = prepare_products();
  if (loaded != kDone) return loaded;
  from.begin(stream);
  weights.begin(stream);
  parts.run(stream, units, [&](int64_t unit, char* room) {
    int64_t top = unit % bands * rows, bottom = std::min(top + rows, shapes.out_height);
    int64_t group = unit / bands % options.groups, image = unit / bands / options.groups;
    int64_t pixels =
        (image * shapes.channels + group * shapes.per_group) * shapes.height * shapes.width;
    int64_t count = (bottom - top) * shapes.out_width;
    char* made = to.at<char>() + ((image * shapes.outputs + group * shapes.per_output) * places +
                                  top * shapes.out_width) *
                                     size;
    Matrix columns{room, std::max<int64_t>(1, count), false};
    if (shapes.is_plain()) {
      columns = {from.at<char>() + (pixels + top * shapes.width) * size,
                 std::max<int64_t>(1, places), false};
    } else if (kind == kF64) {
      make_columns(shapes, from.at<double>() + pixels, shapes.per_group, top, bottom,
                   reinterpret_cast<double*>(room));
    } else {
      make_columns(shapes, from.at<float>() + pixels, shapes.per_group, top, bottom,
                   reinterpret_cast<float*>(room));
    }
    Matrix matrix{weights.at<char>() + group * shapes.per_output * depth * size,
                  std::max<int64_t>(1, depth), false};
    multiply(kind, matrix, columns, shapes.per_output, count, depth, 1, 0, made, places);
    for (int64_t i = 0; bias != nullptr && i < shapes.per_output; i++) {
      int64_t at = group * shapes.per_output + i;
      double more = visit_float(bias->dtype, [&](auto type) {
        return convert<double>(bias->at<decltype(type)>()[at * bias->strides[0]]);
      });
      char* row = made + i * places * size;
      loops().scale[kind](row, 1, more, row, count);
    }
  });
  return to.end(stream);
}

int conv2d_backward_input(Stream& stream, const Conv2d& options, const View& grad, const View& w,
                          const View& dx) {
  if (!is_float(grad.dtype)) return kUnsupported;
  ConvolutionShapes shapes(options, dx, w, grad);
  ArithmeticType kind = kind_of(dx.dtype);
  auto size = static_cast<int64_t>(size_of_kind(kind));
  int64_t depth = shapes.per_group * shapes.window(), places = shapes.places();
  // A unit of work is a range of channels of one image, so only one thread adds to a pixel.
  int64_t pictures = shapes.images * options.groups;
  int64_t cuts = pictures >= stream.threads
                     ? 1
                     : std::min<int64_t>(std::max<int64_t>(1, shapes.per_group), stream.threads);
  int64_t most = (shapes.per_group + cuts - 1) / std::max<int64_t>(1, cuts);
  int64_t rows = shapes.rows_at_once(std::max<int64_t>(1, most), size);
  int64_t units = pictures * cuts;
  ComputeTensor grads(stream, grad, OperandAccess::read), weights(stream, w, OperandAccess::read),
      to(stream, dx, OperandAccess::write);
  ConvolutionParts parts(stream, units, most * shapes.window() * rows * shapes.out_width * size);
  if (!grads.fits() || !weights.fits() || !to.fits() || parts.room == nullptr) return kNeedsScratch;
  int loaded = prepare_products();
  if (loaded != kDone) return loaded;
  grads.begin(stream);
  weights.begin(stream);
  parts.run(stream, units, [&](int64_t unit, char* room) {
    int64_t cut = unit % cuts, group = unit / cuts % options.groups,
            image = unit / cuts / options.groups;
    int64_t channel = shapes.per_group * cut / cuts, past = shapes.per_group * (cut + 1) / cuts,
            taken = past - channel;
    int64_t plane = shapes.height * shapes.width;
    int64_t pixels = (image * shapes.channels + group * shapes.per_group + channel) * plane;
    std::memset(to.at<char>() + pixels * size, 0, static_cast<size_t>(taken * plane * size));
    Matrix matrix{
        weights.at<char>() + (group * shapes.per_output * depth + channel * shapes.window()) * size,
        std::max<int64_t>(1, depth), true};
    for (int64_t top = 0; top < shapes.out_height; top += rows) {
      int64_t bottom = std::min(top + rows, shapes.out_height);
      int64_t count = (bottom - top) * shapes.out_width;
      Matrix grad_data{
          grads.at<char>() + ((image * shapes.outputs + group * shapes.per_output) * places +
                              top * shapes.out_width) *
                                 size,
          std::max<int64_t>(1, places), false};
      multiply(kind, matrix, grad_data, taken * shapes.window(), count, shapes.per_output, 1, 0,
               room, count);
      if (kind == kF64) {
        add_columns(shapes, reinterpret_cast<double*>(room), taken, top, bottom,
                    to.at<double>() + pixels);
      } else {
        add_columns(shapes, reinterpret_cast<float*>(room), taken, top, bottom,
                    to.at<float>() + pixels);
      }
    }
  });
  return to.end(stream);
}

int conv2d_backward_weight(Stream& stream, const Conv2d& options, const View& grad, const View& x,
                           const View& dw) {
  if (!is_float(grad.dtype)) return kUnsupported;
  ConvolutionShapes shapes(options, x, dw, grad);
  ArithmeticType kind = kind_of(dw.dtype);
  auto size = static_cast<int64_t>(size_of_kind(kind));
  int64_t depth = shapes.per_group * shapes.window(), places = shapes.places();
  // A unit of work is a range of channels, or else outputs, of a group; it sums over all images in
  // order.
  int64_t threads = std::max(stream.threads, 1), cuts = 1, output_cuts = 1;
  if (options.groups < threads) {
    cuts = std::min(std::max<int64_t>(1, shapes.per_group), threads);
    if (cuts < threads && options.groups * cuts < threads)
      output_cuts = std::min(std::max<int64_t>(1, shapes.per_output), (threads + cuts - 1) / cuts);
  }
  int64_t most = (shapes.per_group + cuts - 1) / cuts;
  int64_t rows = shapes.rows_at_once(std::max<int64_t>(1, most), size);
  int64_t units = options.groups * cuts * output_cuts;
  ComputeTensor grads(stream, grad, OperandAccess::read), from(stream, x, OperandAccess::read),
      to(stream, dw, OperandAccess::write);
  ConvolutionParts parts(stream, units, most * shapes.window() * rows * shapes.out_width * size);
  if (!grads.fits() || !from.fits() || !to.fits() || parts.room == nullptr) return kNeedsScratch;
  int loaded = prepare_products();
  if (loaded != kDone) return loaded;
  grads.begin(stream);
  from.begin(stream);
  parts.run(stream, units, [&](int64_t unit, char* room) {
    int64_t output_cut = unit % output_cuts, cut = unit / output_cuts % cuts,
            group = unit / output_cuts / cuts;
    int64_t channel = shapes.per_group * cut / cuts,
            taken = shapes.per_group * (cut + 1) / cuts - channel;
    int64_t output = shapes.per_output * output_cut / output_cuts,
            made = shapes.per_output * (output_cut + 1) / output_cuts - output;
    char* out = to.at<char>() +
                ((group * shapes.per_output + output) * depth + channel * shapes.window()) * size;
    for (int64_t i = 0; i < made; i++)
      std::memset(out + i * depth * size, 0, static_cast<size_t>(taken * shapes.window() * size));
    for (int64_t image = 0; image < shapes.images; image++) {
      int64_t pixels = (image * shapes.channels + group * shapes.per_group + channel) *
                       shapes.height * shapes.width;
      for (int64_t top = 0; top < shapes.out_height; top += rows) {
        int64_t bottom = std::min(top + rows, shapes.out_height);
        int64_t count = (bottom - top) * shapes.out_width;
        if (kind == kF64) {
          make_columns(shapes, from.at<double>() + pixels, taken, top, bottom,
                       reinterpret_cast<double*>(room));
        } else {
          make_columns(shapes, from.at<float>() + pixels, taken, top, bottom,
                       reinterpret_cast<float*>(room));
        }
        Matrix grad_data{
            grads.at<char>() +
                ((image * shapes.outputs + group * shapes.per_output + output) * places +
                 top * shapes.out_width) *
                    size,
            std::max<int64_t>(1, places), false};
        multiply(kind, grad_data, {room, std::max<int64_t>(1, count), true}, made,
                 taken * shapes.window(), count, 1, 1, out, depth);
      }
    }
  });
  return to.end(stream);
}

}  // namespace

void add_convolution_rows(Kernels& table) {
  table.conv2d = conv2d;
  table.conv2d_backward_input = conv2d_backward_input;
  table.conv2d_backward_weight = conv2d_backward_weight;
}

}  // namespace flow::cpu
