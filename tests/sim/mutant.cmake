# A test of the tests: PROGRAM holds the scenarios and the simulation over an engine with the fault FAULT put in
# on purpose ("none": no fault). FAILING names the tests that must notice the fault. They run, and must do so by
# failing as tests, all of them: a program that crashes or does not start has noticed nothing. With none named,
# every test runs and must pass.
set(ENV{FLOW_MUTANT} ${FAULT})
set(ENV{FLOW_SIM_SEEDS} 600)
list(JOIN FAILING "," tests)  # as Catch2 takes names; none: all tests
execute_process(COMMAND ${PROGRAM} ${tests} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
set(shown "${output}")
string(LENGTH "${shown}" length)
if(length GREATER 1200)
  string(SUBSTRING "${shown}" 0 600 first)
  math(EXPR tail "${length} - 600")
  string(SUBSTRING "${shown}" ${tail} -1 last)
  set(shown "${first}\n...\n${last}")
endif()

list(LENGTH FAILING expected)
if(expected EQUAL 0)
  if(NOT result EQUAL 0 OR NOT output MATCHES "All tests passed")
    message(FATAL_ERROR "${PROGRAM} without a fault should pass, but came to ${result}: ${shown}")
  endif()
  return()
endif()

if(result EQUAL 0)
  message(FATAL_ERROR "no test noticed the fault ${FAULT}")
endif()
# Catch2 exits with the number of failed assertions; a signal comes as words.
if(NOT result MATCHES "^[0-9]+$" OR NOT output MATCHES "\ntest cases: [^\n]* ([0-9]+) failed\n")
  message(FATAL_ERROR "${PROGRAM} with the fault ${FAULT} did not come to the end of its tests (${result}): ${shown}")
endif()
if(NOT CMAKE_MATCH_1 EQUAL expected)
  message(FATAL_ERROR "${CMAKE_MATCH_1} tests failed, not the ${expected} that should: ${shown}")
endif()
foreach(test IN LISTS FAILING)  # Catch2 gives a test its heading only when it fails
  string(FIND "${output}" "\n${test}\n---" heading)
  if(heading EQUAL -1)
    message(FATAL_ERROR "`${test}` did not notice the fault ${FAULT}: ${shown}")
  endif()
endforeach()
message(STATUS "noticed (${result}): ${shown}")
