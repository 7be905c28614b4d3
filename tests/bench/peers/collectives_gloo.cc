// Compared with bench_collectives: Gloo's all_reduce over TCP on loopback. Usage: collectives_gloo
// RANK RANKS FOLDER ring|halving_doubling
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdlib>
#include <string>

#include "tests/bench/collectives_loop.hpp"

namespace {

template <typename T>
void reduce_with(const std::shared_ptr<gloo::rendezvous::Context>& context, T* data, size_t count,
                 void (*combine)(void*, const void*, const void*, size_t)) {
  gloo::AllreduceOptions options(context);
  options.setOutput(data, count);
  options.setReduceFunction(combine);
  gloo::allreduce(options);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) return 2;
  int rank = std::atoi(arguments[1]), ranks = std::atoi(arguments[2]);
  gloo::transport::tcp::attr attributes("127.0.0.1");
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  gloo::rendezvous::FileStore store(arguments[3]);
  context->connectFullMesh(store, device);
  bool is_halving = std::string(arguments[4]) == "halving_doubling";
  auto reduce = [&](float* data, size_t elements) {
    if (!is_halving) return reduce_with(context, data, elements, &gloo::sum<float>);
    gloo::AllreduceHalvingDoubling<float>(context, {data}, static_cast<int>(elements)).run();
  };
  auto last = [&](double seconds) {
    reduce_with(context, &seconds, 1, &gloo::max<double>);
    return seconds;
  };
  flow::bench::time_all_reduce(rank, reduce, last);
}
