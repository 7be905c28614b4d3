// The link of a channel, as its users hold it.
#pragma once
#include <memory>

#include "flow/transport.hpp"

namespace flow::ucx {

class Channel;
class UcxThread;

/// Its destructor closes the channel.
std::shared_ptr<Link> make_link(std::shared_ptr<UcxThread> ucx_thread,
                                std::shared_ptr<Channel> channel);

}  // namespace flow::ucx
