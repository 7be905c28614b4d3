#include "engine/fetch/parallel_transfers.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/base/engine_thread.hpp"

namespace flow::fetch {

Status transfer_pieces(size_t count, const FetchOptions& options, const TransferPiece& transfer) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> is_stopped = false;
  std::mutex mutex;
  Status first_error;
  FetchOptions stoppable = options;
  stoppable.check_running = [&]() -> Status {
    if (is_stopped) return Error{ErrorKind::interrupted, "another piece failed"};
    return options.check_running();
  };
  auto work = [&] {
    HttpClient client(stoppable);
    for (size_t at = next++; at < count && !is_stopped; at = next++) {
      Status done = transfer(at, client, stoppable);
      std::lock_guard lock(mutex);
      if (!done.ok() && !is_stopped.exchange(true)) first_error = std::move(done);
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min<size_t>(options.connections, count); i++)
    threads.push_back(engine_thread(work));
  work();
  for (std::thread& thread : threads) thread.join();
  return first_error;
}

}  // namespace flow::fetch
