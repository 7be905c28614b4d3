// A worker's spool over several lives, each of which ends with its files truncated, changed, lost
// or extended. It returns what was stored under a number. After an extension it may return
// anything, but continues numbering without a gap.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "engine/cluster/worker/report_spool.hpp"
#include "tests/fuzz/input.hpp"

namespace {

namespace fs = std::filesystem;
using flow::cluster::ReportSpool;
using flow::fuzz::Input;

/// A folder of this process, in memory if possible.
struct Folder {
  Folder() {
    std::string name = fs::is_directory("/dev/shm") ? "/dev/shm/" : fs::temp_directory_path() / "";
    name += "flow-fuzz-spool-XXXXXX";
    FLOW_CHECK(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  std::string path;
};

std::vector<fs::path> files_in(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class Story {
 public:
  explicit Story(std::string folder) : folder_(std::move(folder)) {
    for (const fs::path& file : files_in(folder_)) fs::remove(file);
    open();
  }

  void play(Input& in) {
    switch (in.byte() % 8) {
      case 0:
      case 1:
        return append(in.bytes(in.byte()));
      case 2:
        return spool_->acknowledge(spool_->last() - std::min<uint64_t>(spool_->last(), in.byte()));
      case 3:
        return read_all();
      case 4:
        return open();
      case 5:
        return change(in);
      case 6:
        return add(in);
      case 7:
        if (fs::path* file = any_file(in)) fs::remove(*file);
        return open();
    }
  }

 private:
  /// As the next process does after this one has ended.
  void open() {
    std::string id = spool_ ? spool_->id() : "";
    spool_.reset();
    auto opened = ReportSpool::open(folder_);
    FLOW_CHECK(opened.ok());
    spool_ = std::move(*opened);
    read_all();
  }
  void append(std::string bytes) {
    uint64_t before = spool_->last(), number = spool_->append(bytes);
    FLOW_CHECK(number == before + 1);
    put_in_[number] = std::move(bytes);
  }
  void read_all() {
    spool_->rewind();
    uint64_t next = 0;
    while (auto entry = spool_->next()) {
      FLOW_CHECK(next == 0 || entry->number == next);
      next = entry->number + 1;
      auto known = put_in_.find(entry->number);
      if (!was_added_to_) FLOW_CHECK(known != put_in_.end() && known->second == entry->bytes);
    }
    FLOW_CHECK(next == 0 || next == spool_->last() + 1);
  }
  fs::path* any_file(Input& in) {
    files_ = files_in(folder_);
    return files_.empty() ? nullptr : &files_[in.byte() % files_.size()];
  }
  void change(Input& in) {
    fs::path* file = any_file(in);
    size_t at = in.byte() | in.byte() << 8;
    uint8_t how = in.byte();
    if (file == nullptr) return;
    std::string bytes = bytes_of(*file);
    if (bytes.empty()) return;
    if (how == 0)
      bytes.resize(at % bytes.size());
    else
      bytes[at % bytes.size()] = static_cast<char>(bytes[at % bytes.size()] ^ how);
    write(*file, bytes);
    open();
  }
  void add(Input& in) {
    was_added_to_ = true;
    uint64_t number = in.number();
    std::string name = std::to_string(number);
    name.insert(0, 20 - name.size(), '0');
    fs::path* other = any_file(in);
    bool is_copy = in.byte() % 2 == 0 && other != nullptr;
    std::string bytes = is_copy ? bytes_of(*other) : in.bytes(in.byte());
    write(folder_ + "/" + name + ".reports", bytes);
    open();
  }

  const std::string folder_;
  std::unique_ptr<ReportSpool> spool_;
  std::map<uint64_t, std::string> put_in_;
  std::vector<fs::path> files_;
  bool was_added_to_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  Input in(data, size);
  Story story(folder.path);
  for (int steps = 0; !in.is_empty() && steps < 40; steps++) story.play(in);
  return 0;
}
