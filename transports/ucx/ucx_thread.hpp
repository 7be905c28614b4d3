// The one thread that uses UCX: it owns the context, the worker, every endpoint and listener.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flow/transport.hpp"
#include "transports/ucx/acceptor.hpp"
#include "transports/ucx/filter.hpp"
#include "transports/ucx/library.hpp"

namespace flow::ucx {

class Channel;
class UcxThread;

struct UcxThreadOptions : TransportOptions {
  bool is_loopback_only = false;
  bool is_rendezvous_always = false;
  bool is_ipv6_first = false;
};

class UcxThread : public std::enable_shared_from_this<UcxThread> {
 public:
  static Result<std::shared_ptr<UcxThread>> start(const UcxLibrary& ucx,
                                                  const UcxThreadOptions& options);
  ~UcxThread();
  UcxThread(const UcxThread&) = delete;
  UcxThread& operator=(const UcxThread&) = delete;

  /// Thread-safe. Runs `call` on the UCX thread, after earlier calls of this thread; immediately if
  /// this is the UCX thread. False, and `call` is not run, if the thread has ended.
  template <typename Call>
  bool run(Call call) {
    if (is_here() && !is_running_calls_ && waiting_.load(std::memory_order_relaxed) == 0) {
      call();
      return true;
    }
    return submit(std::function<void()>(std::move(call)));
  }
  /// The same, and waits until it has run.
  bool run_now(std::function<void()> call);
  /// Ends every link and then the thread. Not on the UCX thread.
  void stop();
  bool is_here() const { return std::this_thread::get_id() == here_.load(); }

  /// Set before start() returns.
  const UcxLibrary& ucx;
  const UcxThreadOptions options;
  bool takes_device_memory = false;

  // On the UCX thread only:
  ucp_worker_h worker = nullptr;
  Acceptor acceptor;
  /// UCX's own sockets accept connections from those machines from now on.
  Status trust(std::vector<Ip> ips);
  void add(const std::shared_ptr<Channel>& channel);
  void know(ucp_ep_h endpoint, Channel& channel) { by_endpoint_[endpoint] = &channel; }
  void forget(ucp_ep_h endpoint) { by_endpoint_.erase(endpoint); }
  /// Whether this is within a callback of UCX.
  bool is_progressing() const { return is_progressing_; }
  /// The channel's run_pending() is called in this iteration or the next.
  void schedule(Channel& channel);
  /// Its acknowledgment is sent before the thread sleeps.
  void add_pending_ack(Channel& channel);

 private:
  UcxThread(const UcxLibrary& library, const UcxThreadOptions& chosen);
  void run_thread(std::promise<Status>& began);
  Status open();
  Status open_context();
  Status open_worker();
  Status install_filter(const std::vector<int>& before);
  /// Closes every listening socket and waits for UCX's listeners to be destroyed: false if some
  /// remain after a second.
  bool end_listening();
  void close();
  bool turn();
  bool run_calls();
  bool progress();
  bool poll_acceptor(int64_t now_us);
  bool run_pending();
  void check_deadlines(int64_t now_us);
  bool send_pending_acks();
  void sleep(int64_t now_us);
  void end_all();
  bool submit(std::function<void()> call);
  static ucs_status_t on_eager(void* ucx_thread, const void* head, size_t head_size, void* data,
                               size_t size, const ucp_am_recv_param_t* param);
  static ucs_status_t on_put(void* ucx_thread, const void* head, size_t head_size, void* data,
                             size_t size, const ucp_am_recv_param_t* param);
  Channel* channel_of(const ucp_am_recv_param_t* param);

  std::mutex mutex_;
  std::vector<std::function<void()>> calls_;
  bool is_stopped_ = false;
  bool is_sleeping_ = false;
  std::atomic<size_t> waiting_{0};  // calls
  int wake_ = -1;                   // an eventfd

  ucp_context_h context_ = nullptr;
  int events_ = -1;  // of the worker
  SocketFilter socket_filter_;
  int64_t next_accept_poll_us_ = 0;
  std::unordered_map<Channel*, std::shared_ptr<Channel>> channels_;
  std::unordered_map<ucp_ep_h, Channel*> by_endpoint_;
  std::vector<std::shared_ptr<Channel>> abandoned_;
  std::vector<std::shared_ptr<Channel>> scheduled_;
  std::vector<std::shared_ptr<Channel>> pending_acks_;
  std::vector<std::function<void()>> running_;
  bool is_running_calls_ = false, is_progressing_ = false;
  bool is_ending_ = false;
  unsigned busy_turns_ = 0;
  int64_t active_us_ = 0;  // time of the last event; 0: just now
  int64_t next_check_us_ = 0;
  std::atomic<std::thread::id> here_{};
  std::thread thread_;
};

}  // namespace flow::ucx
