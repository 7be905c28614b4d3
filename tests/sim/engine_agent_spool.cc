#include "tests/sim/engine_agent_spool.hpp"

#include <utility>

namespace flow::sim {

namespace {

constexpr uint32_t kDiskIsFull = 15;  // one in so many writes
constexpr uint32_t kCrashInWrite = 120;
constexpr uint32_t kFullMsMax = 1'000;

}  // namespace

class SimSpoolFolder::File final : public cluster::SpoolFile {
 public:
  File(SimSpoolFolder& folder, std::shared_ptr<Content> content)
      : folder_(folder), content_(std::move(content)) {}

  uint64_t size() const override { return content_->bytes.size(); }

  Result<std::string> read(uint64_t offset, size_t size) const override {
    if (offset + size > content_->bytes.size())
      return environment_error("the simulated file is shorter");
    return content_->bytes.substr(offset, size);
  }

  Status write(uint64_t offset, std::string_view bytes) override {
    bool is_full = folder_.is_full();
    bool has_crashed = folder_.world_.strikes(FaultKind::worker_death, kCrashInWrite);
    size_t written = bytes.size();
    if (is_full || has_crashed)
      written = folder_.world_.random.below(static_cast<uint32_t>(bytes.size() + 1));
    std::string& all = content_->bytes;
    all.resize(std::max<size_t>(all.size(), offset + written));
    all.replace(offset, written, bytes.substr(0, written));
    if (has_crashed) throw WorkerCrash();
    if (is_full) return folder_.no_space();
    return {};
  }

  Status truncate(uint64_t size) override {
    if (!folder_.has_space() && folder_.world_.random.one_in(4)) return folder_.no_space();
    content_->bytes.resize(size);
    return {};
  }

 private:
  SimSpoolFolder& folder_;
  const std::shared_ptr<Content> content_;
};

bool SimSpoolFolder::is_full() {
  if (!has_space()) return true;
  if (!world_.strikes(FaultKind::spool, kDiskIsFull)) return false;
  world_.note("the disk of a spool is full");
  full_until_ = world_.now() + world_.random.below(kFullMsMax);
  return true;
}

void SimSpoolFolder::cut_power() {
  boots_++;
  for (auto file = files_.begin(); file != files_.end();) {
    Content& content = *file->second;
    if (content.is_synced) {
      ++file;
    } else if (world_.random.one_in(3)) {
      file = files_.erase(file);
    } else {
      content.bytes.resize(world_.random.below(static_cast<uint32_t>(content.bytes.size() + 1)));
      ++file;
    }
  }
}

Result<std::vector<std::string>> SimSpoolFolder::names() {
  std::vector<std::string> names;
  for (const auto& [name, content] : files_) names.push_back(name);
  return names;
}

Result<std::unique_ptr<cluster::SpoolFile>> SimSpoolFolder::open(const std::string& name) {
  auto file = files_.find(name);
  if (file == files_.end()) return environment_error("there is no simulated file " + name);
  return std::unique_ptr<cluster::SpoolFile>(std::make_unique<File>(*this, file->second));
}

Result<std::unique_ptr<cluster::SpoolFile>> SimSpoolFolder::create(const std::string& name) {
  if (is_full()) return no_space();
  auto& content = files_[name];
  content = std::make_shared<Content>();
  return std::unique_ptr<cluster::SpoolFile>(std::make_unique<File>(*this, content));
}

Status SimSpoolFolder::replace(const std::string& name, std::string_view content) {
  if (is_full()) return no_space();
  files_[name] = std::make_shared<Content>(Content{std::string(content), true});
  return {};
}

}  // namespace flow::sim
