// A blob from the other side of a connection: frames of any bytes are read without a fault, and a
// stored blob matches its digest.
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/blobs/blob_file.hpp"
#include "engine/client/blob_frames.hpp"
#include "engine/client/messages.hpp"

namespace {

using namespace flow;

const std::string kContent = "the content that is asked for";

/// Returns the input, and then reports a closed connection.
class InputLink final : public EngineConnection {
 public:
  explicit InputLink(std::string_view input) : input_(input) {}
  void shut_down() override {}
  std::string requester(std::string_view said) const override { return std::string(said); }

 private:
  bool write(std::string_view) override { return true; }
  bool read(char* to, size_t size, const std::optional<Deadline>&) override {
    if (input_.size() < size) return false;
    std::memcpy(to, input_.data(), size);
    input_.remove_prefix(size);
    return true;
  }
  std::string_view input_;
};

const std::string& folder() {
  static const struct Folder {
    std::string path = "/dev/shm/flow-fuzz-receive-" + random_name();
    Folder() { FLOW_CHECK(make_dirs(path + "/objects").ok()); }
    ~Folder() { std::filesystem::remove_all(path); }
  } own;
  return own.path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  InputLink link({reinterpret_cast<const char*>(data), size});
  const Digest digest = sha256(kContent);
  const std::string path = blob_path(folder(), digest);
  bool is_kept = receive_blob<ServerReply>(link, digest, folder()).ok();
  FLOW_CHECK(is_kept == std::filesystem::exists(path));
  if (!is_kept) return 0;
  auto kept = read_file(path);
  FLOW_CHECK(kept.ok() && *kept == kContent);
  std::filesystem::remove(path);
  return 0;
}
