#include "engine/cluster/transfer/transfer.hpp"

namespace flow::cluster {

namespace {

constexpr size_t kMessageMax = 2 * kPlaceBytesMax;

std::shared_ptr<Line> line_of(const TransferOptions& options) {
  FLOW_CHECK(options.store && options.jobs != nullptr && options.link && options.send);
  FLOW_CHECK(!options.encrypts || options.seal);
  return std::make_shared<Line>(options);
}

}  // namespace

ContentTransfer::ContentTransfer(const TransferOptions& options)
    : line_(line_of(options)),
      fetching_(std::make_shared<Fetching>(line_)),
      serving_(std::make_shared<Serving>(line_)) {}

ContentTransfer::~ContentTransfer() {
  end(environment_error("the transfer of content with " + line_->peer + " was ended"));
}

bool ContentTransfer::on_message(std::string_view bytes) {
  content::Message message;
  if (bytes.size() > kMessageMax ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return false;
  switch (message.kind_case()) {
    case content::Message::kWant:
      return serving_->on_want(message.want());
    case content::Message::kReady:
      return serving_->on_ready(message.ready());
    case content::Message::kDone:
      return serving_->on_done(message.done());
    case content::Message::kOffer:
      return fetching_->on_offer(message.offer());
    case content::Message::kMissing:
      return fetching_->on_missing(message.missing());
    case content::Message::kElsewhere:
      return fetching_->on_elsewhere(message.elsewhere());
    default:
      return false;
  }
}

void ContentTransfer::end(const Error& why) {
  serving_->end();
  fetching_->end(why);
  line_->end();
}

Progress ContentTransfer::progress() const {
  return {line_->heard, fetching_->awaits(), fetching_->is_idle()};
}

TransferCounters ContentTransfer::counters() const {
  return {line_->bytes_in, line_->bytes_out, line_->fetched,
          line_->found,    line_->failed,    line_->served};
}

}  // namespace flow::cluster
