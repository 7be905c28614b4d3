// The folder of a spool and its files, as ReportSpool uses them. A simulator has one whose writes
// fail, and which loses what a crash would.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"

namespace flow::cluster {

/// An open file of a spool. One thread at a time.
class SpoolFile {
 public:
  virtual ~SpoolFile() = default;
  virtual uint64_t size() const = 0;
  /// Exactly `size` bytes from `offset` on; an error if the file is shorter.
  virtual Result<std::string> read(uint64_t offset, size_t size) const = 0;
  /// Not synced: what is written outlives the process, but not a crash of the machine. After an
  /// error any part of `bytes` may be in the file.
  virtual Status write(uint64_t offset, std::string_view bytes) = 0;
  virtual Status truncate(uint64_t size) = 0;
};

/// One thread at a time. Names are those of files in the folder, without a path.
class SpoolFolder {
 public:
  virtual ~SpoolFolder() = default;
  /// Creates the folder if there is none.
  virtual Result<std::vector<std::string>> names() = 0;
  virtual Result<std::unique_ptr<SpoolFile>> open(const std::string& name) = 0;
  /// An empty file, also if there was one.
  virtual Result<std::unique_ptr<SpoolFile>> create(const std::string& name) = 0;
  /// Atomically and durably: after a crash the file has the old content or the new.
  virtual Status replace(const std::string& name, std::string_view content) = 0;
  virtual void remove(const std::string& name) = 0;
  /// Differs after each start of the machine.
  virtual std::string boot_id() const = 0;
};

std::shared_ptr<SpoolFolder> open_spool_folder(const std::string& dir);

}  // namespace flow::cluster
