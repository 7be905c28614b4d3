#include "engine/client/head_connector.hpp"

#include <fmt/format.h>

#include "engine/base/address.hpp"
#include "engine/cluster/session/session_options.hpp"

namespace flow {

Result<std::unique_ptr<HeadConnector>> HeadConnector::open(const std::string& head,
                                                           const std::string& secret_file,
                                                           const TransportFactory& make_transport) {
  auto address = parse_address(head);
  FLOW_TRY(address);
  auto session = session_options(cluster::Role::client, machine_name(), secret_file, false);
  FLOW_TRY(session);
  std::unique_ptr<HeadConnector> connection(new HeadConnector(head));
  auto transport = make_transport(head, *session);
  FLOW_TRY(transport);
  connection->transport_ = std::move(*transport);
  connection->sessions_ =
      std::make_unique<cluster::Sessions>(*connection->transport_, *session, [](std::string) {});
  return connection;
}

Result<std::shared_ptr<EngineConnection>> HeadConnector::connect(bool* is_rejected) {
  auto channel = std::make_shared<cluster::SessionChannel>();
  auto session = sessions_->connect(head_, channel);
  FLOW_TRY(session);
  channel->attach(*session);
  {
    std::lock_guard lock(mutex_);
    std::erase_if(channels_, [](const auto& each) { return each.expired(); });
    channels_.push_back(channel);
    if (is_closed_) channel->close("this client ends");
  }
  Status open = channel->wait_open();
  if (open.ok())
    return std::shared_ptr<EngineConnection>(std::make_shared<SessionConnection>(channel));
  if (is_rejected != nullptr) *is_rejected = channel->end()->first == cluster::EndKind::rejected;
  return environment_error(
      fmt::format("the head at {} can't be reached: {}", head_, open.error().message));
}

void HeadConnector::close() {
  std::lock_guard lock(mutex_);
  is_closed_ = true;
  for (auto& each : channels_) {
    if (auto channel = each.lock()) channel->close("this client ends");
  }
}

}  // namespace flow
