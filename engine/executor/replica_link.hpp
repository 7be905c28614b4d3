// A replica's connection to the front of its service: it joins, answers batches, and leaves.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "engine/protocol/front.pb.h"
#include "engine/serve/memory/front_memory.hpp"
#include "engine/serve/tensor_frames.hpp"
#include "flow/result.hpp"

namespace flow {

struct ReplicaOptions {
  std::string folder;  // of the front
  front::Join join;
  int64_t connect_ms = 10'000;  // within which the front must answer the first time
  /// Called with each URL that the front serves at: when the replica has joined, and when it has
  /// joined another front that has another URL.
  std::function<void(const std::string& url)> on_url;
  std::function<void(const std::string& line)> log;
  /// Frees the tensors that nothing refers to.
  std::function<void()> collect = {};
};

/// All functions but leave() and wake() are for one thread, on which also the callbacks run.
class ReplicaLink {
 public:
  /// An error of kind `user` is the fault of the request. The outputs may change after the next
  /// call. `parameters` is empty before.
  using Predict =
      std::function<Result<Tensors>(const BatchMessage& batch, ResponseParameters& parameters)>;

  explicit ReplicaLink(ReplicaOptions options);
  ~ReplicaLink();
  ReplicaLink(const ReplicaLink&) = delete;
  ReplicaLink& operator=(const ReplicaLink&) = delete;

  /// Connects to the front and joins. An error of kind `user` is the front's, `interrupted` means
  /// that the replica was asked to leave meanwhile.
  Status join();
  /// Joins with this message from now on, and gives it to the front at once: the run has other
  /// keys.
  void renew(front::Join join);
  /// Answers batches until the front releases the replica, or the grace of leave() is over. If the
  /// front ends, joins the next one. Error if that rejects the replica.
  Status serve(const Predict& predict, const std::function<void()>& on_wake = {});

  /// Tells the front to send no more batches than it must, also while predict runs. Any thread;
  /// only the first call of this and die() counts. `is_replaced`: another replica will come
  /// instead, so that the front keeps running.
  void leave(int64_t grace_ms, bool is_replaced = false);
  /// Ends the connection without a word: the front waits for the next attempt of the replica. What
  /// it has to log until then is still taken, within a second. Any thread.
  void die();
  /// serve() calls `on_wake` soon; it may also call it without this. Any thread.
  void wake() const;

 private:
  static constexpr int64_t kStays = -1, kDies = -2;  // of leave_ms_

  enum class Received : uint8_t { frame, closed, woken, timeout };

  /// Waits for a frame, but not beyond `until_us` (0: without limit).
  Received receive(Bytes& frame, int64_t until_us);
  /// The next frame that has arrived; null if there is none. Sets `broken` if it is too large.
  Bytes next_frame(bool& broken);
  /// Reads what has arrived. Returns false if the front is gone.
  bool read_some();
  /// Connects and sends Join; does not wait for the answer.
  Status connect();
  void close();
  /// Waits for the answer. `again`: whether another try may succeed.
  Status await_admitted(int64_t until_us, bool& again);
  Status join_again(const std::function<void()>& on_wake);
  /// Once, if a front has admitted it. The mutex is held.
  void send_leave();
  void read_rest();
  bool is_leaving() const { return leave_ms_ != kStays; }
  /// Returns false if the front sent what is not valid, or is gone.
  bool handle(const Bytes& frame, const Predict& predict);
  bool answer(BatchMessage batch, const Predict& predict);
  bool take_memory(const front::FromFront& message);
  /// Tells the front that it has the memory of these inputs back.
  bool release(const std::vector<uint64_t>& inputs);
  bool send(const front::ToFront& message);
  bool send(const FramePieces& pieces);
  /// The mutex is held.
  bool send_pieces(const FramePieces& pieces);

  ReplicaOptions options_;
  int wake_ = -1;
  std::mutex mutex_;     // held while something is sent, and as the descriptor changes
  int descriptor_ = -1;  // the thread of serve() reads it without the mutex
  bool is_joined_ = false, has_sent_leave_ = false;
  std::string buffer_;
  size_t begin_ = 0, end_ = 0;     // of the bytes in `buffer_` that are no frame yet
  std::shared_ptr<char[]> large_;  // a frame that is larger than the buffer
  size_t large_size_ = 0;
  size_t large_bytes_ = 0;       // of it that have arrived
  std::deque<int> descriptors_;  // that have arrived before the message that they belong to
  FrontMemory memory_;
  std::string url_;
  bool is_released_ = false;
  std::atomic<int64_t> leave_until_us_ = 0;
  int64_t joined_us_ = 0;                  // when it joined the current front
  int64_t delay_us_ = 0;                   // before the next try to join
  std::atomic<int64_t> leave_ms_{kStays};  // the grace of leave()
  std::atomic<bool> is_replaced_{false};
};

}  // namespace flow
