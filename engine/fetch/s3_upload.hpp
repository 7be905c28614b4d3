// Uploads a file to S3: an object appears whole or not at all.
#pragma once
#include <string>

#include "engine/fetch/s3_client.hpp"
#include "flow/digest.hpp"

namespace flow::fetch {

struct UploadOrder {
  S3Location location;
  std::string path;    // of the file
  std::string record;  // file that remembers an unfinished multipart upload; "": none is resumed
};
enum class UploadOutcome : uint8_t { uploaded, already_there };

/// Files up to FetchOptions::range_bytes are one request; larger ones a multipart upload, which is
/// completed when the server has all parts. An object of the same size and content (metadata
/// `flow-sha256`) is not sent again. After an interruption the parts that the server has are not
/// sent again. Errors are environment errors.
Result<UploadOutcome> upload(const UploadOrder& order, const S3Config& config,
                             const FetchOptions& options);

}  // namespace flow::fetch
