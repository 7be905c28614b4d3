#include "engine/executor/wrapped/served_address.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace flow {

ServedAddress::ServedAddress(const std::string& folder, front::Join join)
    : notice_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      link_(options(folder, std::move(join))),
      thread_([this] { run(); }) {}

ServedAddress::~ServedAddress() {
  end();
  ::close(notice_);
}

ServedAddress::News ServedAddress::end() {
  link_.die();
  if (thread_.joinable()) thread_.join();
  return take_news();
}

ReplicaOptions ServedAddress::options(const std::string& folder, front::Join join) {
  ReplicaOptions options;
  options.folder = folder;
  options.join = std::move(join);
  options.on_url = [this](const std::string& url) { tell([&](News& news) { news.url = url; }); };
  options.log = [this](const std::string& line) {
    tell([&](News& news) { news.lines.push_back(line); });
  };
  return options;
}

template <typename Change>
void ServedAddress::tell(const Change& change) {
  std::lock_guard lock(mutex_);
  change(news_);
  uint64_t one = 1;
  (void)!::write(notice_, &one, sizeof one);
}

ServedAddress::News ServedAddress::take_news() {
  std::lock_guard lock(mutex_);
  uint64_t drained;
  (void)!::read(notice_, &drained, sizeof drained);
  News news = news_;
  news_.url.clear();
  news_.lines.clear();
  return news;
}

void ServedAddress::renew(front::Join join) {
  std::lock_guard lock(mutex_);
  renewed_ = std::move(join);
  link_.wake();
}

/// On the thread of the link.
void ServedAddress::pass_on() {
  std::unique_lock lock(mutex_);
  auto renewed = std::exchange(renewed_, std::nullopt);
  lock.unlock();
  if (renewed) link_.renew(std::move(*renewed));
}

void ServedAddress::run() {
  auto no_batches = [](const BatchMessage&, ResponseParameters&) -> Result<Tensors> {
    return user_error("the server gets its requests from the front");
  };
  Status served = link_.join();
  if (served.ok()) served = link_.serve(no_batches, [this] { pass_on(); });
  tell([&](News& news) {
    news.has_ended = true;
    news.has_failed = !served.ok() && served.error().kind != ErrorKind::interrupted;
    if (news.has_failed) news.problem = served.error();
  });
}

}  // namespace flow
