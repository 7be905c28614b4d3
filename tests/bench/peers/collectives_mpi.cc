// Compared with bench_collectives: Open MPI's all_reduce. Started by mpirun.
#include <mpi.h>

#include "tests/bench/collectives_loop.hpp"

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  auto reduce = [](float* data, size_t elements) {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(elements), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  };
  auto last = [](double seconds) {
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return seconds;
  };
  flow::bench::time_all_reduce(rank, reduce, last);
  MPI_Finalize();
}
