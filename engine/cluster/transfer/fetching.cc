#include "engine/cluster/transfer/fetching.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "engine/value/utf8.hpp"

namespace flow::cluster {

namespace {

enum class Step : uint8_t { waiting, looking, asked, elsewhere, opening, receiving, keeping, over };

Error changed(const std::string& place, const std::string& peer) {
  return user_error(
      fmt::format("input changed: `{}`, read by {}, is not what it was when the run started. "
                  "Inputs are shared and read-only: start the run again for new content",
                  place, peer));
}

}  // namespace

struct BlobDownloader::Download {
  BlobInfo what;
  std::vector<OnFetched> dones;
  Step step = Step::waiting;
  uint64_t id = 0;  // 0: the peer has not been asked
  uint64_t size = 0;
  bool is_anywhere = false;  // the peer may name others
  bool is_sealed = false;
  std::string place;
  uint64_t asked = 0, arrived = 0, taken = 0;  // bytes from the beginning
  std::map<uint64_t, ChunkPtr> early;          // beyond `arrived`
  std::set<uint64_t> tags;                     // that are awaited
  std::unique_ptr<BlobWriter> incoming;        // from Step::receiving on
  std::shared_ptr<Strand> writing, hashing;

  size_t put_size(const Chunk& chunk) const {
    return chunk.size + (is_sealed ? kBulkSealBytes : 0);
  }
};

void BlobDownloader::fetch(const BlobInfo& what, OnFetched done) {
  Lock lock(mutex_);
  if (ended_) {
    lock.unlock();
    return done(*ended_);
  }
  DownloadPtr& fetch = fetches_[what.digest];
  bool is_new = !fetch;
  if (is_new) {
    fetch = std::make_shared<Download>();
    fetch->what = what;
    fetch->writing = std::make_shared<Strand>(line_->jobs);
    fetch->hashing = std::make_shared<Strand>(line_->jobs);
    waiting_.push_back(fetch);
  }
  fetch->dones.push_back(std::move(done));
  lock.unlock();
  if (is_new) start_waiting();
}

void BlobDownloader::start_waiting() {
  std::lock_guard lock(mutex_);
  while (!ended_ && active_ < kDownloadsMax && !waiting_.empty()) {
    DownloadPtr fetch = std::move(waiting_.front());
    waiting_.pop_front();
    fetch->step = Step::looking;
    active_++;
    line_->jobs.post([self = shared_from_this(), fetch] { self->look(fetch); });
  }
}

void BlobDownloader::look(const DownloadPtr& fetch) {
  if (is_over(fetch)) return;
  if (line_->store->has(fetch->what)) {
    line_->found++;
    return finish(fetch, {});
  }
  ask(fetch, line_->elsewhere != nullptr);
}

void BlobDownloader::ask(const DownloadPtr& fetch, bool anywhere) {
  {
    std::lock_guard lock(mutex_);
    if (fetch->step == Step::over) return;
    fetch->step = Step::asked;
    fetch->is_anywhere = anywhere;
    fetch->id = ++last_id_;
    asked_.emplace(fetch->id, fetch);
    blob_protocol::Message message;
    message.mutable_request()->set_id(fetch->id);
    message.mutable_request()->set_digest(std::string(fetch->what.digest.view()));
    message.mutable_request()->set_sealed(line_->encrypts());
    message.mutable_request()->set_allow_redirect(anywhere);
    line_->queue(std::move(message));
  }
  line_->flush();
}

bool BlobDownloader::on_offer(const blob_protocol::Offer& offer) {
  bool is_sound = offer.size() <= kBlobBytesMax && offer.source_path().size() <= kPlaceBytesMax &&
                  (!offer.sealed() || line_->seal);
  if (!is_sound) return false;
  DownloadPtr fetch;
  bool is_other = false, is_plain = !offer.sealed() && line_->encrypts();
  line_->heard++;
  {
    std::lock_guard lock(mutex_);
    if (offer.id() == 0 || offer.id() > last_id_) return false;
    auto found = asked_.find(offer.id());
    if (found == asked_.end()) return true;  // it crossed our Done
    fetch = found->second;
    if (fetch->step != Step::asked) return false;
    fetch->step = Step::opening;
    fetch->is_sealed = offer.sealed();
    fetch->place = to_line(offer.source_path());
    is_other = fetch->what.size.value_or(offer.size()) != offer.size();
    if (!is_other && !is_plain) {
      line_->jobs.post(
          [self = shared_from_this(), fetch, size = offer.size()] { self->receive(fetch, size); });
    }
  }
  if (is_plain) {
    finish(fetch, unsealed(*fetch));
  } else if (is_other) {
    finish(fetch, damaged(*fetch), true);
  }
  return true;
}

// Whatever becomes of it there, the peer has it.
bool BlobDownloader::on_elsewhere(const blob_protocol::Redirect& elsewhere) {
  Addresses addresses(elsewhere.addresses().begin(), elsewhere.addresses().end());
  bool is_sound = !addresses.empty() && addresses.size() <= kAddressesMax &&
                  std::all_of(addresses.begin(), addresses.end(), [](const std::string& address) {
                    return address.size() <= kAddressBytesMax;
                  });
  if (!is_sound) return false;
  line_->heard++;
  std::lock_guard lock(mutex_);
  if (elsewhere.id() == 0 || elsewhere.id() > last_id_) return false;
  auto found = asked_.find(elsewhere.id());
  if (found == asked_.end()) return true;
  DownloadPtr fetch = found->second;
  if (fetch->step != Step::asked || !fetch->is_anywhere) return false;
  asked_.erase(found);
  fetch->step = Step::elsewhere;
  fetch->id = 0;
  auto came = [self = shared_from_this(), fetch](const Status& status) {
    if (status.ok()) return self->finish(fetch, {});
    self->ask(fetch, false);
  };
  line_->jobs.post([self = shared_from_this(), fetch, came, addresses = std::move(addresses)] {
    self->line_->elsewhere(fetch->what, addresses, came);
  });
  return true;
}

bool BlobDownloader::on_missing(const blob_protocol::Missing& missing) {
  if (missing.why().size() > kPlaceBytesMax) return false;
  DownloadPtr fetch;
  line_->heard++;
  {
    std::lock_guard lock(mutex_);
    if (missing.id() == 0 || missing.id() > last_id_) return false;
    auto found = asked_.find(missing.id());
    if (found == asked_.end()) return true;
    fetch = found->second;
  }
  finish(fetch, environment_error(fmt::format("{} cannot send the content {}: {}", line_->peer,
                                              fetch->what.digest.hex(), to_line(missing.why()))));
  return true;
}

void BlobDownloader::receive(const DownloadPtr& fetch, uint64_t size) {
  if (is_over(fetch)) return;
  auto incoming = line_->store->begin(fetch->what.digest, size);
  if (!incoming.ok()) return finish(fetch, incoming.error());
  {
    std::lock_guard lock(mutex_);
    if (fetch->step == Step::over) return;
    fetch->incoming = std::move(*incoming);
    fetch->size = size;
    fetch->step = Step::receiving;
    if (size > 0) receiving_.push_back(fetch);
    keep_when_whole(fetch);
  }
  ask_for_chunks();
}

// One of each in turn, so that small content does not wait for the end of large.
void BlobDownloader::ask_for_chunks() {
  std::vector<std::pair<DownloadPtr, ChunkPtr>> asked;
  {
    std::lock_guard lock(mutex_);
    while (chunks_ < kChunksMax && !receiving_.empty()) {
      DownloadPtr fetch = std::move(receiving_.front());
      receiving_.pop_front();
      if (fetch->step == Step::over) continue;
      auto chunk = std::make_shared<Chunk>(std::min(kChunkBytes, fetch->size - fetch->asked));
      chunk->offset = fetch->asked;
      chunk->tag = ++last_tag_;
      fetch->tags.insert(chunk->tag);
      fetch->asked += chunk->size;
      chunks_++;
      if (fetch->asked < fetch->size) receiving_.push_back(fetch);
      asked.emplace_back(std::move(fetch), std::move(chunk));
    }
  }
  for (const auto& [fetch, chunk] : asked) expect(fetch, chunk);
  line_->flush();
}

void BlobDownloader::expect(const DownloadPtr& fetch, const ChunkPtr& chunk) {
  Region to{chunk->bytes.get(), fetch->put_size(*chunk), false};
  line_->link->expect(chunk->tag, to, [self = shared_from_this(), fetch, chunk](auto came) {
    self->on_put(fetch, chunk, came);
  });
  {
    std::lock_guard lock(mutex_);
    if (fetch->step != Step::over) {
      blob_protocol::Message message;
      message.mutable_ready()->set_id(fetch->id);
      message.mutable_ready()->set_tag(chunk->tag);
      message.mutable_ready()->set_offset(chunk->offset);
      message.mutable_ready()->set_size(static_cast<uint32_t>(chunk->size));
      return line_->queue(std::move(message));
    }
  }
  line_->link->give_up(chunk->tag);  // it was not awaited yet when the others were given up
}

// On the transport's thread. A link that breaks tells that here first. Nothing is concluded from
// it: what is fetched ends with the session, and those who wait know then that it may be had again.
void BlobDownloader::on_put(const DownloadPtr& fetch, const ChunkPtr& chunk,
                            const Result<size_t>& came) {
  std::optional<Error> wrong;
  bool is_broken = false;
  line_->heard++;
  {
    std::lock_guard lock(mutex_);
    fetch->tags.erase(chunk->tag);
    if (!came.ok()) {
      is_broken = fetch->step != Step::over;
    } else if (*came != fetch->put_size(*chunk)) {
      wrong = environment_error(fmt::format("{} sent {} bytes where {} were expected", line_->peer,
                                            *came, fetch->put_size(*chunk)));
    } else if (fetch->step != Step::over) {
      line_->bytes_in += chunk->size;
      fetch->early.emplace(chunk->offset, chunk);
      for (auto next = fetch->early.begin();
           next != fetch->early.end() && next->first == fetch->arrived;
           next = fetch->early.erase(next)) {
        fetch->arrived += next->second->size;
        take_in(fetch, next->second);
      }
      return;
    }
    chunks_--;
  }
  if (is_broken) return line_->link->close(0);
  if (wrong) finish(fetch, *wrong);
  ask_for_chunks();
}

// Puts may overtake each other; chunks come here in their order. With the lock held.
void BlobDownloader::take_in(const DownloadPtr& fetch, const ChunkPtr& chunk) {
  chunk->users = 2;
  auto self = shared_from_this();
  fetch->hashing->post([self, fetch, chunk] {
    if (fetch->is_sealed) self->open_seal(fetch, chunk);
    self->hash(fetch, chunk);
  });
  if (!fetch->is_sealed) fetch->writing->post([self, fetch, chunk] { self->write(fetch, chunk); });
}

void BlobDownloader::open_seal(const DownloadPtr& fetch, const ChunkPtr& chunk) {
  if (!line_->seal->open(chunk->tag, chunk->bytes.get(), fetch->put_size(*chunk)))
    finish(fetch, environment_error("what came from " + line_->peer +
                                    " is not what it encrypted: it was changed on the way"));
  fetch->writing->post([self = shared_from_this(), fetch, chunk] { self->write(fetch, chunk); });
}

void BlobDownloader::hash(const DownloadPtr& fetch, const ChunkPtr& chunk) {
  if (!is_over(fetch)) fetch->incoming->hash(chunk->view());
  let_go(fetch, chunk);
}

void BlobDownloader::write(const DownloadPtr& fetch, const ChunkPtr& chunk) {
  if (!is_over(fetch)) {
    Status written = fetch->incoming->write(chunk->view());
    if (!written.ok()) finish(fetch, written);
  }
  let_go(fetch, chunk);
}

void BlobDownloader::let_go(const DownloadPtr& fetch, const ChunkPtr& chunk) {
  if (--chunk->users > 0) return;
  {
    std::lock_guard lock(mutex_);
    chunks_--;
    fetch->taken += chunk->size;
    keep_when_whole(fetch);
  }
  ask_for_chunks();
}

bool BlobDownloader::awaits() {
  std::lock_guard lock(mutex_);
  return std::any_of(asked_.begin(), asked_.end(), [](const auto& each) {
    return each.second->step == Step::asked || !each.second->tags.empty();
  });
}

bool BlobDownloader::is_idle() {
  std::lock_guard lock(mutex_);
  return fetches_.empty();
}

bool BlobDownloader::is_over(const DownloadPtr& fetch) {
  std::lock_guard lock(mutex_);
  return fetch->step == Step::over;
}

void BlobDownloader::keep_when_whole(const DownloadPtr& fetch) {
  if (fetch->step != Step::receiving || fetch->taken < fetch->size) return;
  fetch->step = Step::keeping;
  line_->jobs.post([self = shared_from_this(), fetch] { self->keep(fetch); });
}

void BlobDownloader::keep(const DownloadPtr& fetch) {
  auto incoming = std::move(fetch->incoming);  // nobody else needs it any more
  bool is_right = incoming->is_right();
  Status kept = is_right ? incoming->keep() : Status(damaged(*fetch));
  if (kept.ok()) line_->fetched++;
  if (kept.ok() && line_->on_moved) line_->on_moved(false, {fetch->what.digest, fetch->size});
  incoming.reset();  // what was not kept goes before it is told
  finish(fetch, kept, !is_right);
}

Error BlobDownloader::damaged(const Download& fetch) const {
  if (!fetch.place.empty()) return changed(fetch.place, line_->peer);
  return environment_error(fmt::format(
      "{} sent other bytes than the content {}: it is damaged there, or was changed on the way",
      line_->peer, fetch.what.digest.hex()));
}

Error BlobDownloader::unsealed(const Download& fetch) const {
  return environment_error(
      fmt::format("{} offers the content {} without encryption, and the cluster's head requires it "
                  "(--encrypt): it was not fetched",
                  line_->peer, fetch.what.digest.hex()));
}

void BlobDownloader::finish(const DownloadPtr& fetch, const Status& status, bool is_damaged) {
  std::vector<OnFetched> dones;
  std::set<uint64_t> tags;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(fetch->step, Step::over) == Step::over) return;
    dones = std::move(fetch->dones);
    tags = std::move(fetch->tags);
    chunks_ -= fetch->early.size();
    fetch->early.clear();
    active_--;
    fetches_.erase(fetch->what.digest);
    asked_.erase(fetch->id);
    if (!status.ok()) line_->failed++;
    if (fetch->id != 0) {
      blob_protocol::Message message;
      message.mutable_done()->set_id(fetch->id);
      message.mutable_done()->set_received(status.ok());
      message.mutable_done()->set_damaged(is_damaged);
      line_->queue(std::move(message));
    }
  }
  for (uint64_t tag : tags) line_->link->give_up(tag);
  line_->flush();
  for (const OnFetched& done : dones) done(status);
  start_waiting();
  ask_for_chunks();
}

void BlobDownloader::end(const Error& why) {
  std::unordered_map<Digest, DownloadPtr, DigestHash> fetches;
  std::set<uint64_t> tags;
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = why;
    fetches = std::move(fetches_);
    fetches_.clear();
    waiting_.clear();
    receiving_.clear();
    asked_.clear();
    for (const auto& [digest, fetch] : fetches) {
      fetch->step = Step::over;
      fetch->early.clear();
      tags.merge(fetch->tags);
    }
  }
  for (uint64_t tag : tags) line_->link->give_up(tag);
  for (const auto& [digest, fetch] : fetches) {
    for (const OnFetched& done : fetch->dones) done(why);
  }
}

}  // namespace flow::cluster
