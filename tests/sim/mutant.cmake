# A test of the tests: PROGRAM holds the scenarios and the simulation over a core with a fault put in
# on purpose, and must not pass.
execute_process(COMMAND ${PROGRAM} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "no test noticed the fault in ${PROGRAM}")
endif()
string(LENGTH "${output}" length)
if(length GREATER 600)
  string(SUBSTRING "${output}" 0 600 output)
endif()
message(STATUS "noticed (${result}): ${output}")
