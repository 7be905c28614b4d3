// The id is written before the file is locked, so that a locked file has its id.
#include "engine/client/request_marks.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/blobs/locked_file.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

std::string clients_folder(const std::string& state_dir) { return state_dir + "/clients"; }

}  // namespace

Result<std::unique_ptr<RequestMark>> RequestMark::make(const std::string& state_dir,
                                                       const std::string& request) {
  std::string folder = clients_folder(state_dir);
  FLOW_TRY(make_dirs(folder));
  while (true) {
    std::string path = folder + "/" + random_name();
    int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (descriptor < 0)
      return environment_error(
          fmt::format("cannot create `{}`, which keeps `flow gc` from removing this run while it "
                      "is used: {}",
                      path, std::strerror(errno)));
    std::unique_ptr<RequestMark> mark(new RequestMark(path, descriptor));
    if (!write_all(descriptor, request))
      return environment_error(fmt::format("cannot write `{}`: {}", path, std::strerror(errno)));
    if (lock_file(descriptor)) return mark;
  }
}

RequestMark::~RequestMark() {
  ::unlink(path_.c_str());
  ::close(descriptor_);
}

std::vector<std::string> live_requests(const std::string& state_dir) {
  std::vector<std::string> requests;
  std::error_code failed;
  for (fs::directory_iterator walk(clients_folder(state_dir), failed), end; !failed && walk != end;
       walk.increment(failed)) {
    std::string path = walk->path().string();
    if (!remove_abandoned(path)) continue;
    auto request = read_file(path);
    if (request.ok()) requests.push_back(std::move(*request));
  }
  return requests;
}

}  // namespace flow
