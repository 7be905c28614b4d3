#include "engine/query/upload_result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/copy_stop.hpp"
#include "engine/base/files.hpp"
#include "engine/base/remote_url.hpp"
#include "engine/base/temporary_folder.hpp"
#include "engine/base/throwing.hpp"
#include "engine/fetch/s3_upload.hpp"
#include "engine/submission/prepare.hpp"
#include "flow/digest.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

struct Settings {
  fetch::S3Config s3;
  fetch::FetchOptions options;
};

Settings read_settings(const std::string& url) {
  if (!is_s3_url(url))
    throw Failed(user_error(
        fmt::format("results can be copied to a folder or to `s3://BUCKET/PREFIX`, not to `{}`",
                    display_url(url))));
  value_or_throw(parse_s3_url(url.ends_with('/') ? url + "x" : url + "/x"));
  auto environment = current_environment();
  Settings settings{value_or_throw(fetch::read_s3_config(*environment)),
                    value_or_throw(fetch::read_fetch_options(*environment))};
  settings.options.check_running = [url] { return check_copies_running(url); };
  return settings;
}

/// Paths of all files below the folder, relative to it, sorted.
std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> paths;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) paths.push_back(fs::relative(entry.path(), folder).string());
  std::ranges::sort(paths);
  return paths;
}

}  // namespace

void check_upload_target(const std::string& url) { read_settings(url); }

std::vector<std::string> export_to_target(const std::string& target, const std::string& state_dir,
                                          const ExportToFolder& to_folder) {
  if (!is_remote_url(target)) return to_folder(target);
  Settings settings = read_settings(target);
  auto folder = value_or_throw(make_temporary_folder());
  to_folder(*folder);
  std::string records = state_dir.empty() ? "" : state_dir + "/uploads";
  if (!records.empty()) ok_or_throw(make_dirs(records));
  std::string prefix = target.ends_with('/') ? target : target + "/";
  std::vector<std::string> urls;
  for (const std::string& path : files_below(*folder)) {
    std::string url = prefix + path;
    std::string record = records.empty() ? "" : records + "/" + sha256(url).hex();
    fetch::UploadOrder order{value_or_throw(parse_s3_url(url)), *folder + "/" + path, record};
    value_or_throw(fetch::upload(order, settings.s3, settings.options));
    urls.push_back(std::move(url));
  }
  return urls;
}

}  // namespace flow
