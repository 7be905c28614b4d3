// Copies results to S3: `flow get -o s3://BUCKET/PREFIX` and `flow run --out`.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace flow {

/// Copies a result into the folder and returns the paths that it wrote. Throws Failed.
using ExportToFolder = std::function<std::vector<std::string>(const std::string& folder)>;

/// If `target` is a path, calls `to_folder` with it and returns the result. If it is
/// s3://BUCKET/PREFIX, calls `to_folder` with a temporary folder, uploads its files to the objects
/// PREFIX/PATH and returns their URLs. Objects that have the content already are not sent again.
/// Unfinished uploads of large files are remembered in `state_dir`/uploads and continued by the
/// next call; "": not remembered. S3's settings are those of this process's environment. Throws
/// Failed.
std::vector<std::string> export_to_target(const std::string& target, const std::string& state_dir,
                                          const ExportToFolder& to_folder);

/// Throws Failed (user) if export_to_target() cannot accept this URL: it is not one of S3, or the
/// settings of S3 are invalid. Sends nothing.
void check_upload_target(const std::string& url);

}  // namespace flow
