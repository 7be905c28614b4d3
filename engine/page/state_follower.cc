#include "engine/page/state_follower.hpp"

#include <sys/stat.h>

#include <utility>

#include "engine/base/throwing.hpp"
#include "engine/store/lock.hpp"

namespace flow {

namespace {

constexpr std::chrono::minutes kOpenFor{1};  // an open database keeps deleted files on disk

/// 0: there is none.
uint64_t folder_of(const std::string& state_dir) {
  struct stat info {};
  return ::stat((state_dir + "/db").c_str(), &info) == 0 ? info.st_ino : 0;
}

}  // namespace

void StateFollower::close() {
  opened_ = {};
  is_open_ = false;
}

/// The records that were read stay: they do not depend on the files.
void StateFollower::open() {
  std::shared_ptr<core::State> followed = std::move(opened_.followed);
  opened_ = {};  // the old files are closed before the new ones are opened
  opened_ = open_state(options_);
  uint64_t folder = folder_of(opened_.dir);
  if (folder == folder_) opened_.followed = std::move(followed);
  folder_ = folder;
  opened_at_ = std::chrono::steady_clock::now();
}

void StateFollower::refresh() {
  const bool was_open = std::exchange(is_open_, false);
  try {
    bool is_usable = was_open && opened_.store != nullptr && folder_of(opened_.dir) == folder_ &&
                     opened_at_ + kOpenFor > std::chrono::steady_clock::now();
    if (is_usable) {
      opened_.had_writer = state_is_locked(opened_.dir);
      ok_or_throw(opened_.store->refresh());
    } else {
      open();
    }
    if (opened_.store != nullptr) {
      bool is_applied =
          opened_.followed != nullptr &&
          value_or_throw(apply_new_records(*opened_.store, *opened_.blobs, *opened_.followed));
      if (!is_applied)
        opened_.followed =
            std::make_shared<core::State>(value_or_throw(recover(*opened_.store, *opened_.blobs)));
    }
    is_open_ = true;
  } catch (...) {
    close();
    throw;
  }
}

}  // namespace flow
