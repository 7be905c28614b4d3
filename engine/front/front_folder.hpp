// The folder of a front: its lock, log and socket.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "flow/result.hpp"

namespace flow {

/// Lines with the time before them. Thread-safe.
class FrontLog {
 public:
  static constexpr int64_t kBytesMax = 16 << 20;  // then the file is renamed to NAME.1

  /// Appends to `name` in the folder; also what the process writes to stdout and stderr goes there.
  FrontLog(int folder, std::string name);
  void write(const std::string& line);

 private:
  void open();

  const int folder_;
  const std::string name_;
  std::mutex mutex_;
  int64_t bytes_ = 0;
};

/// Holds the folder for one process: the kernel releases the lock at its end.
class FrontFolder {
 public:
  static constexpr const char *kSocket = "front.sock", *kLog = "front.log", *kPid = "front.pid",
                              *kPort = "front.port", *kGrpcPort = "front.grpc_port",
                              *kTraffic = "front.traffic", *kGate = "front.gate",
                              *kLock = "front.lock", *kAccessLog = "access.log";

  /// Makes the folder (mode 0700), and locks it. Null if another process holds it.
  static Result<std::unique_ptr<FrontFolder>> open(const std::string& path);
  ~FrontFolder();
  FrontFolder(const FrontFolder&) = delete;
  FrontFolder& operator=(const FrontFolder&) = delete;

  int descriptor() const { return folder_; }
  std::string path_of(const char* name) const { return path_ + "/" + name; }
  /// Removes the socket, the process id and the weights, at the end.
  void clear() const;

 private:
  FrontFolder(std::string path, int folder, int lock)
      : path_(std::move(path)), folder_(folder), lock_(lock) {}

  const std::string path_;
  const int folder_, lock_;
};

}  // namespace flow
