#include "engine/cluster/transfer/blob_downloader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "engine/value/utf8.hpp"

namespace flow::cluster {

namespace {

enum class DownloadStep : uint8_t {
  waiting,
  checking_cache,
  requested,
  redirect,
  opening,
  receiving,
  committing,
  over
};

Error changed(const std::string& source_path, const std::string& peer) {
  return user_error(
      fmt::format("input changed: `{}`, read by {}, differs from what the run was started with. "
                  "Inputs are shared and read-only: start the run again for new content",
                  source_path, peer));
}

}  // namespace

struct BlobDownloader::Download {
  BlobInfo what;
  std::vector<OnFetched> callbacks;
  DownloadStep step = DownloadStep::waiting;
  uint64_t id = 0;  // 0: not requested from the peer
  uint64_t size = 0;
  bool allows_redirect = false;  // the peer may redirect to other workers
  bool is_sealed = false;
  std::string source_path;
  uint64_t requested = 0, arrived = 0, processed = 0;  // bytes from the beginning
  std::map<uint64_t, ChunkPtr> early;                  // beyond `arrived`
  std::set<uint64_t> tags;                             // posted receives
  std::unique_ptr<BlobWriter> writer;                  // from DownloadStep::receiving on
  std::shared_ptr<Strand> writing, hashing;

  size_t put_size(const Chunk& chunk) const {
    return chunk.size + (is_sealed ? kBulkSealBytes : 0);
  }
};

void BlobDownloader::download(const BlobInfo& what, OnFetched done) {
  Lock lock(mutex_);
  if (ended_) {
    lock.unlock();
    return done(*ended_);
  }
  DownloadPtr& download = downloads_[what.digest];
  bool is_new = !download;
  if (is_new) {
    download = std::make_shared<Download>();
    download->what = what;
    download->writing = std::make_shared<Strand>(channel_->thread_pool);
    download->hashing = std::make_shared<Strand>(channel_->thread_pool);
    queued_.push_back(download);
  }
  download->callbacks.push_back(std::move(done));
  lock.unlock();
  if (is_new) start_queued();
}

void BlobDownloader::start_queued() {
  while (true) {
    std::vector<DownloadPtr> rejected;
    {
      std::lock_guard lock(mutex_);
      rejected = start_queued_locked();
    }
    if (rejected.empty()) return;
    for (const DownloadPtr& download : rejected)
      (void)end_download(download, channel_->overload(), false);
  }
}

/// Returns those that cannot begin, because too many jobs wait.
std::vector<BlobDownloader::DownloadPtr> BlobDownloader::start_queued_locked() {
  std::vector<DownloadPtr> rejected;
  while (!ended_ && active_ < kDownloadsMax && !queued_.empty()) {
    DownloadPtr download = std::move(queued_.front());
    queued_.pop_front();
    download->step = DownloadStep::checking_cache;
    active_++;
    ThreadPool::Job check = [self = shared_from_this(), download] { self->check_cache(download); };
    if (!channel_->thread_pool.try_post(check)) rejected.push_back(std::move(download));
  }
  return rejected;
}

void BlobDownloader::check_cache(const DownloadPtr& download) {
  if (is_over(download)) return;
  if (channel_->store->has(download->what)) {
    channel_->found++;
    return finish(download, {});
  }
  request(download, channel_->follow_redirect != nullptr);
}

void BlobDownloader::request(const DownloadPtr& download, bool allow_redirect) {
  {
    std::lock_guard lock(mutex_);
    if (download->step == DownloadStep::over) return;
    download->step = DownloadStep::requested;
    download->allows_redirect = allow_redirect;
    download->id = ++last_id_;
    requested_.emplace(download->id, download);
    blob_protocol::Message message;
    message.mutable_request()->set_id(download->id);
    message.mutable_request()->set_digest(std::string(download->what.digest.view()));
    message.mutable_request()->set_sealed(channel_->encrypts());
    message.mutable_request()->set_allow_redirect(allow_redirect);
    channel_->queue(std::move(message));
  }
  channel_->flush();
}

bool BlobDownloader::on_offer(const blob_protocol::Offer& offer) {
  bool is_sound = offer.size() <= kBlobBytesMax && offer.source_path().size() <= kTextBytesMax &&
                  (!offer.sealed() || channel_->seal);
  if (!is_sound) return false;
  DownloadPtr download;
  bool is_other = false, is_plain = !offer.sealed() && channel_->encrypts();
  channel_->responses++;
  {
    std::lock_guard lock(mutex_);
    if (offer.id() == 0 || offer.id() > last_id_) return false;
    auto found = requested_.find(offer.id());
    if (found == requested_.end()) return true;  // it crossed our Done message
    download = found->second;
    if (download->step != DownloadStep::requested) return false;
    download->step = DownloadStep::opening;
    download->is_sealed = offer.sealed();
    download->source_path = to_line(offer.source_path());
    is_other = download->what.size.value_or(offer.size()) != offer.size();
    if (!is_other && !is_plain) {
      channel_->thread_pool.post([self = shared_from_this(), download, size = offer.size()] {
        self->receive(download, size);
      });
    }
  }
  if (is_plain) {
    finish(download, unsealed(*download));
  } else if (is_other) {
    finish(download, damaged(*download), true);
  }
  return true;
}

// If the download from the other source fails, the peer still has the blob.
bool BlobDownloader::on_redirect(const blob_protocol::Redirect& redirect) {
  Addresses addresses(redirect.addresses().begin(), redirect.addresses().end());
  bool is_sound = !addresses.empty() && addresses.size() <= kAddressesMax &&
                  std::all_of(addresses.begin(), addresses.end(), [](const std::string& address) {
                    return address.size() <= kAddressBytesMax;
                  });
  if (!is_sound) return false;
  channel_->responses++;
  std::lock_guard lock(mutex_);
  if (redirect.id() == 0 || redirect.id() > last_id_) return false;
  auto found = requested_.find(redirect.id());
  if (found == requested_.end()) return true;
  DownloadPtr download = found->second;
  if (download->step != DownloadStep::requested || !download->allows_redirect) return false;
  requested_.erase(found);
  download->step = DownloadStep::redirect;
  download->id = 0;
  auto on_fetched = [self = shared_from_this(), download](const Status& status) {
    if (status.ok()) return self->finish(download, {});
    self->request(download, false);
  };
  channel_->thread_pool.post(
      [self = shared_from_this(), download, on_fetched, addresses = std::move(addresses)] {
        self->channel_->follow_redirect(download->what, addresses, on_fetched);
      });
  return true;
}

bool BlobDownloader::on_missing(const blob_protocol::Missing& missing) {
  if (missing.why().size() > kTextBytesMax) return false;
  DownloadPtr download;
  channel_->responses++;
  {
    std::lock_guard lock(mutex_);
    if (missing.id() == 0 || missing.id() > last_id_) return false;
    auto found = requested_.find(missing.id());
    if (found == requested_.end()) return true;
    download = found->second;
  }
  finish(download,
         environment_error(fmt::format("{} cannot send the blob {}: {}", channel_->peer,
                                       download->what.digest.hex(), to_line(missing.why()))));
  return true;
}

void BlobDownloader::receive(const DownloadPtr& download, uint64_t size) {
  if (is_over(download)) return;
  auto writer = channel_->store->begin(download->what.digest, size);
  if (!writer.ok()) return finish(download, writer.error());
  {
    std::lock_guard lock(mutex_);
    if (download->step == DownloadStep::over) return;
    download->writer = std::move(*writer);
    download->size = size;
    download->step = DownloadStep::receiving;
    if (size > 0) receiving_.push_back(download);
    commit_when_complete(download);
  }
  request_chunks();
}

// Round robin over the downloads, so that small blobs do not wait for large ones.
void BlobDownloader::request_chunks() {
  std::vector<std::pair<DownloadPtr, ChunkPtr>> requested;
  {
    std::lock_guard lock(mutex_);
    while (chunks_ < kChunksMax && !receiving_.empty()) {
      DownloadPtr download = std::move(receiving_.front());
      receiving_.pop_front();
      if (download->step == DownloadStep::over) continue;
      auto chunk =
          std::make_shared<Chunk>(std::min(kChunkBytes, download->size - download->requested));
      chunk->offset = download->requested;
      chunk->tag = ++last_tag_;
      download->tags.insert(chunk->tag);
      download->requested += chunk->size;
      chunks_++;
      if (download->requested < download->size) receiving_.push_back(download);
      requested.emplace_back(std::move(download), std::move(chunk));
    }
  }
  for (const auto& [download, chunk] : requested) expect(download, chunk);
  channel_->flush();
}

void BlobDownloader::expect(const DownloadPtr& download, const ChunkPtr& chunk) {
  Region to{chunk->bytes.get(), download->put_size(*chunk), false};
  channel_->link->post_receive(chunk->tag, to,
                               [self = shared_from_this(), download, chunk](auto received) {
                                 self->on_put(download, chunk, received);
                               });
  {
    std::lock_guard lock(mutex_);
    if (download->step != DownloadStep::over) {
      blob_protocol::Message message;
      message.mutable_ready()->set_id(download->id);
      message.mutable_ready()->set_tag(chunk->tag);
      message.mutable_ready()->set_offset(chunk->offset);
      message.mutable_ready()->set_size(static_cast<uint32_t>(chunk->size));
      return channel_->queue(std::move(message));
    }
  }
  channel_->link->cancel_receive(
      chunk->tag);  // it was not posted yet when the others were cancelled
}

// On the transport's thread. A broken link is reported here first, and ignored: downloads fail when
// the session ends, and their callers then know that a retry may succeed.
void BlobDownloader::on_put(const DownloadPtr& download, const ChunkPtr& chunk,
                            const Result<size_t>& received) {
  std::optional<Error> wrong;
  bool is_broken = false;
  channel_->responses++;
  {
    std::lock_guard lock(mutex_);
    download->tags.erase(chunk->tag);
    if (!received.ok()) {
      is_broken = download->step != DownloadStep::over;
    } else if (*received != download->put_size(*chunk)) {
      wrong = environment_error(fmt::format("{} sent {} bytes where {} were expected",
                                            channel_->peer, *received, download->put_size(*chunk)));
    } else if (download->step != DownloadStep::over) {
      channel_->bytes_in += chunk->size;
      download->early.emplace(chunk->offset, chunk);
      for (auto next = download->early.begin();
           next != download->early.end() && next->first == download->arrived;
           next = download->early.erase(next)) {
        download->arrived += next->second->size;
        process_chunk(download, next->second);
      }
      return;
    }
    chunks_--;
  }
  if (is_broken) return channel_->link->close(0);
  if (wrong) finish(download, *wrong);
  request_chunks();
}

// Puts may overtake each other; this takes chunks in order. Requires the lock.
void BlobDownloader::process_chunk(const DownloadPtr& download, const ChunkPtr& chunk) {
  chunk->users = 2;
  auto self = shared_from_this();
  download->hashing->post([self, download, chunk] {
    if (download->is_sealed) self->open_seal(download, chunk);
    self->hash(download, chunk);
  });
  if (!download->is_sealed)
    download->writing->post([self, download, chunk] { self->write(download, chunk); });
}

void BlobDownloader::open_seal(const DownloadPtr& download, const ChunkPtr& chunk) {
  if (!channel_->seal->open(chunk->tag, chunk->bytes.get(), download->put_size(*chunk)))
    finish(download, environment_error("data from " + channel_->peer +
                                       " is not what it encrypted: it was changed in transit"));
  download->writing->post(
      [self = shared_from_this(), download, chunk] { self->write(download, chunk); });
}

void BlobDownloader::hash(const DownloadPtr& download, const ChunkPtr& chunk) {
  if (!is_over(download)) download->writer->hash(chunk->view());
  release_chunk(download, chunk);
}

void BlobDownloader::write(const DownloadPtr& download, const ChunkPtr& chunk) {
  if (!is_over(download)) {
    Status written = download->writer->write(chunk->view());
    if (!written.ok()) finish(download, written);
  }
  release_chunk(download, chunk);
}

void BlobDownloader::release_chunk(const DownloadPtr& download, const ChunkPtr& chunk) {
  if (--chunk->users > 0) return;
  {
    std::lock_guard lock(mutex_);
    chunks_--;
    download->processed += chunk->size;
    commit_when_complete(download);
  }
  request_chunks();
}

bool BlobDownloader::awaits_peer() {
  std::lock_guard lock(mutex_);
  return std::any_of(requested_.begin(), requested_.end(), [](const auto& each) {
    return each.second->step == DownloadStep::requested || !each.second->tags.empty();
  });
}

bool BlobDownloader::is_idle() {
  std::lock_guard lock(mutex_);
  return downloads_.empty();
}

bool BlobDownloader::is_over(const DownloadPtr& download) {
  std::lock_guard lock(mutex_);
  return download->step == DownloadStep::over;
}

void BlobDownloader::commit_when_complete(const DownloadPtr& download) {
  if (download->step != DownloadStep::receiving || download->processed < download->size) return;
  download->step = DownloadStep::committing;
  channel_->thread_pool.post([self = shared_from_this(), download] { self->commit(download); });
}

void BlobDownloader::commit(const DownloadPtr& download) {
  auto writer = std::move(download->writer);  // no other thread uses it any more
  bool matches_digest = writer->matches_digest();
  Status committed = matches_digest ? writer->commit() : Status(damaged(*download));
  if (committed.ok()) channel_->fetched++;
  if (committed.ok() && channel_->on_transferred)
    channel_->on_transferred(false, {download->what.digest, download->size});
  writer.reset();  // remove an incomplete file before the callback
  finish(download, committed, !matches_digest);
}

Error BlobDownloader::damaged(const Download& download) const {
  if (!download.source_path.empty()) return changed(download.source_path, channel_->peer);
  return environment_error(fmt::format(
      "{} sent other bytes than the blob {}: it is damaged there, or was changed in transit",
      channel_->peer, download.what.digest.hex()));
}

Error BlobDownloader::unsealed(const Download& download) const {
  return environment_error(
      fmt::format("{} offers the blob {} without encryption, and the cluster's head requires it "
                  "(--encrypt): it was not downloaded",
                  channel_->peer, download.what.digest.hex()));
}

void BlobDownloader::finish(const DownloadPtr& download, const Status& status, bool is_damaged) {
  if (!end_download(download, status, is_damaged)) return;
  start_queued();
  request_chunks();
}

bool BlobDownloader::end_download(const DownloadPtr& download, const Status& status,
                                  bool is_damaged) {
  std::vector<OnFetched> callbacks;
  std::set<uint64_t> tags;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(download->step, DownloadStep::over) == DownloadStep::over) return false;
    callbacks = std::move(download->callbacks);
    tags = std::move(download->tags);
    chunks_ -= download->early.size();
    download->early.clear();
    active_--;
    downloads_.erase(download->what.digest);
    requested_.erase(download->id);
    if (!status.ok()) channel_->failed++;
    if (download->id != 0) {
      blob_protocol::Message message;
      message.mutable_done()->set_id(download->id);
      message.mutable_done()->set_received(status.ok());
      message.mutable_done()->set_damaged(is_damaged);
      channel_->queue(std::move(message));
    }
  }
  for (uint64_t tag : tags) channel_->link->cancel_receive(tag);
  channel_->flush();
  for (const OnFetched& done : callbacks) done(status);
  return true;
}

void BlobDownloader::end(const Error& why) {
  std::unordered_map<Digest, DownloadPtr, DigestHash> downloads;
  std::set<uint64_t> tags;
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = why;
    downloads = std::move(downloads_);
    downloads_.clear();
    queued_.clear();
    receiving_.clear();
    requested_.clear();
    for (const auto& [digest, download] : downloads) {
      download->step = DownloadStep::over;
      download->early.clear();
      tags.merge(download->tags);
    }
  }
  for (uint64_t tag : tags) channel_->link->cancel_receive(tag);
  for (const auto& [digest, download] : downloads) {
    for (const OnFetched& done : download->callbacks) done(why);
  }
}

}  // namespace flow::cluster
