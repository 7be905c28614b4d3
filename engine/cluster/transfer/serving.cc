#include "engine/cluster/transfer/serving.hpp"

#include <utility>

namespace flow::cluster {

namespace {

// A peer may ask anew before this side hears that its puts have arrived, and for more at a time
// where it is of another version.
constexpr size_t kReadiesMax = 64;
// Read and not put yet: more would leave the processor's cache before it goes.
constexpr size_t kPutBytesAtOnce = 3 * kChunkBytes;
constexpr size_t kWantsMax = 4 * kDownloadsMax;

}  // namespace

struct BlobUploader::Upload {
  uint64_t id = 0;
  Digest digest;
  bool is_sealed = false, is_anywhere = false;
  std::optional<BlobReader> source;  // once it was offered
  std::shared_ptr<Strand> reading;
};

bool BlobUploader::on_want(const blob_protocol::BlobRequest& want) {
  auto serve = std::make_shared<Upload>();
  serve->id = want.id();
  serve->is_sealed = want.sealed() || line_->encrypts();
  serve->is_anywhere = want.allow_redirect() && line_->locate;
  serve->reading = std::make_shared<Strand>(line_->jobs);
  if (!Digest::from_bytes(want.digest(), serve->digest)) return false;
  if (serve->is_sealed && !line_->seal) return false;
  std::lock_guard lock(mutex_);
  if (is_over_) return true;
  if (want.id() <= last_id_ || serves_.size() >= kWantsMax) return false;
  last_id_ = want.id();
  serves_.emplace(serve->id, serve);
  serve->reading->post([self = shared_from_this(), serve] { self->open(serve); });
  return true;
}

void BlobUploader::open(const UploadPtr& serve) {
  Addresses addresses;
  if (serve->is_anywhere) addresses = line_->locate(serve->digest);
  if (!addresses.empty()) return send_elsewhere(serve, addresses);
  auto source = line_->store->open_source(serve->digest);
  if (!source.ok()) return fail(serve, source.error());
  {
    std::lock_guard lock(mutex_);
    if (!serves_.contains(serve->id)) return;
    serve->source = std::move(*source);
    blob_protocol::Message message;
    message.mutable_offer()->set_id(serve->id);
    message.mutable_offer()->set_size(serve->source->size());
    message.mutable_offer()->set_sealed(serve->is_sealed);
    message.mutable_offer()->set_source_path(serve->source->place().substr(0, kPlaceBytesMax));
    line_->queue(std::move(message));
  }
  line_->flush();
}

void BlobUploader::send_elsewhere(const UploadPtr& serve, const Addresses& addresses) {
  {
    std::lock_guard lock(mutex_);
    if (serves_.erase(serve->id) == 0) return;
    blob_protocol::Message message;
    message.mutable_redirect()->set_id(serve->id);
    for (const std::string& address : addresses) message.mutable_redirect()->add_addresses(address);
    line_->queue(std::move(message));
  }
  line_->flush();
}

bool BlobUploader::on_ready(const blob_protocol::Ready& ready) {
  std::lock_guard lock(mutex_);
  if (is_over_) return true;
  auto found = serves_.find(ready.id());
  if (found == serves_.end()) return ready.id() != 0 && ready.id() <= last_id_;  // it has ended
  const UploadPtr& serve = found->second;
  bool is_within = serve->source && ready.size() > 0 && ready.size() <= kChunkBytes &&
                   ready.offset() <= serve->source->size() &&
                   ready.size() <= serve->source->size() - ready.offset();
  if (!is_within || asked_.size() + putting_ >= kReadiesMax) return false;
  asked_.push_back({serve, ready.tag(), ready.offset(), ready.size()});
  start_reads();
  return true;
}

void BlobUploader::forget(const UploadPtr& serve) {
  serves_.erase(serve->id);
  std::erase_if(asked_, [&](const ChunkRequest& asked) { return asked.serve == serve; });
}

void BlobUploader::start_reads() {
  while (!asked_.empty() && bytes_putting_ + asked_.front().size <= kPutBytesAtOnce) {
    ChunkRequest next = std::move(asked_.front());
    asked_.pop_front();
    putting_++;
    bytes_putting_ += next.size;
    Strand& reading = *next.serve->reading;
    reading.post([self = shared_from_this(), next = std::move(next)] { self->read(next); });
  }
}

void BlobUploader::put_ended(size_t size) {
  std::lock_guard lock(mutex_);
  putting_--;
  bytes_putting_ -= size;
  start_reads();
}

void BlobUploader::read(const ChunkRequest& asked) {
  const UploadPtr& serve = asked.serve;
  auto chunk = std::make_shared<Chunk>(asked.size);
  chunk->tag = asked.tag;
  chunk->offset = asked.offset;
  Status is_read = environment_error("the other side no longer needs it");
  if (!serve->is_sealed && line_->encrypts()) {
    is_read = environment_error("encryption was turned on after it was offered");
  } else if (is_wanted(serve)) {
    is_read = serve->source->read(chunk->offset, chunk->bytes.get(), chunk->size);
  }
  if (!is_read.ok()) {
    put_ended(chunk->size);
    return fail(serve, is_read.error());
  }
  size_t size = chunk->size;
  if (serve->is_sealed) {
    line_->seal->seal(chunk->tag, chunk->bytes.get(), size);
    size += kBulkSealBytes;
  }
  put(serve, chunk, size);
}

void BlobUploader::put(const UploadPtr& serve, const ChunkPtr& chunk, size_t size) {
  Region from{chunk->bytes.get(), size, false};
  line_->link->put(chunk->tag, from, [self = shared_from_this(), serve, chunk](Status status) {
    self->put_ended(chunk->size);
    if (!status.ok()) return self->fail(serve, status.error());
    self->line_->bytes_out += chunk->size;
  });
}

bool BlobUploader::on_done(const blob_protocol::Done& done) {
  std::lock_guard lock(mutex_);
  auto found = serves_.find(done.id());
  if (found == serves_.end()) return done.id() != 0 && done.id() <= last_id_;
  UploadPtr serve = found->second;
  forget(serve);
  if (is_over_) return true;
  if (done.received() && serve->source) {
    line_->served++;
    if (line_->on_moved)
      serve->reading->post([self = shared_from_this(), serve] {
        self->line_->on_moved(true, {serve->digest, serve->source->size()});
      });
  }
  if (done.damaged())
    serve->reading->post(
        [self = shared_from_this(), serve] { self->line_->store->drop_if_damaged(serve->digest); });
  return true;
}

bool BlobUploader::is_wanted(const UploadPtr& serve) {
  std::lock_guard lock(mutex_);
  return serves_.contains(serve->id);
}

void BlobUploader::fail(const UploadPtr& serve, const Error& why) {
  {
    std::lock_guard lock(mutex_);
    if (!serves_.contains(serve->id)) return;
    forget(serve);
    blob_protocol::Message message;
    message.mutable_missing()->set_id(serve->id);
    message.mutable_missing()->set_why(why.message.substr(0, kPlaceBytesMax));
    line_->queue(std::move(message));
  }
  line_->flush();
}

void BlobUploader::end() {
  std::lock_guard lock(mutex_);
  is_over_ = true;
  serves_.clear();
  asked_.clear();
}

}  // namespace flow::cluster
