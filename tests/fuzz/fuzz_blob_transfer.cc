// One side of a blob transfer with an arbitrary peer: nothing is expected twice or beyond its
// bounds, every download reports its end once, and a blob that is reported as present matches its
// digest.
#include <google/protobuf/stubs/logging.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <map>
#include <set>

#include "engine/base/files.hpp"
#include "engine/cluster/transfer/blob_transfer.hpp"
#include "tests/fuzz/input.hpp"

namespace {

using namespace flow;
using namespace flow::cluster;
using flow::fuzz::Input;

const auto kQuiet = google::protobuf::SetLogHandler(nullptr);

/// Keeps expected puts and sent ones until the story decides their outcome.
class FakeLink final : public Link {
 public:
  struct Awaited {
    Region to;
    std::function<void(Result<size_t>)> done;
  };
  void send(std::string) override {}
  size_t unsent_bytes() const override { return 0; }
  void post_receive(uint64_t tag, Region to, std::function<void(Result<size_t>)> done) override {
    FLOW_CHECK(tags_.insert(tag).second);  // never twice in a session
    awaited.emplace(tag, Awaited{to, std::move(done)});
    FLOW_CHECK(awaited.size() <= kChunksMax);
  }
  void cancel_receive(uint64_t tag) override { come(tag, environment_error("given up")); }
  void put(uint64_t, Region from, std::function<void(Status)> done) override {
    std::string bytes(static_cast<const char*>(from.data), from.size);
    FLOW_CHECK(bytes.size() <= kPutBytesMax);
    puts.push_back(std::move(done));
  }
  void close(int64_t) override {}
  std::string description() const override { return "fuzz"; }

  void come(uint64_t tag, Result<size_t> what) {
    auto found = awaited.find(tag);
    if (found == awaited.end()) return;
    auto done = std::move(found->second.done);
    awaited.erase(found);
    done(std::move(what));
  }

  std::map<uint64_t, Awaited> awaited;
  std::deque<std::function<void(Status)>> puts;

 private:
  std::set<uint64_t> tags_;
};

/// Blobs that the story knows: small, empty, and of more than one chunk.
const std::vector<std::string>& known() {
  static const std::vector<std::string> all = {"", "small", std::string(70'000, 'm'),
                                               std::string(kChunkBytes + 9, 'l')};
  return all;
}

const std::string& folder() {
  static const std::string path = [] {
    std::filesystem::path memory = "/dev/shm";  // without the cost of a sync
    bool has_memory = ::access(memory.c_str(), W_OK) == 0;
    std::string name =
        (has_memory ? memory : std::filesystem::temp_directory_path()) / "flow-fuzz-XXXXXX";
    FLOW_CHECK(::mkdtemp(name.data()) != nullptr);
    static std::string to_remove = name;
    std::atexit([] { std::filesystem::remove_all(to_remove); });
    return name;
  }();
  return path;
}

class Story {
 public:
  explicit Story(uint8_t kind) {
    std::filesystem::remove_all(folder() + "/objects");
    auto opened = BlobCache::open(folder(), (kind & 1) == 0 ? 0 : 2 * kChunkBytes);
    FLOW_CHECK(opened.ok());
    store_ = *opened;
    TransferOptions options;
    options.store = store_;
    options.thread_pool = &thread_pool_;
    options.link = link_;
    options.send = [this](std::string_view message) { said(message); };
    options.peer = "the peer";
    if ((kind & 2) != 0) options.seal.emplace(key_, key_);
    if ((kind & 6) == 6) options.encrypts = [] { return true; };
    if ((kind & 32) != 0) {
      options.follow_redirect = [this](const BlobInfo& blob, const Addresses& from,
                                       OnFetched done) {
        FLOW_CHECK(!from.empty() && from.size() <= kAddressesMax);
        errands_.push_back({blob.digest, std::move(done)});
      };
    }
    if ((kind & 64) != 0) options.locate = [](const Digest&) { return Addresses{"10.0.0.1:1"}; };
    transfer_.emplace(options);
    if ((kind & 8) != 0) store_content(1);
    if ((kind & 16) != 0) store_content(3);
  }

  void play(Input& in) {
    uint8_t what = in.byte();
    if (what == 254) return hear(elsewhere(in));
    if (what == 255) return answer_errand(in.byte());
    switch (what % 12) {
      case 0:
      case 1:
        return fetch(in);
      case 2:
        return hear(in.bytes(in.byte()));
      case 3:
        return hear(offer(in));
      case 4:
        return hear(want(in));
      case 5:
        return hear(ready(in));
      case 6:
        return hear(done_or_missing(in));
      case 7:
      case 8:
        return come(in);
      case 9:
        return answer_put(in.byte());
      case 10:
        return thread_pool_.run_waiting();
      case 11: {
        if (in.byte() == 0) transfer_->end(environment_error("the session has ended"));
        return;
      }
    }
  }

  void end() {
    transfer_.reset();
    while (!link_->awaited.empty())
      link_->come(link_->awaited.begin()->first, environment_error("down"));
    while (!link_->puts.empty()) answer_put(1);
    while (!errands_.empty()) answer_errand(1);
    thread_pool_.run_waiting();
    for (int told : told_) FLOW_CHECK(told == 1);
  }

 private:
  void store_content(size_t which) {
    auto incoming = store_->begin(sha256(known()[which]), known()[which].size());
    if (!incoming.ok()) return;
    (*incoming)->hash(known()[which]);
    FLOW_CHECK((*incoming)->write(known()[which]).ok() && (*incoming)->matches_digest());
    FLOW_CHECK((*incoming)->commit().ok());
  }
  void fetch(Input& in) {
    const std::string& bytes = known()[in.byte() % known().size()];
    uint8_t how = in.byte();
    BlobInfo blob{sha256(bytes), bytes.size()};
    if (how == 1) blob.size.reset();
    if (how == 2) blob.size = in.number();
    size_t number = told_.size();
    told_.push_back(0);
    transfer_->fetch(blob, [this, number, blob](const Status& status) {
      FLOW_CHECK(++told_[number] == 1);
      if (!status.ok()) return FLOW_CHECK(!status.error().message.empty());
      auto found = read_file(store_->path_of(blob.digest));
      FLOW_CHECK(found.ok() && sha256(*found) == blob.digest);
    });
  }
  void hear(const std::string& message) {
    if (is_refused_) return;
    is_refused_ = !transfer_->on_message(message);
    if (is_refused_) transfer_->end(environment_error("the peer is none of ours"));
  }
  // Receives messages of this side: its requests are recorded, so that a peer may answer them.
  void said(std::string_view bytes) {
    blob_protocol::Message message;
    FLOW_CHECK(message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
    if (message.has_request()) wants_[message.request().id()] = message.request().digest();
    if (message.has_ready()) {
      FLOW_CHECK(link_->awaited.contains(message.ready().tag()));
      readies_[message.ready().tag()] = message.ready();
    }
  }
  uint64_t number_of(Input& in) {
    uint8_t which = in.byte();
    return which == 255 ? in.number() : which % 24;
  }
  const std::string& wanted(uint64_t id) {
    for (const std::string& bytes : known())
      if (sha256(bytes).view() == wants_[id]) return bytes;
    return known()[0];
  }
  std::string offer(Input& in) {
    blob_protocol::Message message;
    blob_protocol::Offer& offer = *message.mutable_offer();
    offer.set_id(number_of(in));
    uint8_t how = in.byte();
    offer.set_size((how & 1) == 0 ? wanted(offer.id()).size() : in.number());
    offer.set_sealed((how & 2) != 0);
    if ((how & 4) != 0) offer.set_source_path(in.bytes(in.byte()));
    return message.SerializeAsString();
  }
  std::string want(Input& in) {
    blob_protocol::Message message;
    message.mutable_request()->set_id(number_of(in));
    uint8_t which = in.byte();
    std::string digest(sha256(known()[which % known().size()]).view());
    message.mutable_request()->set_digest(which < 250 ? digest : in.bytes(which));
    uint8_t how = in.byte();
    message.mutable_request()->set_sealed((how & 1) != 0);
    message.mutable_request()->set_allow_redirect((how & 2) != 0);
    return message.SerializeAsString();
  }
  std::string elsewhere(Input& in) {
    blob_protocol::Message message;
    message.mutable_redirect()->set_id(number_of(in));
    for (uint8_t count = in.byte() % 10; count > 0; count--)
      message.mutable_redirect()->add_addresses(in.bytes(in.byte()));
    return message.SerializeAsString();
  }
  /// Result of another peer: it delivered the blob or did not.
  void answer_errand(uint8_t how) {
    if (errands_.empty()) return;
    auto [digest, done] = std::move(errands_.front());
    errands_.pop_front();
    for (size_t i = 0; how == 0 && i < known().size(); i++)
      if (sha256(known()[i]) == digest) store_content(i);
    bool is_here = how == 0 && store_->has({digest, std::nullopt});
    done(is_here ? Status() : Status(environment_error("they do not have it")));
  }
  std::string ready(Input& in) {
    blob_protocol::Message message;
    blob_protocol::Ready& ready = *message.mutable_ready();
    ready.set_id(number_of(in));
    ready.set_tag(in.number());
    ready.set_offset(in.number());
    ready.set_size(static_cast<uint32_t>(in.number()));
    return message.SerializeAsString();
  }
  std::string done_or_missing(Input& in) {
    blob_protocol::Message message;
    uint64_t id = number_of(in);
    uint8_t how = in.byte();
    if ((how & 1) != 0) {
      message.mutable_missing()->set_id(id);
      message.mutable_missing()->set_why(in.bytes(how));
    } else {
      message.mutable_done()->set_id(id);
      message.mutable_done()->set_received((how & 2) != 0);
      message.mutable_done()->set_damaged((how & 4) != 0);
    }
    return message.SerializeAsString();
  }
  /// A put for a request, or an unexpected one.
  void come(Input& in) {
    if (link_->awaited.empty()) return;
    auto next = link_->awaited.begin();
    std::advance(next, in.byte() % link_->awaited.size());
    uint64_t tag = next->first;
    Region to = next->second.to;
    const blob_protocol::Ready& ready = readies_[tag];
    const std::string& whole = wanted(ready.id());
    uint8_t how = in.byte();
    if (how == 1) return link_->come(tag, environment_error("the put was too long"));
    auto* data = static_cast<char*>(to.data);
    size_t size = how == 2 ? in.number() % (to.size + 1) : to.size;
    bool is_right = how != 3 && ready.offset() + ready.size() <= whole.size();
    if (is_right) std::memcpy(data, whole.data() + ready.offset(), ready.size());
    if (!is_right) std::memset(data, in.byte(), size);
    if (is_right && to.size == ready.size() + kBulkSealBytes)
      BulkSeal(key_, key_).seal(tag, data, ready.size());
    link_->come(tag, size);
  }
  void answer_put(uint8_t how) {
    if (link_->puts.empty()) return;
    auto done = std::move(link_->puts.front());
    link_->puts.pop_front();
    done(how == 0 ? Status() : Status(environment_error("nobody expects it")));
  }

  ThreadPool thread_pool_{transfer_threads(0)};
  Key key_;
  std::shared_ptr<FakeLink> link_ = std::make_shared<FakeLink>();
  std::shared_ptr<BlobCache> store_;
  std::optional<BlobTransfer> transfer_;
  std::deque<std::pair<Digest, OnFetched>> errands_;
  bool is_refused_ = false;
  std::vector<int> told_;
  std::map<uint64_t, std::string> wants_;
  std::map<uint64_t, blob_protocol::Ready> readies_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  Story story(in.byte());
  while (!in.is_empty()) story.play(in);
  story.end();
  return 0;
}
