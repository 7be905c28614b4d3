// Two sides with one folder each, whose transfers use a link of a transport.
#pragma once
#include <catch2/catch.hpp>
#include <filesystem>
#include <future>
#include <random>

#include "engine/base/files.hpp"
#include "engine/cluster/transfer/blob_transfer.hpp"

namespace flow::cluster {

/// A temporary folder.
class TestFolder {
 public:
  TestFolder() {
    std::string name = std::filesystem::temp_directory_path() / "flow-content-XXXXXX";
    path = ::mkdtemp(name.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  std::string operator/(const std::string& name) const { return path + "/" + name; }
  std::string path;
};

inline std::string random_bytes_of(size_t size, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::string bytes(size + 8, '\0');
  for (size_t at = 0; at < size; at += 8) {
    uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, sizeof word);
  }
  bytes.resize(size);
  return bytes;
}

inline BlobInfo blob_of(std::string_view bytes) { return {sha256(bytes), bytes.size()}; }

/// Writes a file like an executor.
inline BlobInfo put_object(const std::string& dir, std::string_view bytes) {
  BlobInfo blob = blob_of(bytes);
  std::string path = blob_path(dir, blob.digest);
  REQUIRE(make_dirs(std::filesystem::path(path).parent_path().string()).ok());
  REQUIRE(write_file_atomic(path, bytes, 0400).ok());
  return blob;
}

/// Files below objects/ that are not blobs.
inline int temporaries_in(const std::string& dir) {
  int count = 0;
  for (const auto& each : std::filesystem::recursive_directory_iterator(dir + "/objects"))
    count += each.is_regular_file() && each.path().filename().string().starts_with("tmp-");
  return count;
}

class Side final : public LinkHandler {
 public:
  void start(std::shared_ptr<Link> own_link, TransferOptions options) {
    link = std::move(own_link);
    options.link = link;
    if (options.thread_pool == nullptr) options.thread_pool = &thread_pool;
    options.send = [to = link](std::string_view message) { to->send(std::string(message)); };
    options.peer = "the peer";
    transfer = std::make_shared<BlobTransfer>(options);
    ready.set_value();
  }
  void on_up() override { up.set_value(); }
  void on_frame(std::string_view frame) override {
    started.wait();
    if (frame == "ping") {
      ping_came_at = transfer->counters().bytes_in;
      return;
    }
    frames++;
    if (!transfer->on_message(frame)) is_broken = true;
    if (ping_after != 0 && frames == ping_after) link->send("ping");
  }
  void on_down(const Error& why) override {
    started.wait();
    transfer->end(why);
    down.set_value();
  }
  std::future<Status> begin_fetch(const BlobInfo& what) {
    auto done = std::make_shared<std::promise<Status>>();
    auto result = done->get_future();
    transfer->fetch(what, [done](const Status& status) { done->set_value(status); });
    return result;
  }
  Status fetch(const BlobInfo& what) { return begin_fetch(what).get(); }

  ThreadPool thread_pool{transfer_threads(3)};
  std::shared_ptr<Link> link;
  std::shared_ptr<BlobTransfer> transfer;
  std::promise<void> up, ready, down;
  std::shared_future<void> started = ready.get_future().share();
  std::atomic<int> frames{0};
  int ping_after = 0;  // messages of the peer
  std::atomic<uint64_t> ping_came_at{UINT64_MAX};
  std::atomic<bool> is_broken{false};
};

struct TransferPair {
  TransferPair(Transport& transport, const TransferOptions& a, const TransferOptions& b)
      : head(std::make_shared<Side>()), worker(std::make_shared<Side>()) {
    auto opened = transport.listen("127.0.0.1:0", [this, a](std::shared_ptr<Link> link) {
      head->start(std::move(link), a);
      return head;
    });
    REQUIRE(opened.ok());
    listener = std::move(*opened);
    auto link = transport.connect(listener->address(), worker);
    REQUIRE(link.ok());
    worker->start(*link, b);
    head->up.get_future().wait();
    worker->up.get_future().wait();
  }
  ~TransferPair() {
    worker->link->close(0);
    head->down.get_future().wait();
    worker->down.get_future().wait();
    for (auto& side : {head, worker}) {
      side->transfer.reset();
      side->link.reset();
    }
  }
  std::shared_ptr<Side> head, worker;
  std::unique_ptr<Listener> listener;
};

}  // namespace flow::cluster
