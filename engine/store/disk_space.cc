#include "engine/store/disk_space.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include "engine/store/row_keys.hpp"

namespace flow {

namespace {

/// Keys of the journal and of snapshots are record numbers, big-endian.
uint64_t last_number(const Store& store, Family family, uint64_t from) {
  uint64_t number = 0;
  auto read = [&](std::string_view key, std::string_view) {
    if (key.size() != sizeof number) return true;
    number = 0;
    for (char byte : key) number = number << 8 | static_cast<uint8_t>(byte);
    return true;
  };
  // Rows that cannot be read are not counted.
  (void)store.scan(family, "", journal_key(from), read);
  return number;
}

std::string last_committed(const Store& store) {
  uint64_t snapshot = last_number(store, Family::snapshots, 0);
  uint64_t journal = last_number(store, Family::journal, snapshot);
  if (journal > snapshot)
    return fmt::format("The last committed batch starts at record {}", journal);
  return fmt::format("The last committed record is {}", snapshot);
}

}  // namespace

std::string free_space(const std::string& dir) {
  struct statvfs info {};
  if (statvfs(dir.c_str(), &info) != 0) return "unknown free space";
  return fmt::format("{} MiB free", info.f_bavail * info.f_frsize >> 20);
}

Error cannot_write(const Store& store, const std::string& dir, const std::string& what) {
  return environment_error(
      fmt::format("cannot write the state `{}`: {} ({}). Nothing that was committed is lost; the "
                  "engine stops here. {}. Free some space or repair the disk, then `flow resume`.",
                  dir, what, free_space(dir), last_committed(store)));
}

}  // namespace flow
