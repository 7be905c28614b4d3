// The simulated folder of a worker's spool: its writes fail or end with the process at any byte,
// and a power cut takes what was not synced.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/cluster/worker/spool_folder.hpp"
#include "tests/sim/engine_world.hpp"

namespace flow::sim {

/// Thrown where a worker's process ends in the middle of what it does.
struct WorkerCrash {};

class SimSpoolFolder final : public cluster::SpoolFolder {
 public:
  explicit SimSpoolFolder(World& world) : world_(world) {}

  /// After its process has ended: files lose a part of what was not synced.
  void cut_power();
  bool has_space() const { return full_until_ <= world_.now(); }

  Result<std::vector<std::string>> names() override;
  Result<std::unique_ptr<cluster::SpoolFile>> open(const std::string& name) override;
  Result<std::unique_ptr<cluster::SpoolFile>> create(const std::string& name) override;
  Status replace(const std::string& name, std::string_view content) override;
  void remove(const std::string& name) override { files_.erase(name); }
  std::string boot_id() const override { return "boot " + std::to_string(boots_); }

 private:
  class File;
  struct Content {
    std::string bytes;
    bool is_synced = false;
  };
  /// Whether the disk is full from now on, or still.
  bool is_full();
  Error no_space() const { return environment_error("the simulated disk of the worker is full"); }

  World& world_;
  std::map<std::string, std::shared_ptr<Content>> files_;
  uint32_t boots_ = 1;
  core::Time full_until_ = 0;
};

}  // namespace flow::sim
