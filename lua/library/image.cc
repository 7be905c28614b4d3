// flow.image: a tensor as an image, gray [height, width] or color [height, width, 3].
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>

#include "kernels/shared/types.hpp"
#include "lua/state/arguments.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

constexpr int64_t kSideMax = 65535;
constexpr int64_t kPixelsMax = int64_t{1} << 28;

struct Image {
  int64_t height, width, channels;
  std::string pixels;
};

// u8 unchanged; floats from 0 (black) to 1.
Image read_image(lua_State* L, int index, const char* function) {
  const kernels::View& view = check_tensor(L, index, "the image");
  bool gray = view.rank() == 2, color = view.rank() == 3 && view.shape[2] == 3;
  bool fits = (gray || color) && view.shape[0] > 0 && view.shape[1] > 0 &&
              view.shape[0] <= kSideMax && view.shape[1] <= kSideMax &&
              view.shape[0] * view.shape[1] <= kPixelsMax;
  if (!fits || (view.dtype != DType::u8 && !kernels::is_float(view.dtype)))
    raise(L, fmt::format(
                 "{} draws a tensor [height, width] (gray) or [height, width, 3] (color) of u8 "
                 "or of floats from 0 to 1, with sides of 1..{}, not {}",
                 function, kSideMax, describe(view)));
  Image picture{view.shape[0], view.shape[1], gray ? 1 : 3, {}};
  picture.pixels.resize(static_cast<size_t>(view.count()));
  if (view.dtype == DType::u8) {
    copy_view(view, kernels::dense(DType::u8, view.shape, picture.pixels.data()));
    return picture;
  }
  kernels::View floats = as_dense(L, view, DType::f32);
  for (size_t i = 0; i < picture.pixels.size(); i++) {
    float value = floats.at<float>()[i];
    float clamped = std::isnan(value) ? 0 : std::clamp(value, 0.0f, 1.0f);
    picture.pixels[i] = static_cast<char>(static_cast<uint8_t>(std::lround(clamped * 255)));
  }
  lua_pop(L, 1);
  return picture;
}

std::string big_endian(uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>((number >> shift) & 255);
  return bytes;
}

std::string chunk(const std::string& type, const std::string& content) {
  std::string body = type + content;
  uLong sum = crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian(static_cast<uint32_t>(content.size())) + body +
         big_endian(static_cast<uint32_t>(sum));
}

std::string deflated(const std::string& content) {
  uLongf size = compressBound(content.size());
  std::string out(size, '\0');
  int code = compress2(reinterpret_cast<Bytef*>(out.data()), &size,
                       reinterpret_cast<const Bytef*>(content.data()), content.size(), 6);
  FLOW_CHECK(code == Z_OK);
  out.resize(size);
  return out;
}

// PNG (RFC 2083): eight bits per sample, no filter, one compressed block.
std::string png_of(const Image& picture) {
  auto row = static_cast<size_t>(picture.width * picture.channels);
  std::string scanlines;
  scanlines.reserve((row + 1) * static_cast<size_t>(picture.height));
  for (size_t at = 0; at < picture.pixels.size(); at += row) {
    scanlines += '\0';  // no filter
    scanlines.append(picture.pixels, at, row);
  }
  std::string header = big_endian(static_cast<uint32_t>(picture.width)) +
                       big_endian(static_cast<uint32_t>(picture.height));
  header += {8, static_cast<char>(picture.channels == 1 ? 0 : 2), 0, 0, 0};
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("IDAT", deflated(scanlines)) +
         chunk("IEND", "");
}

std::string ppm_of(const Image& picture) {  // P5 is gray, P6 color
  return fmt::format("P{}\n{} {}\n255\n", picture.channels == 1 ? 5 : 6, picture.width,
                     picture.height) +
         picture.pixels;
}

int draw(lua_State* L, const char* function, std::string (*encode)(const Image&)) {
  std::string path = check_path(L, 1, function);
  require_task(L, function);
  write_output(L, path, function, "wb", encode(read_image(L, 2, function)));
  return 0;
}

int png(lua_State* L) { return draw(L, "flow.image.png", png_of); }
int ppm(lua_State* L) { return draw(L, "flow.image.ppm", ppm_of); }

}  // namespace

const luaL_Reg kImageFunctions[] = {{"png", png}, {"ppm", ppm}, {nullptr, nullptr}};

}  // namespace flow::lua
