// The tensors and files in the result of a task, for display.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "flow/digest.hpp"
#include "flow/result.hpp"

namespace flow {

struct ResultPart {
  std::string path;  // "weights[1]"; "": the whole result
  // Of a tensor:
  std::string dtype;  // "f32"; "": it is a file
  std::vector<int64_t> shape;
  bool has_statistics = false;  // of its finite elements; false if it is too large, or has none
  double min = 0, max = 0, mean = 0;
  uint64_t not_finite = 0;  // NaN and infinite elements
  // Of a file:
  std::string name;
  std::string media;  // image/png or image/jpeg, by its first bytes; text/plain; "": another one
  std::string text;   // the begin of a text, whole characters
  // Of both:
  uint64_t bytes = 0;
  Digest digest;
};

constexpr size_t kResultPartsMax = 50;
/// Larger tensors have no statistics, and larger files no picture.
constexpr uint64_t kPartBytesMax = 32u << 20;
constexpr size_t kPartTextMax = 4096;

/// The first kResultPartsMax parts of the task's result; none while it has no result. Opens the
/// state for reading. `run` and `task` as of Reader::why(). Error (user) if one is unknown.
Result<std::vector<ResultPart>> result_parts(const std::string& state_dir, const std::string& run,
                                             const std::string& task);

struct Picture {
  std::string media, bytes;
};
/// The picture with this digest among the files of the result. Error (user) if there is none, or if
/// the file is neither PNG nor JPEG: a page never shows other files, which may contain scripts.
Result<Picture> result_picture(const std::string& state_dir, const std::string& run,
                               const std::string& task, const std::string& digest);

}  // namespace flow
