#include "engine/cluster/worker/failed_scratch.hpp"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/blobs/folder.hpp"

namespace flow::cluster {

namespace fs = std::filesystem;

namespace {

struct Leftover {
  int64_t changed_ns = 0;
  std::string path;
  auto operator<=>(const Leftover&) const = default;
};

std::vector<fs::path> folders_in(const fs::path& dir) {
  std::vector<fs::path> folders;
  std::error_code failed;
  for (fs::directory_iterator at(dir, failed), end; !failed && at != end; at.increment(failed)) {
    std::error_code ignored;
    if (fs::is_directory(fs::symlink_status(at->path(), ignored))) folders.push_back(at->path());
  }
  return folders;
}

}  // namespace

bool is_disk_low(const std::string& path) {
  struct statvfs info {};
  return ::statvfs(path.c_str(), &info) == 0 && info.f_bavail < info.f_blocks / kFreeParts;
}

std::optional<std::pair<uint32_t, uint32_t>> attempt_of_folder(const std::string& name) {
  auto number = [](std::string_view digits) -> std::optional<uint32_t> {
    uint32_t value = 0;
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    bool is_number = error == std::errc() && end == digits.data() + digits.size();
    return is_number ? std::optional(value) : std::nullopt;
  };
  std::string_view rest = name;
  size_t at = rest.rfind('@');
  if (at == std::string_view::npos) return std::nullopt;
  auto attempt = number(rest.substr(at + 1));
  rest = rest.substr(0, at);
  constexpr std::string_view kRank = "rank";
  size_t dot = rest.rfind('.');
  bool has_rank = dot != std::string_view::npos && rest.substr(dot + 1).starts_with(kRank) &&
                  number(rest.substr(dot + 1 + kRank.size()));
  if (has_rank) rest = rest.substr(0, dot);
  dot = rest.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  auto unit = number(rest.substr(dot + 1));
  if (!unit || !attempt) return std::nullopt;
  return std::pair(*unit, *attempt);
}

bool trim_failed_scratch(
    const std::string& scratch,
    const std::function<bool(const std::string& run, const std::string& name)>& is_in_use,
    size_t kept) {
  std::vector<Leftover> all;
  for (const fs::path& run : folders_in(scratch)) {
    if (run.filename() == "slots") continue;  // not the folder of a run
    for (const fs::path& attempt : folders_in(run)) {
      struct stat info {};
      bool is_left = !is_in_use(run.filename().string(), attempt.filename().string()) &&
                     ::lstat(attempt.c_str(), &info) == 0;
      if (is_left)
        all.push_back(
            {info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec, attempt.string()});
    }
  }
  std::sort(all.begin(), all.end());
  for (size_t i = 0; i < all.size(); i++) {
    if (all.size() - i <= kept && !is_disk_low(scratch)) return true;
    (void)remove_tree(all[i].path);  // on error the next failure tries again
    std::error_code failed;
    // Removes the run's folder if it is empty.
    fs::remove(fs::path(all[i].path).parent_path(), failed);
  }
  return false;
}

}  // namespace flow::cluster
