#include "engine/cluster/transfer/transfer.hpp"

namespace flow::cluster {

namespace {

constexpr size_t kMessageMax = 2 * kPlaceBytesMax;

std::shared_ptr<TransferChannel> line_of(const TransferOptions& options) {
  FLOW_CHECK(options.store && options.jobs != nullptr && options.link && options.send);
  FLOW_CHECK(!options.encrypts || options.seal);
  return std::make_shared<TransferChannel>(options);
}

}  // namespace

BlobTransfer::BlobTransfer(const TransferOptions& options)
    : line_(line_of(options)),
      fetching_(std::make_shared<BlobDownloader>(line_)),
      serving_(std::make_shared<BlobUploader>(line_)) {}

BlobTransfer::~BlobTransfer() {
  end(environment_error("the transfer of content with " + line_->peer + " was ended"));
}

bool BlobTransfer::on_message(std::string_view bytes) {
  blob_protocol::Message message;
  if (bytes.size() > kMessageMax ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return false;
  switch (message.kind_case()) {
    case blob_protocol::Message::kRequest:
      return serving_->on_want(message.request());
    case blob_protocol::Message::kReady:
      return serving_->on_ready(message.ready());
    case blob_protocol::Message::kDone:
      return serving_->on_done(message.done());
    case blob_protocol::Message::kOffer:
      return fetching_->on_offer(message.offer());
    case blob_protocol::Message::kMissing:
      return fetching_->on_missing(message.missing());
    case blob_protocol::Message::kRedirect:
      return fetching_->on_elsewhere(message.redirect());
    default:
      return false;
  }
}

void BlobTransfer::end(const Error& why) {
  serving_->end();
  fetching_->end(why);
  line_->end();
}

DownloadProgress BlobTransfer::progress() const {
  return {line_->heard, fetching_->awaits(), fetching_->is_idle()};
}

TransferCounters BlobTransfer::counters() const {
  return {line_->bytes_in, line_->bytes_out, line_->fetched,
          line_->found,    line_->failed,    line_->served};
}

}  // namespace flow::cluster
