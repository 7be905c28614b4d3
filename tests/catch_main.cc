// The one main of every Catch2 program.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
