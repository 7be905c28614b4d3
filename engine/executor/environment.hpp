// The process's own environment: what getenv of a library finds, and what a program gets that is
// started without an explicit one (os.execute, io.popen, a library's own).
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

/// Other threads may call getenv at any time, so no array that `environ` has pointed to is changed:
/// a new one takes its place by one write of the pointer, and the old one is kept for a while. Used
/// by the main thread.
class ProcessEnvironment {
 public:
  using Variables = std::map<std::string, std::string>;

  /// Takes the environment that the process was started with.
  ProcessEnvironment();
  /// FLOW_SLOT, as the process was started with it.
  const std::string& slot() const { return slot_; }
  /// An attempt begins. Libraries in this process see `own`, then the run's variables, then what
  /// the process was started with to set them up, such as UCX_TLS. Costs next to nothing where the
  /// attempt before had the same.
  void begin(const std::shared_ptr<const Variables>& of_run, const Variables& own);
  /// Until its end the attempt has these and no others. The values of `kept` stay in memory as long
  /// as this process, since a library may remember where they are; those of `passing` do not.
  void show(const Variables& kept, const Variables& passing);
  /// Back to what the process was started with.
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
  std::shared_ptr<const Variables> of_run_;  // of the newest attempt, as is all of these
  Variables own_;
  std::unique_ptr<Block> block_, shown_;
  std::deque<std::unique_ptr<Block>> retired_;
};

ProcessEnvironment& process_environment();

}  // namespace flow
