#include "engine/cluster/transfer/blob_uploader.hpp"

#include <utility>

namespace flow::cluster {

namespace {

// A peer may request more before this side learns that its puts have arrived, and a peer of another
// version may request more at a time.
constexpr size_t kReadiesMax = 64;
// Bytes that are read and not put yet; more would leave the processor's cache.
constexpr size_t kPutBytesAtOnce = 3 * kChunkBytes;
constexpr size_t kUploadsMax = 4 * kDownloadsMax;

}  // namespace

struct BlobUploader::Upload {
  uint64_t id = 0;
  Digest digest;
  bool is_sealed = false, allows_redirect = false;
  std::optional<BlobReader> source;  // once it was offered
  std::shared_ptr<Strand> reading;
};

bool BlobUploader::on_request(const blob_protocol::BlobRequest& request) {
  auto upload = std::make_shared<Upload>();
  upload->id = request.id();
  upload->is_sealed = request.sealed() || channel_->encrypts();
  upload->allows_redirect = request.allow_redirect() && channel_->locate;
  upload->reading = std::make_shared<Strand>(channel_->thread_pool);
  if (!Digest::from_bytes(request.digest(), upload->digest)) return false;
  if (upload->is_sealed && !channel_->seal) return false;
  std::unique_lock lock(mutex_);
  if (is_over_) return true;
  if (request.id() <= last_id_ || uploads_.size() >= kUploadsMax) return false;
  last_id_ = request.id();
  uploads_.emplace(upload->id, upload);
  bool begins =
      upload->reading->try_post([self = shared_from_this(), upload] { self->open(upload); });
  lock.unlock();
  if (!begins) fail(upload, channel_->overload());
  return true;
}

void BlobUploader::open(const UploadPtr& upload) {
  Addresses addresses;
  if (upload->allows_redirect) addresses = channel_->locate(upload->digest);
  if (!addresses.empty()) return redirect(upload, addresses);
  auto source = channel_->store->open_reader(upload->digest);
  if (!source.ok()) return fail(upload, source.error());
  {
    std::lock_guard lock(mutex_);
    if (!uploads_.contains(upload->id)) return;
    upload->source = std::move(*source);
    blob_protocol::Message message;
    message.mutable_offer()->set_id(upload->id);
    message.mutable_offer()->set_size(upload->source->size());
    message.mutable_offer()->set_sealed(upload->is_sealed);
    message.mutable_offer()->set_source_path(
        upload->source->source_path().substr(0, kTextBytesMax));
    channel_->queue(std::move(message));
  }
  channel_->flush();
}

void BlobUploader::redirect(const UploadPtr& upload, const Addresses& addresses) {
  {
    std::lock_guard lock(mutex_);
    if (uploads_.erase(upload->id) == 0) return;
    blob_protocol::Message message;
    message.mutable_redirect()->set_id(upload->id);
    for (const std::string& address : addresses) message.mutable_redirect()->add_addresses(address);
    channel_->queue(std::move(message));
  }
  channel_->flush();
}

bool BlobUploader::on_ready(const blob_protocol::Ready& ready) {
  std::lock_guard lock(mutex_);
  if (is_over_) return true;
  auto found = uploads_.find(ready.id());
  if (found == uploads_.end()) return ready.id() != 0 && ready.id() <= last_id_;  // it has ended
  const UploadPtr& upload = found->second;
  bool is_within = upload->source && ready.size() > 0 && ready.size() <= kChunkBytes &&
                   ready.offset() <= upload->source->size() &&
                   ready.size() <= upload->source->size() - ready.offset();
  if (!is_within || requests_.size() + putting_ >= kReadiesMax) return false;
  requests_.push_back({upload, ready.tag(), ready.offset(), ready.size()});
  start_reads();
  return true;
}

void BlobUploader::forget(const UploadPtr& upload) {
  uploads_.erase(upload->id);
  std::erase_if(requests_, [&](const ChunkRequest& request) { return request.upload == upload; });
}

void BlobUploader::start_reads() {
  while (!requests_.empty() && bytes_putting_ + requests_.front().size <= kPutBytesAtOnce) {
    ChunkRequest next = std::move(requests_.front());
    requests_.pop_front();
    putting_++;
    bytes_putting_ += next.size;
    Strand& reading = *next.upload->reading;
    reading.post([self = shared_from_this(), next = std::move(next)] { self->read(next); });
  }
}

void BlobUploader::put_ended(size_t size) {
  std::lock_guard lock(mutex_);
  putting_--;
  bytes_putting_ -= size;
  start_reads();
}

void BlobUploader::read(const ChunkRequest& request) {
  const UploadPtr& upload = request.upload;
  auto chunk = std::make_shared<Chunk>(request.size);
  chunk->tag = request.tag;
  chunk->offset = request.offset;
  Status is_read = environment_error("the other side no longer needs it");
  if (!upload->is_sealed && channel_->encrypts()) {
    is_read = environment_error("encryption was turned on after it was offered");
  } else if (is_active(upload)) {
    is_read = upload->source->read(chunk->offset, chunk->bytes.get(), chunk->size);
  }
  if (!is_read.ok()) {
    put_ended(chunk->size);
    return fail(upload, is_read.error());
  }
  size_t size = chunk->size;
  if (upload->is_sealed) {
    channel_->seal->seal(chunk->tag, chunk->bytes.get(), size);
    size += kBulkSealBytes;
  }
  put(upload, chunk, size);
}

void BlobUploader::put(const UploadPtr& upload, const ChunkPtr& chunk, size_t size) {
  Region from{chunk->bytes.get(), size, false};
  channel_->link->put(chunk->tag, from, [self = shared_from_this(), upload, chunk](Status status) {
    self->put_ended(chunk->size);
    if (!status.ok()) return self->fail(upload, status.error());
    self->channel_->bytes_out += chunk->size;
  });
}

bool BlobUploader::on_done(const blob_protocol::Done& done) {
  std::lock_guard lock(mutex_);
  auto found = uploads_.find(done.id());
  if (found == uploads_.end()) return done.id() != 0 && done.id() <= last_id_;
  UploadPtr upload = found->second;
  forget(upload);
  if (is_over_) return true;
  if (done.received() && upload->source) {
    channel_->served++;
    if (channel_->on_transferred)
      upload->reading->post([self = shared_from_this(), upload] {
        self->channel_->on_transferred(true, {upload->digest, upload->source->size()});
      });
  }
  if (done.damaged())
    upload->reading->post([self = shared_from_this(), upload] {
      self->channel_->store->drop_if_damaged(upload->digest);
    });
  return true;
}

bool BlobUploader::is_active(const UploadPtr& upload) {
  std::lock_guard lock(mutex_);
  return uploads_.contains(upload->id);
}

void BlobUploader::fail(const UploadPtr& upload, const Error& why) {
  {
    std::lock_guard lock(mutex_);
    if (!uploads_.contains(upload->id)) return;
    forget(upload);
    blob_protocol::Message message;
    message.mutable_missing()->set_id(upload->id);
    message.mutable_missing()->set_why(why.message.substr(0, kTextBytesMax));
    channel_->queue(std::move(message));
  }
  channel_->flush();
}

void BlobUploader::end() {
  std::lock_guard lock(mutex_);
  is_over_ = true;
  uploads_.clear();
  requests_.clear();
}

}  // namespace flow::cluster
