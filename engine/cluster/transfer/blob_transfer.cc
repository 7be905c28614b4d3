#include "engine/cluster/transfer/blob_transfer.hpp"

namespace flow::cluster {

namespace {

constexpr size_t kMessageMax = 2 * kTextBytesMax;

std::shared_ptr<TransferChannel> channel_of(const TransferOptions& options) {
  FLOW_CHECK(options.store && options.thread_pool != nullptr && options.link && options.send);
  FLOW_CHECK(!options.encrypts || options.seal);
  return std::make_shared<TransferChannel>(options);
}

}  // namespace

BlobTransfer::BlobTransfer(const TransferOptions& options)
    : channel_(channel_of(options)),
      downloader_(std::make_shared<BlobDownloader>(channel_)),
      uploader_(std::make_shared<BlobUploader>(channel_)) {}

BlobTransfer::~BlobTransfer() {
  end(environment_error("the blob transfer with " + channel_->peer + " was ended"));
}

bool BlobTransfer::on_message(std::string_view bytes) {
  blob_protocol::Message message;
  if (bytes.size() > kMessageMax ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return false;
  switch (message.kind_case()) {
    case blob_protocol::Message::kRequest:
      return uploader_->on_request(message.request());
    case blob_protocol::Message::kReady:
      return uploader_->on_ready(message.ready());
    case blob_protocol::Message::kDone:
      return uploader_->on_done(message.done());
    case blob_protocol::Message::kOffer:
      return downloader_->on_offer(message.offer());
    case blob_protocol::Message::kMissing:
      return downloader_->on_missing(message.missing());
    case blob_protocol::Message::kRedirect:
      return downloader_->on_redirect(message.redirect());
    default:
      return false;
  }
}

void BlobTransfer::end(const Error& why) {
  uploader_->end();
  downloader_->end(why);
  channel_->end();
}

DownloadProgress BlobTransfer::progress() const {
  return {channel_->responses, downloader_->awaits_peer(), downloader_->is_idle()};
}

TransferCounters BlobTransfer::counters() const {
  return {channel_->bytes_in, channel_->bytes_out, channel_->fetched,
          channel_->found,    channel_->failed,    channel_->served};
}

}  // namespace flow::cluster
