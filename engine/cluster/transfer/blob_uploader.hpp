// The uploading side of a transfer: serves blobs of this cache as the peer requests them. The
// peer's messages are not trusted.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "engine/cluster/transfer/transfer_channel.hpp"

namespace flow::cluster {

/// Thread-safe.
class BlobUploader : public std::enable_shared_from_this<BlobUploader> {
 public:
  explicit BlobUploader(std::shared_ptr<TransferChannel> channel) : channel_(std::move(channel)) {}

  /// Handle the peer's messages. Return false if the message is not valid in this state.
  bool on_request(const blob_protocol::BlobRequest& request);
  bool on_ready(const blob_protocol::Ready& ready);
  bool on_done(const blob_protocol::Done& done);
  void end();

 private:
  struct Upload;
  using UploadPtr = std::shared_ptr<Upload>;
  /// A chunk for which the peer has posted memory.
  struct ChunkRequest {
    UploadPtr upload;
    uint64_t tag = 0, offset = 0;
    uint32_t size = 0;
  };

  void open(const UploadPtr& upload);
  void redirect(const UploadPtr& upload, const Addresses& addresses);
  // These require the lock:
  void start_reads();
  void forget(const UploadPtr& upload);
  void read(const ChunkRequest& request);
  void put(const UploadPtr& upload, const ChunkPtr& chunk, size_t size);
  void put_ended(size_t size);
  void fail(const UploadPtr& upload, const Error& why);
  bool is_active(const UploadPtr& upload);

  const std::shared_ptr<TransferChannel> channel_;
  std::mutex mutex_;
  bool is_over_ = false;
  std::map<uint64_t, UploadPtr> uploads_;  // requested by the peer; removed by forget()
  uint64_t last_id_ = 0;
  std::deque<ChunkRequest> requests_;  // chunks waiting to be read
  size_t putting_ = 0,
         bytes_putting_ = 0;  // in flight: from the start of the read to the end of the put
};

}  // namespace flow::cluster
