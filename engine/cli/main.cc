// The `flow` command.
#include "engine/cli/verbs.hpp"

int main(int argc, char** argv) { return flow::cli::flow_main(argc, argv); }
