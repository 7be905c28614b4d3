#include "transports/ucx/link.hpp"

#include <utility>

#include "transports/ucx/channel.hpp"
#include "transports/ucx/ucx_thread.hpp"

namespace flow::ucx {

namespace {

class UcxLink final : public Link {
 public:
  UcxLink(std::shared_ptr<UcxThread> ucx_thread, std::shared_ptr<Channel> channel)
      : ucx_thread_(std::move(ucx_thread)), channel_(std::move(channel)) {}
  ~UcxLink() override { close(0); }

  void send(std::string frame) override {
    channel_->unsent += frame.size();
    ucx_thread_->run([channel = channel_, frame = std::move(frame)]() mutable {
      channel->send(std::move(frame));
    });
  }
  size_t unsent_bytes() const override { return channel_->unsent; }
  void post_receive(uint64_t tag, Region to, std::function<void(Result<size_t>)> done) override {
    Status posted = channel_->post_receive(tag, to, done);
    if (!posted.ok()) run_or_call([done = std::move(done), posted] { done(posted.error()); });
  }
  void cancel_receive(uint64_t tag) override {
    channel_->cancel_receive(tag);
    run_or_call([channel = channel_] { channel->finish_canceled_receives(); });
  }
  void put(uint64_t tag, Region from, std::function<void(Status)> done) override {
    channel_->unsent += from.size;
    bool is_queued =
        ucx_thread_->run([channel = channel_, tag, from, done] { channel->put(tag, from, done); });
    if (!is_queued) done(environment_error("the link's transport was destroyed"));
  }
  void set_timeout(int64_t deadline_ms) override {
    ucx_thread_->run([channel = channel_, deadline_ms] { channel->set_timeout(deadline_ms); });
  }
  void close(int64_t flush_ms) override {
    ucx_thread_->run([channel = channel_, flush_ms] { channel->close(flush_ms); });
  }
  std::string description() const override { return channel_->description(); }

 private:
  /// A transport that was destroyed has no thread, but the memory must still be released.
  void run_or_call(const std::function<void()>& call) {
    if (!ucx_thread_->run(call)) call();
  }

  std::shared_ptr<UcxThread> ucx_thread_;
  std::shared_ptr<Channel> channel_;
};

}  // namespace

std::shared_ptr<Link> make_link(std::shared_ptr<UcxThread> ucx_thread,
                                std::shared_ptr<Channel> channel) {
  return std::make_shared<UcxLink>(std::move(ucx_thread), std::move(channel));
}

}  // namespace flow::ucx
