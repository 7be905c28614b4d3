// What the users of a channel hold.
#pragma once
#include <memory>

#include "flow/transport.hpp"

namespace flow::ucx {

class Channel;
class Net;

/// Its destructor closes the channel.
std::shared_ptr<Link> make_link(std::shared_ptr<Net> net, std::shared_ptr<Channel> channel);

}  // namespace flow::ucx
