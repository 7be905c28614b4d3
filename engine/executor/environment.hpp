// The environment of the executor process: libraries read it with getenv, and programs inherit it
// if they are started without an explicit one (os.execute, io.popen, by a library).
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace flow {

/// Other threads may call getenv at any time, so an array that `environ` has pointed to never
/// changes: one write of the pointer installs a new array, and old ones are kept for a while. Used
/// by the main thread.
class ProcessEnvironment {
 public:
  using Variables = std::map<std::string, std::string>;

  /// Copies the environment with which the process was started.
  ProcessEnvironment();
  /// The FLOW_SLOT with which the process was started.
  const std::string& slot() const { return slot_; }
  /// Begins an attempt. Libraries in this process see `own`, then the run's variables, then those
  /// of the original environment that configure libraries, such as UCX_TLS. Cheap if the previous
  /// attempt had the same variables.
  void begin(const std::shared_ptr<const Variables>& of_run, const Variables& own);
  /// Replaces the environment for this attempt. Values of `kept` stay in memory as long as the
  /// process, because a library may keep pointers to them; values of `passing` do not.
  void show(const Variables& kept, const Variables& passing);
  /// Restores the original environment.
  void reset();

 private:
  struct Block {
    std::vector<std::string> texts;
    std::vector<char*> entries;
  };
  std::unique_ptr<Block> block_of(const Variables& kept, const Variables& passing);
  void retire(std::unique_ptr<Block> block);

  char** const first_;
  std::string slot_;
  Variables of_libraries_;
  std::unordered_set<std::string> kept_;
  std::shared_ptr<const Variables> of_run_;  // of the newest attempt, like the following members
  Variables own_;
  std::unique_ptr<Block> block_, shown_;
  std::deque<std::unique_ptr<Block>> retired_;
};

ProcessEnvironment& process_environment();

}  // namespace flow
